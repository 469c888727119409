// The frame: which view the address names, how it is kept fresh, and what is said when the gateway is away.
//
//   #/                       the list         ?status= ?run= ?metadata.k= ?since= ?after=
//   #/batches/<id>           one batch        ?offset=

import { ask, key, Loop, Problem, Unreachable } from './api.js';
import { Batch } from './batch.js';
import { List } from './list.js';
import { announce, el, link, plain, put, safe } from './show.js';

const find = (id) => document.getElementById(id);
const main = find('main');
let view = null;
let loop = null;
let lastList = '#/';
let lastGood = null; // when the gateway last answered
let away = false;

function route(asked = false) {
  const [path, query = ''] = location.hash.replace(/^#/, '').split(/\?(.*)/s);
  const parameters = new URLSearchParams(query);
  const batch = path.match(/^\/batches\/([\w-]+)$/)?.[1];
  if (batch && view instanceof Batch && view.id === batch) {
    view.turn(parameters);
    return loop.look(true);
  }
  const first = !view && asked !== true; // the browser itself came here
  loop?.stop();
  view?.stop?.();
  if (batch) view = new Batch(batch, parameters, lastList, () => loop.look(true));
  else if (path === '' || path === '/') {
    view = new List(parameters);
    lastList = location.hash || '#/';
  } else view = new Lost();
  document.title = `${view.title} · batchgate`;
  main.replaceChildren(view.node);
  if (!first) {
    scrollTo(0, 0);
    view.focus();
  }
  loop = new Loop((signal) => view.step(signal).then(answered), failed);
  return loop.start();
}

function answered(found) {
  lastGood = new Date();
  if (away) {
    away = false;
    find('trouble').hidden = true;
    announce('The gateway answers again.');
    health.look();
  }
  return found;
}

function failed(error) {
  if (error instanceof Problem && error.status === 401) {
    askForKey(error.message);
    return 'done';
  }
  if (!(error instanceof Unreachable)) throw error; // a fault of this page: for the console
  const box = find('trouble');
  const old = lastGood ? ` What you see is from ${lastGood.toLocaleTimeString()}.` : '';
  const retry = el('button', { type: 'button', class: 'plain', click: () => loop.look() }, 'Try now');
  if (box.hidden) announce(`${error.message} Trying again.`);
  put(box, safe(error.message), ` Trying again every few seconds.${old} `, retry);
  box.hidden = false;
  if (!away) {
    away = true;
    health.look();
  }
  return 'still';
}

/** The gateway wants to know who asks. */
function askForKey(why) {
  loop?.stop();
  view?.stop?.();
  view = null;
  const input = el('input', { type: 'password', name: 'key', id: 'key', autocomplete: 'off', spellcheck: 'false', required: true, 'aria-describedby': 'why' });
  const form = el('form', {
    class: 'key',
    submit: (event) => {
      event.preventDefault();
      const value = input.value.trim();
      if (!/^[\x21-\x7e]+$/.test(value)) return input.setCustomValidity('A key is made of visible ASCII characters, without spaces.'), input.reportValidity();
      key.set(value);
      find('forget').hidden = false;
      route(true);
    },
    input: () => input.setCustomValidity(''),
  },
  el('h1', { tabindex: -1 }, 'Who is asking?'),
  el('p', { id: 'why' }, 'This gateway wants a key. ', key.get() ? safe(why) : 'It stays in this tab, and is forgotten when the tab is closed.'),
  el('label', { for: 'key' }, 'Key'), input,
  el('button', { type: 'submit', class: 'strong' }, 'Go on'));
  main.replaceChildren(form);
  announce('This gateway wants a key.');
  input.focus();
}

/** An address that names nothing. */
class Lost {
  title = 'Not here';
  node = el('div', {}, el('h1', { tabindex: -1 }, 'Not here'), el('p', { class: 'empty' }, 'This page has no such place. ', link('#/', 'All batches')));
  async step() { return 'done'; }
  focus() { this.node.querySelector('h1').focus(); }
}

let healthSaid = '';
const tell = (state, text) => {
  find('health').dataset.state = state;
  find('health').replaceChildren(el('span', {}, text));
  const found = healthSaid === text ? 'still' : 'moving';
  healthSaid = text;
  return found;
};
const health = new Loop(
  async (signal) => {
    await ask('/readyz', { signal });
    if (away) loop?.look();
    return tell('ready', 'ready');
  },
  (error) => tell('away', error.cause ? 'unreachable' : `not ready: ${plain(error.message)}`));

addEventListener('hashchange', () => route());
addEventListener('keydown', (event) => {
  const typing = event.target.closest?.('input, select, textarea');
  if (event.key !== 'Escape' || event.defaultPrevented || document.querySelector('dialog[open]')) return;
  if (typing) typing.blur();
  else if (view instanceof Batch) location.hash = lastList;
});
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
find('forget').hidden = !key.get();
find('forget').addEventListener('click', () => {
  key.set('');
  location.hash = '#/';
  location.reload();
});
health.start();
route();
