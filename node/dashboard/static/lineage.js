// The authors whose groups trained the policy, and the gain from each.

import { html, useMemo, useState } from './vendor/htm-preact.js';
import { Chart } from './chart.js';
import { ago, count, number, peerId, percent, share, shortId, signed } from './format.js';
import { Author, Bar, Empty, Help, Problem, Refused, Table, Told, sorted, total } from './parts.js';
import { useAnswer, useStore } from './store.js';

// Peers in the order of what they gave, so that their colours stay.
function composed({ own = [], authors = {}, other = [] }) {
  const sum = (values) => values.reduce((all, value) => all + (value ?? 0), 0);
  const named = Object.entries(authors).sort((a, b) => sum(b[1]) - sum(a[1]));
  return [
    { label: 'local', author: null, c: 1, values: own },
    ...named.map(([author, values], at) => ({
      label: shortId(author), author, help: peerId(author), c: 2 + (at % 7), values,
    })),
    ...(sum(other) ? [{ label: 'others', author: null, c: 8, values: other }] : []),
  ];
}

export function Composition({ view, pick }) {
  const { data, error } = useAnswer('updates?since=0&points=1000', 4000);
  const lines = useMemo(() => composed(data ?? {}), [data]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data?.rounds.length) return null;
  return html`<${Chart} id="composition" title="Groups per update, by author" stack lines=${lines}
    x=${data.rounds} smooth=${view?.smooth ?? 1} show=${count}
    pick=${pick && ((at) => pick(Math.round(data.rounds[at])))} />`;
}

// The update of one round, asked for without the rounds before it and without thinning.
function Update({ round }) {
  const { round: latest } = useStore();
  const points = Math.min(4000, Math.max(2, latest - round + 1));
  const { data, error } = useAnswer(`updates?since=${round - 1}&points=${points}`, 60000);
  const { data: kept } = useAnswer(`groups?limit=1&round=${round}`, 60000);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data?.rounds.length) return null;
  const parts = composed(data).filter(({ values }) => values[0]);
  const all = parts.reduce((sum, { values }) => sum + values[0], 0);
  return html`<section class="card update" aria-live="polite"><h3>Update of round ${number(Math.round(data.rounds[0]))}</h3>
    ${parts.length ? null : html`<p>No groups. The round used no group, or its record is not stored.</p>`}
    <ul>${parts.map(({ label, author, values }) => html`<li key=${label}>
      <${Author} hex=${author} own=${label} /> <b>${count(values[0])}</b> of ${count(all)}
      <${Bar} value=${values[0]} most=${all} />
      ${author ? html`<a href=${`#/rollouts?author=${author}`}>its groups</a>` : null}</li>`)}</ul>
    ${kept?.groups.length ? html`<p><a href=${`#/rollouts?round=${round}`}>stored groups of this round</a></p>` : null}</section>`;
}

const REACH = 1.1;

// A gain with its interval, and where 0 is.
function Gain({ usefulness, most }) {
  if (!usefulness) return html`<span>not known yet</span>`;
  const { gain, low, high } = usefulness;
  const x = (value) => 50 + (48 * Math.max(-REACH, Math.min(REACH, value / (most || 1)))) / REACH;
  return html`<span class="gain"><svg viewBox="0 0 100 12" aria-hidden="true">
      <path class="zero" d="M50 0v12" /><path class="interval" d=${`M${x(low)} 6H${x(high)}`} />
      <circle cx=${x(gain)} cy="6" r="3" /></svg>
    ${signed(gain)} <small>[${signed(low)}, ${signed(high)}]</small></span>`;
}

function columns(most) {
  return [
    { key: 'author', name: 'peer', word: 'author', show: (row) => html`<${Author} hex=${row.author} /><${Told} of=${row} />` },
    { key: 'used', name: 'used', word: 'used', kind: 'figure', value: (row) => row.used, show: (row) => number(row.used) },
    { key: 'share', name: 'share of updates', word: 'share', kind: 'figure', value: (row) => row.share,
      show: (row) => html`${percent(row.share)} <${Bar} value=${row.share} />` },
    { key: 'gain', name: 'usefulness', word: 'usefulness', kind: 'figure', value: (row) => row.usefulness?.gain,
      show: (row) => html`<${Gain} usefulness=${row.usefulness} most=${most} />` },
    { key: 'admitted', name: 'admitted', word: 'admitted', kind: 'figure', value: (row) => row.admitted, show: (row) => number(row.admitted) },
    { key: 'standing', name: 'reputation', word: 'reputation', kind: 'figure', value: (row) => row.standing, show: (row) => share(row.standing) },
    { key: 'refused', name: 'refused', word: 'refused', value: (row) => total(row.refused), show: (row) => html`<${Refused} refused=${row.refused} />` },
    { key: 'strikes', name: 'penalties', word: 'penalties', kind: 'figure', value: (row) => row.strikes,
      show: (row) => html`${count(row.strikes)}${row.banned ? html` <b class="bad">banned</b>` : ''}` },
    { key: 'seen', name: 'last seen', word: 'seen', kind: 'figure', value: (row) => row.seen, show: (row) => ago(row.seen) },
  ];
}

export function Authors({ first = 'used', caption }) {
  const { data, error } = useAnswer('authors', 4000);
  const [sort, order] = useState({ by: first, down: true });
  const authors = data?.authors ?? [];
  const most = Math.max(0, ...authors.flatMap(({ usefulness: u }) => (u ? [Math.abs(u.low), Math.abs(u.high)] : [])));
  const all = columns(most);
  const onSort = (by) => order((was) => ({ by, down: was.by === by ? !was.down : true }));
  if (error) return html`<${Problem} error=${error} />`;
  if (data && !authors.length) {
    return html`<${Empty} title="No groups from peers yet">A node without peers learns from local groups. To add peers, run
      swarm-node join --peers with the address of a peer, or with --lan on a local network.<//>`;
  }
  const rows = sorted(authors.map((author) => ({ ...author, key: author.author })), all, sort);
  return html`<${Table} caption=${caption} columns=${all} ...${{ rows, sort, onSort }} />`;
}

export function Lineage() {
  const { round: latest } = useStore();
  const [round, pick] = useState(null);
  if (!latest) {
    return html`<${Empty} title="No updates yet">After the first update, this view shows the authors of its groups.<//>`;
  }
  return html`<div class="lineage"><${Composition} pick=${pick} />
      <form class="filters" onSubmit=${(event) => event.preventDefault()}><label>update of round
        <input type="number" min="1" max=${latest} value=${round ?? latest}
          onChange=${({ target }) => pick(Math.min(latest, Math.max(1, Number(target.value) || latest)))} /></label>
        <p class="hint">Click on the chart or type a round.</p></form>
      <${Update} round=${round ?? latest} /></div>
    <h3 class="title">Peers <${Help} of="usefulness" name="usefulness" /></h3><${Authors} caption="Peers by groups in updates" />`;
}
