// The results of a batch, in order, a page at a time; never more than one page is asked for, nor kept.

import { ask, Problem } from './api.js';
import { announce, el, link, long, number, point, put, safe, status } from './show.js';

const PAGE = 50;

export class Results {
  #batch; #at; #shown = null; #list; #pagers; #place;

  /** `place`: the address of the page that begins with a result. */
  constructor(query, place) {
    this.#place = place;
    this.#list = el('ol', { class: 'things results' });
    this.#pagers = [this.#pager(), this.#pager()];
    this.node = el('section', { hidden: true }, el('h2', {}, 'Results'), this.#pagers[0], this.#list, this.#pagers[1]);
    this.turn(query);
  }

  #pager() {
    return el('nav', { class: 'pager', 'aria-label': 'Pages of results' },
      ['First', 'Previous', 'Next', 'Last'].map((word) => link('', word)),
      el('span', { class: 'range' }),
      el('form', {
        submit: (event) => {
          event.preventDefault();
          const wish = Math.trunc(Number(new FormData(event.target).get('place')));
          if (wish >= 0 && wish < this.#batch.counts.total) location.hash = this.#place(wish);
        },
      }, el('label', {}, 'Go to ', el('input', { name: 'place', inputmode: 'numeric', pattern: '[0-9]+', autocomplete: 'off', required: true }))));
  }

  /** To the page that the address asks for. */
  turn(query) {
    this.#at = Math.max(0, Math.trunc(Number(query.get('offset'))) || 0);
    if (this.#batch) this.update(this.#batch);
  }

  /** False until the page asked for is there. */
  get isShown() {
    return this.#shown === this.#at;
  }

  update(batch) {
    this.#batch = batch;
    this.node.hidden = false;
    const { total } = batch.counts;
    const at = this.#at;
    const last = Math.floor((total - 1) / PAGE) * PAGE;
    for (const pager of this.#pagers) {
      const [first, previous, next, end, range] = pager.children;
      point(first, at > 0 && this.#place(0));
      point(previous, at > 0 && this.#place(Math.max(0, Math.min(at, total) - PAGE)));
      point(next, at + PAGE < total && this.#place(at + PAGE));
      point(end, at < last && this.#place(last));
      range.textContent = this.#range();
      pager.hidden = total <= PAGE && at === 0;
    }
  }

  #range() {
    const { total } = this.#batch.counts;
    const of = `of ${number(total)}`;
    return this.#at < total ? `${number(this.#at)} – ${number(Math.min(this.#at + PAGE, total) - 1)} ${of}` : of;
  }

  /** Brings the page up to date; what did not change is left alone. */
  async read(signal) {
    const at = this.#at;
    const { id, counts, results, status } = this.#batch;
    const offset = Math.min(at, counts.total);
    let page = results?.slice(offset, offset + PAGE);
    try {
      const partial = status === 'ended' ? '' : '&partial=true';
      page ??= (await ask(`/batches/${id}/results?offset=${offset}&limit=${PAGE}${partial}`, { signal })).results;
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      return this.#list.replaceChildren(el('li', {}, safe(error.message)));
    }
    const turned = this.#shown !== null && this.#shown !== at;
    const old = this.#shown === at ? [...this.#list.children] : [];
    put(this.#list, page.length ? page.map((result, n) => item(result, old[n])) : el('li', { class: 'soft' }, 'Nothing here.'));
    this.#shown = at;
    if (turned) {
      announce(`Results ${this.#range()}`);
      if (this.node.getBoundingClientRect().top < 0) this.node.scrollIntoView();
    }
  }
}

/** One result; `old` where it says the same already. */
function item(result, old) {
  const text = JSON.stringify(result);
  if (old?.told === text) return old;
  const { index, sample, custom_id: name, status: word, source, model, finish } = result;
  const node = el('li', { class: 'thing', 'data-status': word },
    el('span', { class: 'place' }, number(index), sample ? el('span', { class: 'soft' }, `/${sample}`) : null),
    el('div', {},
      el('p', { class: 'meta' },
        name === null ? null : el('strong', { class: 'name' }, safe(name)), status(word),
        [source, model, finish].filter(Boolean).map((said) => el('span', { class: 'soft' }, safe(said, { limit: 120 })))),
      said(result)));
  node.told = text;
  return node;
}

function said({ completion, response, error, status: word }) {
  if (error) {
    return el('div', { class: 'says' }, el('strong', { class: 'code' }, safe(error.code)), ' ', safe(error.message ?? '', { limit: 1_200, lines: true }),
      error.provider_code ? el('span', { class: 'soft' }, ' (', safe(error.provider_code), ')') : null);
  }
  if (completion) return long(completion);
  if (response) return long(JSON.stringify(response), 400);
  return el('p', { class: 'says soft' }, completion === '' ? 'An empty text.' : word === 'pending' ? 'Not answered yet.' : 'No text.');
}
