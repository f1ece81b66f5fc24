// Figures and texts as people read them.

export const NONE = '–';

export const known = (value) => Number.isFinite(value);

// To make a format costs more than to use it a hundred times.
const FORMATS = [0, 1, 2, 3].map((places) =>
  new Intl.NumberFormat('en', { minimumFractionDigits: places, maximumFractionDigits: places }));
const MOMENT = new Intl.DateTimeFormat('en-GB', { dateStyle: 'short', timeStyle: 'medium', hour12: false });

export const number = (value, places = 0) => (known(value) ? FORMATS[places].format(value) : NONE);

export const share = (value) => number(value, 3);

// A number of things; of several rounds together it can be a fraction.
export const count = (value) => number(value, value % 1 ? 1 : 0);

export function signed(value) {
  return known(value) ? `${value < 0 ? '−' : '+'}${number(Math.abs(value), 3)}` : NONE;
}

export const percent = (value) => (known(value) ? `${number(100 * value)} %` : NONE);

// Three digits that mean something, whatever the size.
export function brief(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return number(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1);
  return number(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${number(value, at ? 1 : 0)} ${units[at]}`;
}

export function lapse(seconds) {
  if (!known(seconds)) return NONE;
  const steps = [[86400, 'd'], [3600, 'h'], [60, 'min']];
  const found = steps.find(([size]) => seconds >= 2 * size);
  return found ? `${Math.floor(seconds / found[0])} ${found[1]}` : `${Math.max(0, Math.floor(seconds))} s`;
}

export const ago = (unix) =>
  known(unix) ? `${lapse(Math.max(0, Date.now() / 1000 - unix))} ago` : NONE;

// The maximum that Date can represent is finite.
const LAST = 8e12;
export const moment = (unix) => (known(unix) && Math.abs(unix) < LAST ? MOMENT.format(1000 * unix) : NONE);

// Base58 of a public key behind the head that every peer id of an Ed25519 key has.
const LETTERS = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';
const HEAD = '0x002408011220';
const KEY = /^[0-9a-f]{64}$/;

export function peerId(key) {
  if (!KEY.test(key ?? '')) return plain(key);
  let [value, id] = [BigInt(HEAD + key), ''];
  for (; value; value /= 58n) id = LETTERS[Number(value % 58n)] + id;
  return `1${id}`;
}

// A peer has one name on all pages, whether its id or the key that it signs with is known.
export function shortId(id) {
  if (!id) return NONE;
  const whole = peerId(id);
  return whole.startsWith('12D3Koo') ? whole.slice(8, 16) : whole.slice(0, 8);
}

// Characters that show nothing but do something (controls, overrides of the direction of writing,
// blanks without width, lone surrogates), spelled out: they are what a stranger would forge with.
const ACTIVE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]|\p{Cs}/gu;

export const plain = (text) =>
  String(text ?? '').replace(ACTIVE, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
