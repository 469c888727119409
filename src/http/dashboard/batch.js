// One batch: how far it is, what it waits for, what can be done, what failed; then its chunks and its results.

import { ask, Problem } from './api.js';
import { Chunks } from './chunks.js';
import { seen } from './list.js';
import { Results } from './results.js';
import { announce, bar, confirmed, el, labels, link, moment, number, percent, put, reasons, safe, SHARES, since, some, span } from './show.js';
import { Tally } from './tally.js';

export class Batch {
  #batch = null; #last = ''; #quarter = -1; #tally = null; #look; #path; #chunks; #results;
  #title; #head = el('p', { class: 'head' });
  #notice = el('p', { class: 'notice', role: 'alert', hidden: true });
  #all = el('div', { hidden: true });
  #bar = bar('Progress of this batch');
  #legend = el('dl', { class: 'legend' });
  #waiting = el('ul', { class: 'waiting', 'aria-label': 'What it waits for' });
  #facts = el('dl', { class: 'facts' });
  #actions = el('p', { class: 'actions' });
  #failures = el('section', {}, el('h2', {}, 'Failures'), el('p', { class: 'soft' }, 'Why is counted when the batch has ended; the results below say it one by one.'));

  /** `list`: the address to go back to. `look`: asks for a step now. */
  constructor(id, query, list, look) {
    this.id = this.title = id;
    this.#look = look;
    this.#path = `/batches/${id}`;
    this.#title = el('h1', { tabindex: -1, class: 'id' }, safe(id));
    this.#chunks = new Chunks(this.#path);
    this.#results = new Results(query, this.#place);
    this.#all.append(this.#bar.node, this.#legend, this.#waiting, this.#facts, this.#actions, this.#failures, this.#chunks.node, this.#results.node);
    this.node = el('article', { class: 'batch' }, el('p', { class: 'back' }, link(list, '← Batches')), this.#title, this.#head, this.#notice, this.#all);
    const known = seen.get(id);
    if (known) this.#update(known);
  }

  /** The address of the page of results that begins there. */
  #place = (offset) => `#/batches/${this.id}${offset ? `?offset=${offset}` : ''}`;

  stop() {
    this.#tally?.stop();
  }

  focus() {
    this.#title.focus({ preventScroll: true });
  }

  /** Another page of the results. */
  turn(query) {
    this.#results.turn(query);
  }

  async step(signal) {
    // An ended batch does not change; turning its pages needs no look at it.
    if (this.#batch?.status !== 'ended' || !this.#last) {
      try {
        this.#update(await ask(this.#path, { signal }), true);
      } catch (error) {
        if (!(error instanceof Problem) || error.status === 401) throw error;
        this.#all.hidden = this.#head.hidden = true;
        this.#say('There is nothing to show: ', safe(error.message));
        return 'done';
      }
    }
    const batch = this.#batch;
    const text = JSON.stringify([batch.status, batch.counts, batch.chunks, batch.reported_prompts, batch.waiting]);
    const moves = text !== this.#last;
    if (moves || !this.#results.isShown) await this.#results.read(signal);
    if (moves) this.#chunks.read();
    this.#last = text;
    return batch.status === 'ended' ? 'done' : moves ? 'moving' : 'still';
  }

  #say(...children) {
    this.#notice.hidden = !children.length;
    put(this.#notice, children);
  }

  /** `asked`: the batch itself was asked, not the list. */
  #update(batch, asked = false) {
    const before = this.#batch;
    this.#batch = batch;
    this.#all.hidden = false;
    const { counts, waiting = [] } = batch;
    const took = (Date.parse(batch.ended_at) - Date.parse(batch.created_at)) / 1_000;
    put(this.#head, el('span', {}, since(batch), batch.ended_at ? ` · took ${took < 1 ? 'less than 1 s' : span(took)}` : ''), labels(batch));
    this.#bar.update(counts);
    put(this.#legend, SHARES.map(([name, of]) => el('div', { class: of(counts) ? name : `${name} none` },
      el('dt', {}, name), el('dd', {}, number(of(counts)), of(counts) ? [' ', el('span', {}, share(of(counts), counts.total))] : null))));
    this.#waiting.hidden = !waiting.length;
    put(this.#waiting, reasons(waiting));
    put(this.#facts, facts(batch).filter(Boolean).map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));
    const missing = counts.failed + counts.canceled + counts.expired;
    const can = batch.status === 'ended' ? (missing ? ['retry', 'delete'] : ['delete']) : batch.status === 'running' ? ['cancel'] : [];
    this.#actions.hidden = !can.length;
    put(this.#actions, can.map((what) => el('button', { type: 'button', click: () => this.#act(what) }, ACTIONS[what].button)));
    this.#failures.hidden = !missing;
    if (missing && asked && batch.status === 'ended') this.#count(batch);
    this.#chunks.update(batch);
    this.#results.update(batch);
    this.#tell(before, batch);
  }

  #count(batch) {
    if (this.#tally) return;
    this.#tally = new Tally(this.#path, batch.counts, this.#place);
    this.#failures.lastChild.replaceWith(this.#tally.node);
    this.#tally.start(batch.results);
  }

  /** Every quarter of the way, and the end, for those who listen. */
  #tell(before, { status, counts }) {
    const done = percent(counts.total - counts.pending, counts.total);
    const quarter = Math.floor(done / 25);
    if (before && before.status !== status) announce(`The batch is ${status}: ${number(counts.succeeded)} succeeded, ${number(counts.failed)} failed.`);
    else if (this.#quarter >= 0 && quarter > this.#quarter) announce(`${done} % done`);
    this.#quarter = quarter;
  }

  async #act(what) {
    const { title, text, yes, method, path } = ACTIONS[what];
    if (!(await confirmed(title, text, yes))) return;
    this.#say();
    try {
      const told = await ask(this.#path + path, { method });
      if (what === 'delete') {
        seen.delete(this.id);
        announce('The batch is deleted.');
        location.hash = '#/';
      } else if (what === 'retry') location.hash = `#/batches/${encodeURIComponent(told.id)}`;
      else this.#look();
    } catch (error) {
      this.#say(safe(error.message, { limit: 600 }));
    }
  }
}

const ACTIONS = {
  cancel: { button: 'Cancel', title: 'Cancel this batch?', text: 'What is answered already, or still comes in, is kept. The rest is not asked any more.', yes: 'Cancel the batch', method: 'POST', path: '/cancel' },
  retry: { button: 'Retry what is missing', title: 'Ask again?', text: 'A new batch asks for everything that failed, was canceled or expired. It may cost money.', yes: 'Ask again', method: 'POST', path: '/retry' },
  delete: { button: 'Delete', title: 'Delete this batch?', text: 'Its results cannot be read any more after that. Answers in the cache stay there.', yes: 'Delete the batch', method: 'DELETE', path: '' },
};

const facts = ({ usage, cost, counts, ...batch }) => [
  ['Tokens bought', `${number(usage.input_tokens)} in, ${number(usage.output_tokens)} out`],
  usage.cached_input_tokens ? ['Of them in the provider’s cache', number(usage.cached_input_tokens)] : null,
  cost?.spent_usd ? ['Spent', safe(`$${cost.spent_usd}`)] : null,
  cost?.saved_usd ? ['Saved', safe(`$${cost.saved_usd}`)] : null,
  counts.repeats ? ['Repeats', number(counts.repeats)] : null,
  counts.pending && batch.reported_prompts ? ['Done, say the providers', some(batch.reported_prompts, 'prompt')] : null,
  ['Team', safe(batch.team)],
  batch.retry_of ? ['Retry of', link(`#/batches/${encodeURIComponent(batch.retry_of)}`, safe(batch.retry_of))] : null,
  batch.ended_at ? ['Kept for another', moment(batch.deleted_at, '')] : ['Deadline', moment(batch.expires_at)],
];

/** Never nothing where there is something, nor all where there is more. */
const share = (part, whole) => (part * 100 < whole ? '< 1 %' : `${part === whole ? 100 : Math.min(99, Math.round((part * 100) / whole))} %`);
