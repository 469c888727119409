// Failures by code. The API does not count them, so results are read page by page: by itself only so far, then as the
// reader wishes; never all of a large batch, and no page is kept.

import { ask } from './api.js';
import { el, link, number, put, safe, some } from './show.js';

const PAGE = 250;
const AT_FIRST = 2_000;
const AT_A_TIME = 10_000;

export class Tally {
  #path; #counts; #place; #codes = new Map(); #found = 0; #at = 0; #abort = new AbortController(); #list; #note;

  /** `place`: the address of a result. */
  constructor(path, counts, place) {
    this.#path = path;
    this.#counts = counts;
    this.#place = place;
    this.#list = el('ul', { class: 'codes' });
    this.#note = el('p', { class: 'soft' });
    this.node = el('div', {}, this.#list, this.#note);
    for (const code of ['canceled', 'expired']) if (counts[code]) this.#codes.set(code, { count: counts[code] });
  }

  stop() {
    this.#abort.abort();
  }

  /** `results`: all of them, where the batch brought them along. */
  async start(results) {
    if (results) {
      this.#take(results);
      this.#show();
    } else await this.#read(AT_FIRST);
  }

  #missing() {
    return this.#found < this.#counts.failed && this.#at < this.#counts.total;
  }

  async #read(most) {
    const until = this.#at + most;
    try {
      while (this.#missing() && this.#at < until) {
        this.#take((await ask(`${this.#path}/results?offset=${this.#at}&limit=${PAGE}`, { signal: this.#abort.signal })).results);
        this.#show(this.#at < until);
      }
      this.#show();
    } catch (error) {
      if (!this.#abort.signal.aborted) this.#show(false, error.message);
    }
  }

  #take(results) {
    results.forEach(({ status, error }, n) => {
      if (status !== 'failed') return;
      const code = error?.code ?? 'unknown';
      const entry = this.#codes.get(code) ?? { count: 0, first: this.#at + n, message: error?.message ?? '' };
      entry.count += 1;
      this.#codes.set(code, entry);
      this.#found += 1;
    });
    this.#at += results.length || PAGE;
  }

  #show(reads = false, trouble = '') {
    const most = [...this.#codes].sort(([, a], [, b]) => b.count - a.count);
    put(this.#list, most.map(([code, { count, first, message }]) =>
      el('li', {}, el('span', { class: 'count' }, number(count)), el('div', {}, el('strong', { class: 'code' }, safe(code)), ' ',
        first === undefined ? null : link(this.#place(first), `first at ${number(first)}`),
        message ? el('span', { class: 'detail' }, safe(message, { limit: 200 })) : null))));
    const { failed } = this.#counts;
    const sofar = `${number(this.#found)} of ${some(failed, 'failure')} found in the first ${some(Math.min(this.#at, this.#counts.total), 'result')}. `;
    const more = el('button', { type: 'button', class: 'plain', click: () => this.#read(AT_A_TIME) }, 'Look further');
    this.#note.replaceChildren(...(reads ? ['Counting…'] : this.#missing() ? [sofar, trouble ? safe(trouble) : '', ' ', more] : []));
  }
}
