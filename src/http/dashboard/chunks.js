// The chunks of a batch, read only while they are looked at.

import { ask, Unreachable } from './api.js';
import { el, moment, number, put, safe, some, status } from './show.js';

const PAGE = 20;

export class Chunks {
  #path; #from = 0; #summary; #list; #earlier; #later; #pager;

  constructor(path) {
    this.#path = `${path}/chunks`;
    this.#summary = el('summary', {});
    this.#list = el('ol', { class: 'things' });
    const turn = (by) => () => { this.#from = Math.max(0, this.#from + by); this.read(); };
    this.#earlier = el('button', { type: 'button', click: turn(-PAGE) }, 'Earlier');
    this.#later = el('button', { type: 'button', click: turn(PAGE) }, 'Later');
    this.#pager = el('p', { class: 'pager' }, this.#earlier, this.#later);
    this.node = el('details', { class: 'chunks', hidden: true, toggle: () => this.read() }, this.#summary, this.#list, this.#pager);
  }

  update({ chunks }) {
    const told = Object.entries(chunks).filter(([, count]) => count).map(([word, count]) => `${number(count)} ${word}`);
    this.node.hidden = !told.length;
    put(this.#summary, el('h2', {}, 'Chunks'), ` ${told.join(', ')}`);
  }

  async read() {
    if (!this.node.open) return;
    try {
      const page = await ask(`${this.#path}?offset=${this.#from}&limit=${PAGE}`);
      put(this.#list, page.chunks.map(item));
      this.#earlier.disabled = this.#from === 0;
      this.#later.disabled = !page.next;
      this.#pager.hidden = this.#from === 0 && !page.next;
    } catch (error) {
      if (!(error instanceof Unreachable)) put(this.#list, el('li', {}, safe(error.message)));
    }
  }
}

function item(chunk) {
  const told = [
    some(chunk.prompts, 'prompt'),
    chunk.succeeded ? `${number(chunk.succeeded)} succeeded` : '',
    chunk.failed ? `${number(chunk.failed)} failed` : '',
    chunk.attempt > 1 ? `attempt ${number(chunk.attempt)}` : '',
  ];
  const at = (word, time) => (time ? [` · ${word} `, moment(time)] : null);
  return el('li', { class: 'thing' },
    el('p', { class: 'meta' }, status(chunk.status), el('span', {}, [chunk.provider, chunk.model, chunk.endpoint].filter(Boolean).flatMap((word) => [safe(word), ' ']))),
    el('p', {}, told.filter(Boolean).join(' · '), at('sent', chunk.submitted_at), at('settled', chunk.settled_at)),
    el('p', { class: 'id soft' }, safe(chunk.id), chunk.provider_batch_id ? [' → ', safe(chunk.provider_batch_id)] : null));
}
