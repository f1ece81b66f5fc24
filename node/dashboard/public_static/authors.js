// The authors of the swarm: a list to sort and to search, and a page for each.

import { html, useMemo, useState } from './shared/vendor/htm-preact.js';
import { ago, moment, number, plain, share, shortId } from './shared/format.js';
import { Chart } from './shared/chart.js';
import { Bar, Empty, Pattern, Stranger, Table, sorted, total } from './shared/parts.js';
import { DAYS } from './timeline.js';
import { reason } from './words.js';

const DAY = 86400;
const AT_ONCE = 100;
const lower = (text) => (text ?? '').toLowerCase();
const kind = ({ bootstrap, link }) => [bootstrap && 'new or bootstrap node', link].filter(Boolean).map(plain).join(', ') || 'not connected';
const Seen = ({ at }) => html`<time title=${moment(at)}>${ago(at)}</time>`;

const figure = (key, name, word, of, show = (row) => number(of(row))) => ({ key, name, word, kind: 'figure', value: of, show });
const text = (key, name, word) => ({
  key, name, word, value: (row) => lower(row[key]),
  show: (row) => (row[key] === null ? html`<small>unknown</small>` : html`<${Stranger} text=${row[key]} />`),
});
const COLUMNS = [
  { key: 'name', name: 'author', word: 'author', value: (row) => lower(row.name),
    show: (row) => html`<a class="author" href=${`#/author/${row.author}`}><${Pattern} of=${row.author} />
      ${row.name === null ? null : html`<${Stranger} text=${row.name} />`} <code title=${row.author}>${shortId(row.author)}</code></a>` },
  figure('verified', 'verified', 'verified', (row) => row.verified),
  figure('refused', 'refused', 'refusals', (row) => total(row.refused)),
  figure('offered', 'offered', 'offered', (row) => row.offered),
  figure('step', 'policy step', 'step', (row) => row.policy_step),
  text('model', 'model', 'models'),
  text('version', 'version', 'versions'),
  { key: 'kind', name: 'connection', word: 'link', value: kind, show: kind },
  figure('last', 'last seen', 'last', (row) => row.last, (row) => html`<${Seen} at=${row.last} />`),
];

// Whether what is looked for is in a name, or begins a key or an id.
const fits = (asked) => ({ name, author, peer_id: id }) =>
  lower(plain(name)).includes(asked) || author.startsWith(asked) || lower(id).includes(asked) || lower(shortId(id)).startsWith(asked);

export function Authors({ authors: { authors, more } }) {
  const [sort, order] = useState({ by: 'verified', down: true });
  const [asked, ask] = useState('');
  const [most, show] = useState(AT_ONCE);
  const rows = useMemo(
    () => sorted(authors.filter(fits(lower(asked.trim()))), COLUMNS, sort),
    [authors, asked, sort],
  );
  // A row stays in its place and gets other contents, which is quicker than to make another.
  const seen = rows.slice(0, most).map((row, at) => ({ ...row, key: at }));
  const onSort = (by) => order((was) => ({ by, down: was.by === by ? !was.down : by !== 'name' }));
  if (!authors.length) {
    return html`<${Empty} title="No authors yet">An author appears here with its first shared group.<//>`;
  }
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>name or key <input type="search" maxlength="100" value=${asked} onInput=${({ target }) => ask(target.value)} /></label>
      <p class="hint" role="status">${number(rows.length)} of ${number(authors.length)} authors${
        more ? `; ${number(more)} more with fewer verified groups are not listed` : ''}</p></form>
    <p class="hint said">Names, models and versions are claims of their owners. They are not verified. The pattern is made
      from the key and cannot be imitated.</p>
    ${rows.length
      ? html`<${Table} caption="Authors" columns=${COLUMNS} rows=${seen} ...${{ sort, onSort }} />
        ${rows.length > most ? html`<p class="said"><button type="button" class="more" onClick=${() => show(most + AT_ONCE)}>
          Show ${number(Math.min(AT_ONCE, rows.length - most))} more</button></p>` : null}`
      : html`<${Empty} title="No authors match">Search for the start of a key or for any part of a name.<//>`}`;
}

function Days({ days }) {
  const [x, groups, reward] = useMemo(() => {
    const column = (at) => days.map((day) => day[at]);
    const line = (label, c, values, dash) => ({ label, c, values, dash, points: true });
    return [
      column(0).map((unix) => unix / DAY),
      [line('offered', 1, column(1)), line('verified', 3, column(2), 'dashed')],
      [line('verified reward', 2, column(3))],
    ];
  }, [days]);
  if (!days.length) return html`<p class="hint">No daily figures yet.</p>`;
  return html`<div class="charts"><${Chart} id="days" title="Groups per day" along=${DAYS} x=${x} lines=${groups} show=${(v) => number(v)} />
    <${Chart} id="reward" title="Verified reward by day" along=${DAYS} x=${x} lines=${reward} show=${share} /></div>`;
}

const Card = ({ title, rows, none, kind = 'facts' }) =>
  html`<section class="card"><h3>${title}</h3>${rows.length
    ? html`<dl class=${kind}>${rows.map(([name, value]) => html`<div key=${name}><dt><${Stranger} text=${name} /></dt><dd>${value}</dd></div>`)}</dl>`
    : html`<p class="hint">${none}</p>`}</section>`;

export function AuthorPage({ authors: { authors, more }, hex }) {
  const found = authors.find(({ author }) => author === hex);
  const back = html`<p><a href="#/authors">All authors</a></p>`;
  if (!found) {
    return html`<${Empty} title="This author is not listed">${more
      ? 'The list has only the authors with the most verified groups, or no group of this author was ever seen.'
      : 'No group of this author was ever seen, or not for a long time.'}<//>${back}`;
  }
  const facts = [
    ['key', html`<code class="long">${plain(found.author)}</code>`],
    ['peer id', html`<code class="long">${plain(found.peer_id)}</code>`],
    ['model', found.model === null ? 'unknown' : html`<${Stranger} text=${found.model} />`],
    ['version', found.version === null ? 'unknown' : html`<${Stranger} text=${found.version} />`],
    ['connection', kind(found)],
    ['policy step', number(found.policy_step)],
    ['first seen', moment(found.first)],
    ['last seen', html`${moment(found.last)} (<${Seen} at=${found.last} />)`],
  ];
  const refused = Object.entries(found.refused).filter(([, count]) => count).map(([name, count]) => [reason(name), number(count)]);
  const groups = [['offered', number(found.offered)], ['checked', number(found.checked)], ['verified', number(found.verified)], ...refused];
  const rewards = Object.entries(found.rewards).map(([env, mean]) => [env, html`${share(mean)} <${Bar} value=${mean} />`]);
  return html`<article class="person"><header><${Pattern} of=${found.author} />
      <div><h3>${found.name === null ? shortId(found.author) : html`<${Stranger} text=${found.name} />`}</h3>
        ${found.line === null ? null : html`<${Stranger} as="p" text=${found.line} />`}</div></header>
    <p class="hint said">Name, line, model and version are claims of the owner. They are not verified.</p>
    <div class="columns"><${Card} title="Author" rows=${facts} /><${Card} title="Groups and refusals" kind="facts counts" rows=${groups} />
      <${Card} title="Verified reward by family" kind="facts counts" rows=${rewards} none="No verified groups of this author yet." /></div>
    <h3 class="title">The last 30 days</h3><${Days} days=${found.days} />${back}</article>`;
}
