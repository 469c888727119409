// The list of batches, newest first.

import { ask, Problem } from './api.js';
import { announce, bar, el, inWords, labels, link, number, percent, plain, point, put, safe, since, some } from './show.js';

const PAGE = 20;
const STATUSES = ['running', 'canceling', 'ended'];

/** Batches as last seen in a list, so that opening one, and coming back, shows something at once. */
export const seen = new Map();
let opened = ''; // the batch that was opened last: the focus comes back to it

export class List {
  #asked; #rows = new Map(); #nodes; #last = '';

  /** `query`: what stands behind the `?` of the address. */
  constructor(query) {
    this.#asked = new URLSearchParams([...query].filter(([name, value]) =>
      value && (['status', 'run', 'since', 'after'].includes(name) || name.startsWith('metadata.'))));
    const [name = '', value = ''] = [...this.#asked].find(([name]) => name.startsWith('metadata.')) ?? [];
    this.#nodes = {
      form: this.#form(name.slice('metadata.'.length), value),
      list: el('ol', { class: 'rows', keydown: (event) => this.#move(event) }),
      note: el('p', { class: 'empty', hidden: true }),
      pager: el('nav', { class: 'pager', 'aria-label': 'Pages of batches', hidden: true },
        link('', 'Newest'), link('', 'Older')),
    };
    this.node = el('div', {}, el('h1', { tabindex: -1 }, 'Batches'), ...Object.values(this.#nodes));
    this.title = 'Batches';
    const known = seen.get(this.#address());
    if (known) this.#update(known);
  }

  #address(extra = {}) {
    const query = new URLSearchParams(this.#asked);
    for (const [name, value] of Object.entries(extra)) value ? query.set(name, value) : query.delete(name);
    return query.size ? `#/?${query}` : '#/';
  }

  #form(name, value) {
    const field = (label, input) => el('label', {}, el('span', {}, label), input);
    const pick = el('select', { name: 'status' }, el('option', { value: '' }, 'any'), STATUSES.map((word) =>
      el('option', { value: word, selected: this.#asked.get('status') === word }, word)));
    const write = (field, value, hint) =>
      el('input', { name: field, value, placeholder: hint, autocomplete: 'off', spellcheck: 'false', maxlength: 600 });
    // Folded on a phone, unless something is asked for.
    return el('details', { class: 'filter', open: this.#asked.size > 0 || matchMedia('(min-width: 40rem)').matches }, el('summary', {}, 'Filter'), el('form', {
      class: 'filters',
      role: 'search',
      'aria-label': 'Filter batches',
      submit: (event) => {
        event.preventDefault();
        const given = Object.fromEntries(new FormData(event.target));
        const query = new URLSearchParams();
        if (given.status) query.set('status', given.status);
        if (given.run) query.set('run', given.run);
        if (given.name) query.set(`metadata.${given.name}`, given.value);
        location.hash = query.size ? `#/?${query}` : '#/';
      },
    },
    field('Status', pick),
    field('Run', write('run', this.#asked.get('run') ?? '', 'name~attempt')),
    field('Metadata', write('name', name, 'name')),
    field('is', write('value', value, 'value')),
    el('button', { type: 'submit' }, 'Apply'),
    this.#asked.size ? link('#/', 'Show all') : null));
  }

  async step(signal) {
    let page;
    try {
      const query = new URLSearchParams(this.#asked);
      query.set('limit', PAGE);
      page = await ask(`/batches?${query}`, { signal });
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      this.#nodes.list.replaceChildren();
      this.#rows.clear();
      this.#note(el('strong', {}, 'The gateway does not take this. '), safe(error.message, { limit: 600 }));
      announce(error.message);
      return 'done';
    }
    seen.set(this.#address(), page);
    for (const batch of page.data) seen.set(batch.id, batch);
    const text = JSON.stringify(page);
    const moves = text !== this.#last;
    if (moves && !this.#last) announce(page.data.length ? `${some(page.data.length, 'batch', 'batches')} on this page` : 'no batches');
    this.#last = text;
    this.#update(page);
    return moves ? 'moving' : 'still';
  }

  #note(...children) {
    this.#nodes.note.hidden = !children.length;
    put(this.#nodes.note, children);
  }

  #update({ data, has_more: more, last_id: last }) {
    const here = new Set(data.map((batch) => batch.id));
    for (const [id, row] of this.#rows) {
      if (!here.has(id)) {
        row.node.remove();
        this.#rows.delete(id);
      }
    }
    let before = null;
    for (const batch of data) {
      let row = this.#rows.get(batch.id);
      if (!row) this.#rows.set(batch.id, (row = makeRow(batch)));
      row.update(batch);
      const place = before ? before.nextSibling : this.#nodes.list.firstChild;
      if (place !== row.node) this.#nodes.list.insertBefore(row.node, place);
      before = row.node;
    }
    if (data.length) this.#note();
    else if (this.#asked.size) this.#note('No batch fits. ', link('#/', 'Show all'));
    else this.#note('No batches yet. Send one:', el('code', { class: 'block' }, example()));
    const [newest, older] = this.#nodes.pager.children;
    point(newest, this.#asked.has('after') && this.#address({ after: '' }));
    point(older, more && this.#address({ after: last }));
    this.#nodes.pager.hidden = !this.#asked.has('after') && !more;
  }

  /** Arrows go from batch to batch. */
  #move(event) {
    const links = [...this.#nodes.list.querySelectorAll('h2 a')];
    const at = links.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if (at < 0 || to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    links[Math.max(0, Math.min(to, links.length - 1))].focus();
  }

  /** Back from a batch: the focus goes where it came from. */
  focus() {
    const from = this.#rows.get(opened)?.node.querySelector('a');
    (from ?? this.node.querySelector('h1')).focus({ preventScroll: !from });
  }
}

function makeRow(batch) {
  const progress = bar(`Progress of ${plain(batch.id)}`);
  const head = el('p', { class: 'when' });
  const about = el('p', { class: 'labels' });
  const foot = el('p', { class: 'foot' });
  const name = el('a', { href: `#/batches/${encodeURIComponent(batch.id)}`, class: 'id', 'aria-label': plain(batch.id), click: () => { opened = batch.id; } },
    safe(batch.id.slice(0, -8)), safe(batch.id.slice(-8)));
  const node = el('li', { class: 'row' }, el('h2', {}, name), head, about, progress.node, foot);
  let last = '';
  const update = (batch) => {
    const { counts } = batch;
    put(head, since(batch));
    const text = JSON.stringify(batch);
    if (text === last) return;
    last = text;
    put(about, labels(batch));
    progress.update(counts);
    const why = batch.waiting?.length ? [' · waiting: ', safe(batch.waiting.map((why) => why.reason).join(', '))] : [];
    const done = percent(counts.total - counts.pending, counts.total);
    put(foot, el('strong', {}, `${done} %`), ` of ${number(counts.total)} · ${inWords(counts)}`, why);
  };
  return { node, update };
}

const example = () => `curl ${location.origin}/batches -H 'content-type: application/json' -d '
  {"model": "claude-haiku-4-5", "max_tokens": 100, "prompts": ["Say 0", "Say 1"]}'`;
