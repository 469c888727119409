// Asks the public API. Knows the key (in this tab's session storage, nowhere else) and the gateway's clock.

const SLOT = 'batchgate-key';
const PATIENCE = 30_000; // ms for one answer

/** The API said no, in its own words. */
export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** No whole answer: nobody there, nobody in the mood, or broken off half-way. */
export class Unreachable extends Error {}

let memory = ''; // where a browser forbids storage
export const key = {
  get() {
    try { return sessionStorage.getItem(SLOT) ?? ''; } catch { return memory; }
  },
  set(value) {
    memory = value;
    try { value ? sessionStorage.setItem(SLOT, value) : sessionStorage.removeItem(SLOT); } catch { /* in memory then */ }
  },
};

let skew = 0; // ms the gateway's clock is ahead of ours
/** The time as the gateway has it: ages are right even where our own clock is wrong. */
export const now = () => Date.now() + skew;

function compareClocks(reply) {
  const theirs = Date.parse(reply.headers.get('date') ?? '');
  const ahead = theirs + 500 - Date.now(); // the header has whole seconds
  if (!Number.isNaN(ahead)) skew = Math.abs(ahead) < 2_000 ? 0 : ahead;
}

/** The answer's JSON. Throws Problem or Unreachable, or AbortError when `signal` says that nobody wants it any more. */
export async function ask(path, { method = 'GET', signal } = {}) {
  const headers = { accept: 'application/json' };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  const late = AbortSignal.timeout(PATIENCE);
  try {
    const reply = await fetch(path, {
      method, headers, cache: 'no-store', redirect: 'error', signal: signal ? AbortSignal.any([signal, late]) : late,
    });
    compareClocks(reply);
    if (reply.ok) return await reply.json();
    const told = await reply.json().catch(() => ({}));
    const detail = typeof told.detail === 'string' ? told.detail : `The answer was ${reply.status}.`;
    if (reply.status >= 500) throw new Unreachable(detail);
    throw new Problem(reply.status, told.code, detail);
  } catch (error) {
    if (error instanceof Problem || error instanceof Unreachable || signal?.aborted) throw error;
    throw new Unreachable('The gateway cannot be reached.', { cause: error });
  }
}

const LEAST = 1_000; // ms between two looks while something moves
const MOST = 15_000; // and when nothing does

/**
 * Does `step(signal)` again and again: every second while it returns 'moving', then after 1.6 s, 2.6 s, ... up to every
 * 15 s; not at all after 'done', nor while the tab is hidden. What it throws goes to `failed`, which answers like a step.
 */
export class Loop {
  #step; #failed; #timer; #abort; #pause = LEAST; #on = false; #done = false;
  #wake = () => { if (!document.hidden) this.look(); else this.#rest(); };

  constructor(step, failed) {
    this.#step = step;
    this.#failed = failed;
  }

  start() {
    this.#on = true;
    document.addEventListener('visibilitychange', this.#wake);
    addEventListener('online', this.#wake);
    return this.look();
  }

  stop() {
    this.#on = false;
    document.removeEventListener('visibilitychange', this.#wake);
    removeEventListener('online', this.#wake);
    this.#rest();
  }

  #rest() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
  }

  /** Looks now, whatever was planned. `again`: even if all was done. */
  async look(again = false) {
    if (again) this.#done = false;
    if (!this.#on || this.#done) return;
    this.#rest();
    const { signal } = (this.#abort = new AbortController());
    let found;
    try {
      found = await this.#step(signal);
    } catch (error) {
      if (signal.aborted) return;
      found = this.#failed(error);
    }
    if (signal.aborted || !this.#on) return;
    this.#done = found === 'done';
    if (this.#done) return;
    this.#pause = found === 'moving' ? LEAST : Math.min(this.#pause * 1.6, MOST);
    if (!document.hidden) this.#timer = setTimeout(() => this.look(), this.#pause);
  }
}
