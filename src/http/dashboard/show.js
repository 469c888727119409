// Turns values into nodes. What the API says becomes text nodes and never markup; see `safe`.

import { now } from './api.js';

/** An element. Attributes that are functions become listeners; null, undefined and false are left out. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') node.addEventListener(attribute, value);
    else node.setAttribute(attribute, value === true ? '' : value);
  }
  node.append(...present(children));
  return node;
}

const present = (children) => children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);

/** Gives `node` these children, but keeps those it has the like of: what has the focus keeps it. */
export function put(node, ...children) {
  const wanted = present(children).map((child) => (child instanceof Node ? child : new Text(child)));
  wanted.forEach((child, n) => {
    const old = node.childNodes[n];
    if (!old) node.append(child);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (node.childNodes.length > wanted.length) node.lastChild.remove();
}

/** A link within this page. */
export const link = (href, ...children) => el('a', { href: href || null }, ...children);

/** A link without a place to go stays where it is, for the focus that may be on it. */
export function point(link, href) {
  if (href) link.setAttribute('href', href);
  else link.removeAttribute('href');
  link.setAttribute('aria-disabled', String(!href));
  link.tabIndex = href ? 0 : -1;
}

// Controls, format characters (bidi overrides, zero widths), separators, lone surrogates, and what is no character.
// Joiners stay: scripts and emoji need them.
const ODD = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const named = (odd) => `U+${odd.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`;
const STEP = 20_000; // characters of a long text shown at a time

/** Plain text for a place where nodes cannot go (a title, an announcement): short, and with odd characters named. */
export const plain = (value) => cut(String(value), 200).replace(ODD, named);

const cut = (text, limit) => {
  if (text.length <= limit) return text;
  const end = /[\ud800-\udbff]/.test(text[limit - 1]) ? limit - 1 : limit; // no half characters
  return `${text.slice(0, end)}…`;
};

/**
 * A stranger's text, inert: isolated from the direction of what is around it, with odd characters visible by name.
 * `lines` keeps line ends and tabs.
 */
export function safe(value, { limit = 300, lines = false } = {}) {
  const node = el('bdi');
  fill(node, cut(String(value), limit), lines);
  return node;
}

function fill(node, text, lines) {
  let from = 0;
  for (const { 0: odd, index } of text.matchAll(ODD)) {
    if (lines && (odd === '\n' || odd === '\t')) continue;
    node.append(text.slice(from, index), el('span', { class: 'odd' }, named(odd)));
    from = index + odd.length;
  }
  node.append(text.slice(from));
}

/** A long text: its beginning, and a button for more. */
export function long(value, limit = 1_200) {
  const text = String(value);
  const box = el('div', { class: 'says' });
  const show = (upTo) => {
    const node = safe(text, { limit: upTo, lines: true });
    if (text.length <= upTo) return box.replaceChildren(node);
    const more = el('button', { type: 'button', class: 'plain', click: () => { show(upTo + STEP); box.focus(); } },
      `Show more of ${number(text.length)} characters`);
    box.replaceChildren(node, more);
  };
  box.tabIndex = -1;
  show(limit);
  return box;
}

const figures = new Intl.NumberFormat('en');
export const number = (value) => (Number.isFinite(value) ? figures.format(value) : '–');
export const some = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

const UNITS = [['day', 86_400], ['h', 3_600], ['min', 60], ['s', 1]];

/** `3 min`, `2 h`, `1 day`, `5 days`; days are rounded. */
export function span(seconds) {
  const [unit, size] = UNITS.find(([, size]) => seconds >= size) ?? UNITS[3];
  const count = Math.max(0, Math[unit === 'day' ? 'round' : 'floor'](seconds / size));
  return `${number(count)} ${unit}${unit === 'day' && count !== 1 ? 's' : ''}`;
}

/** A moment, told from now by the gateway's clock; the exact time is its title. */
export function moment(text, before = 'in ') {
  const at = Date.parse(text);
  if (Number.isNaN(at)) return safe(text ?? '–');
  const ago = (now() - at) / 1_000;
  const told = Math.abs(ago) < 5 ? 'just now' : ago > 0 ? `${span(ago)} ago` : `${before}${span(-ago)}`;
  return el('time', { datetime: text, title: new Date(at).toLocaleString() }, told);
}

/** How long it has been so. */
const age = (text) => el('time', { datetime: text }, span((now() - Date.parse(text)) / 1_000));

/** What becomes of results: in the order of the bar. */
export const SHARES = [
  ['cached', (counts) => counts.cached],
  ['joined', (counts) => counts.joined],
  ['paid', (counts) => counts.succeeded - counts.cached - counts.joined],
  ['failed', (counts) => counts.failed],
  ['canceled', (counts) => counts.canceled],
  ['expired', (counts) => counts.expired],
  ['pending', (counts) => counts.pending],
];

/** Shares other than none, in words: `20 cached, 3 failed`. */
export const inWords = (counts) =>
  SHARES.map(([name, of]) => [name, of(counts)]).filter(([, n]) => n > 0).map(([name, n]) => `${number(n)} ${name}`).join(', ');

/** Whole percents, never 100 before the end. */
export const percent = (part, whole) => (part >= whole ? 100 : Math.min(99, Math.floor((part / whole) * 100)));

/** A bar of shares. */
export function bar(label) {
  const parts = SHARES.map(([name, of]) => ({ node: el('span', { class: `share ${name}` }), of }));
  const node = el('div', { class: 'bar', role: 'progressbar', 'aria-label': label, 'aria-valuemin': 0 }, parts.map((part) => part.node));
  const update = (counts) => {
    const done = counts.total - counts.pending;
    for (const part of parts) {
      part.node.style.flexGrow = part.of(counts);
      part.node.hidden = !(part.of(counts) > 0);
    }
    node.setAttribute('aria-valuemax', counts.total);
    node.setAttribute('aria-valuenow', done);
    node.setAttribute('aria-valuetext', `${percent(done, counts.total)} % done: ${inWords(counts)}`);
  };
  return { node, update };
}

/** A status as a word with a mark. */
export const status = (word) => el('span', { class: 'status', 'data-status': word }, safe(word));

/** Since when it is what it is. */
export const since = (batch) => (batch.ended_at ? [status(batch.status), ' ', moment(batch.ended_at)] : [status(batch.status), ', sent ', moment(batch.created_at)]);

/** Run and metadata, as small labels. */
export const labels = (batch) => [
  batch.run ? el('span', { class: 'label' }, el('span', { class: 'of' }, 'run '), safe(batch.run, { limit: 80 })) : null,
  ...Object.entries(batch.metadata ?? {}).map(([name, value]) =>
    el('span', { class: 'label' }, el('span', { class: 'of' }, safe(name, { limit: 40 }), ' '), safe(value, { limit: 80 }))),
];

/** Why nothing moves. */
export const reasons = (waiting) => waiting.map((why) =>
  el('li', {},
    el('strong', {}, safe(why.reason)), ` ${some(why.prompts, 'prompt')}, for `, age(why.since),
    why.detail ? el('span', { class: 'detail' }, safe(why.detail, { limit: 600 })) : null));

let speak = 0;
/** For those who listen; the last of several words in a short time is said. */
export function announce(text) {
  clearTimeout(speak);
  speak = setTimeout(() => { document.getElementById('live').textContent = plain(text); }, 150);
}

/** Asks in a window of its own; true if yes. Escape is no. */
export function confirmed(title, text, yes) {
  return new Promise((settle) => {
    const box = el('dialog', { 'aria-labelledby': 'asked', close: () => { box.remove(); settle(box.returnValue === 'yes'); } },
      el('h2', { id: 'asked' }, title), el('p', {}, text),
      el('p', { class: 'choices' },
        el('button', { type: 'button', autofocus: true, click: () => box.close('no') }, 'Leave it'),
        el('button', { type: 'button', class: 'strong', click: () => box.close('yes') }, yes)));
    document.body.append(box);
    box.showModal();
  });
}
