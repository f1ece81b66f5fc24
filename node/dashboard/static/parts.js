// Small pieces that several views are made of.

import { html, useEffect, useMemo, useState } from './vendor/htm-preact.js';
import { NONE, number, peerId, plain, shortId } from './format.js';

// Explanations of the page's figures; each page fills them in its words.js.
export const WORDS = {};

// Text of unknown peers: it can neither leave its place nor turn its surroundings around.
export const Stranger = ({ text, as = 'span', title }) =>
  html`<${as} class="stranger" dir="auto" title=${title}>${plain(text)}<//>`;

// A question mark that opens a sentence on what a figure means.
export function Help({ of, name }) {
  const said = WORDS[of];
  if (!said) return null;
  return html`<details class="help" name="help">
    <summary title=${said}><span aria-hidden="true">?</span><span class="unseen">Help: ${name}</span></summary>
    <p>${said}</p>
  </details>`;
}

export const Empty = ({ title, children }) =>
  html`<div class="empty"><h3>${title}</h3><p>${children}</p></div>`;

export const Problem = ({ error }) =>
  error ? html`<p class="problem" role="status">Cannot load this part: ${plain(error)}</p>` : null;

// A pattern made of a key: two that look alike are rare, and text cannot imitate it.
export function Pattern({ of }) {
  const hex = /^[0-9a-f]{16,}$/.test(of ?? '') ? of : '0000000000000000';
  const cells = [];
  for (let at = 0; at < 15; at += 1) {
    if (parseInt(hex[at], 16) % 2) continue;
    const [x, y] = [Math.floor(at / 5), at % 5];
    cells.push(`M${x} ${y}h1v1h-1z`, `M${4 - x} ${y}h1v1h-1z`);
  }
  return html`<svg class=${`pattern c${1 + (parseInt(hex.slice(15, 16), 16) % 8)}`} viewBox="0 0 5 5" aria-hidden="true">
    <path d=${cells.join('')} /></svg>`;
}

// Claims of a peer, shown after the id that identifies it: any of them may be false.
export function Told({ of }) {
  const shown = of.name || of.line;
  if (!shown) return null;
  const title = [of.name, of.line, of.model, of.version].filter(Boolean).map(plain).join(' · ');
  return html` <span class="told"><${Stranger} text=${shown} title=${`claims: ${title}`} /></span>`;
}

export const Author = ({ hex, own }) =>
  hex
    ? html`<span class="author" title=${`${peerId(hex)}, key ${plain(hex)}`}><${Pattern} of=${hex} /><code>${shortId(hex)}</code></span>`
    : html`<span class="author">${own ?? NONE}</span>`;

// A share of a whole, beside its number.
export const Bar = ({ value, most = 1 }) =>
  html`<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
    <rect class="bar-back" width="100" height="6" />
    <rect class="bar-fill" width=${100 * Math.min(1, Math.max(0, (value ?? 0) / (most || 1)))} height="6" />
  </svg>`;

export function Sparkline({ values, label }) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return null;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const y = (value) => 22 - (20 * (value - low)) / (high - low || 1);
  const points = known.map((value, at) => `${(100 * at) / (known.length - 1)},${y(value).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}>
    <polyline points=${points.join(' ')} />
  </svg>`;
}

export const total = (counts) => Object.values(counts ?? {}).reduce((sum, count) => sum + count, 0);

export const Refused = ({ refused }) => {
  const reasons = Object.entries(refused ?? {}).filter(([, count]) => count);
  if (!reasons.length) return html`<span>none</span>`;
  return html`<span>${reasons.map(([reason, count]) => `${number(count)} ${plain(reason.replaceAll('_', ' '))}`).join('; ')}</span>`;
};

// A table that can be sorted by its heads and scrolls in itself where it is too wide.
export function Table({ caption, columns, rows, sort, onSort }) {
  const head = (column) => {
    const on = sort?.by === column.key;
    const order = on ? (sort.down ? 'descending' : 'ascending') : undefined;
    const mark = on ? (sort.down ? ' ▾' : ' ▴') : '';
    return html`<th scope="col" class=${column.kind} aria-sort=${order} title=${WORDS[column.word]}>
      ${column.value && onSort
        ? html`<button type="button" onClick=${() => onSort(column.key)}>${column.name}${mark}</button>`
        : column.name}
    </th>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${columns.map(head)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.key}>
        ${columns.map((column) => html`<td class=${column.kind}>${column.show(row)}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

// Rows in the order of a column; what has no value comes last.
export function sorted(rows, columns, { by, down }) {
  const value = columns.find((column) => column.key === by)?.value;
  if (!value) return rows;
  const rank = (row) => value(row) ?? -Infinity;
  return [...rows].sort((a, b) => (rank(a) < rank(b) ? -1 : rank(a) > rank(b) ? 1 : 0) * (down ? -1 : 1));
}

// One of several, as a row of buttons.
export const Choice = ({ label, of, chosen, choose }) =>
  html`<div class="choice" role="group" aria-label=${label}>
    <span class="choice-label" aria-hidden="true">${label}</span>
    ${of.map(([value, name]) => html`<button type="button" key=${value} aria-pressed=${value === chosen}
      onClick=${() => choose(value)}>${name}</button>`)}
  </div>`;

// A choice of the reader's that outlives the page.
export function useKept(name, initial) {
  const [value, set] = useState(() => window.page.kept.get(name) ?? initial);
  return useMemo(
    () => [value, (next) => {
      window.page.kept.set(name, next);
      set(next);
    }],
    [value],
  );
}

export function Theme() {
  const { THEMES, applyTheme } = window.page;
  const [theme, set] = useState(document.documentElement.dataset.theme);
  useEffect(() => {
    const changed = () => set(document.documentElement.dataset.theme);
    window.addEventListener('themechange', changed);
    return () => window.removeEventListener('themechange', changed);
  }, []);
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  return html`<button type="button" class="theme" onClick=${() => applyTheme(next)} title=${`Switch to: ${next}`}>
    theme: ${theme}</button>`;
}
