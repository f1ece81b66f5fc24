// The swarm as a whole: how many, how well, what was refused, and what its nodes say of themselves.

import { html } from './shared/vendor/htm-preact.js';
import { known, lapse, moment, number, percent, plain, share } from './shared/format.js';
import { Author, Bar, Empty, Help, Stranger, Table, WORDS, total } from './shared/parts.js';
import { Join } from './join.js';
import { Timeline } from './timeline.js';
import { reason } from './words.js';

const DAY = 86400;

// The sum of a history column over the last day; null if nothing was measured.
function today({ time }, values, now) {
  const measured = values.filter((value, at) => known(value) && time[at] >= now - DAY);
  return measured.length ? measured.reduce((sum, value) => sum + value, 0) : null;
}

function Figures({ swarm, history }) {
  const { now, total: all, models } = swarm;
  const figures = [
    ['nodes', 'nodes now', number(now.nodes), now.estimated === null ? null : `about ${number(now.estimated)} in total`],
    ['bootstrap', 'new or bootstrap nodes', number(now.bootstrap)],
    ['link', 'direct, relayed', `${number(now.direct)}, ${number(now.relayed)}`],
    ['models', 'models', number(models.filter(({ model }) => model !== null).length)],
    ['offered', 'offered groups', number(now.groups_offered)],
    ['verified', 'verified today', number(today(history, history.verified, swarm.time)), `${number(all.verified)} in total`],
    ['refusals', 'refused today', number(today(history, history.refused, swarm.time)), `${number(total(all.refused))} in total`],
    ['authors', 'authors in total', number(all.authors)],
  ];
  return html`<dl class="figures">${figures.map(([word, name, value, more]) => html`<div key=${word} title=${WORDS[word]}>
    <dt>${name}</dt><dd>${value}${more ? html` <small>${more}</small>` : null}</dd></div>`)}</dl>`;
}

// A mean between 0 and 1 with its interval.
const Mean = ({ reward, low, high }) =>
  html`<span class="gain">${share(reward)}<svg viewBox="0 0 100 12" aria-hidden="true"><path class="zero" d="M2 6h96" />
      ${known(low) && known(high) ? html`<path class="interval" d=${`M${2 + 96 * low} 6H${2 + 96 * high}`} />` : null}
      <circle cx=${2 + 96 * reward} cy="6" r="3" /></svg>
    <small>${known(low) && known(high) ? `[${share(low)}, ${share(high)}]` : 'too few for an interval'}</small></span>`;

const REWARDS = [
  { key: 'env', name: 'family', show: (row) => html`<${Stranger} text=${row.env} />` },
  { key: 'level', name: 'level', kind: 'figure', show: (row) => number(row.level) },
  { key: 'groups', name: 'groups', word: 'verified', kind: 'figure', show: (row) => number(row.groups) },
  { key: 'reward', name: 'verified reward, 95 % interval', word: 'rewards', show: (row) => html`<${Mean} ...${row} />` },
];

function Rewards({ rewards, by }) {
  const rows = rewards.map((row) => ({ ...row, key: `${row.level} ${row.env}` }));
  return html`<section><h3 class="title">Reward of the last 24 hours <${Help} of="rewards" name="this reward" /></h3>
    <p class="hint">Verified means that ${by} sampled, fetched and scored the group. Other groups are not part
      of these rewards.</p>
    ${rows.length
      ? html`<${Table} caption="Verified reward by family and level" columns=${REWARDS} rows=${rows} />`
      : html`<${Empty} title="No verified groups in the last 24 hours">When nodes offer groups, the observer checks a
        sample of them and shows the rewards here.<//>`}</section>`;
}

// Names with how many there are of each, the most first.
function Counts({ title, word, name, of, unit = 'nodes', none }) {
  const most = Math.max(...of.map(([, count]) => count));
  const rows = [...of].sort((a, b) => b[1] - a[1]).map(([key, count]) => ({ key, count }));
  const columns = [
    { key: 'name', name, show: ({ key }) => html`<${Stranger} text=${key} />` },
    { key: 'count', name: unit, kind: 'figure', show: ({ count }) => html`${number(count)} <${Bar} value=${count} most=${most} />` },
  ];
  return html`<section><h3 class="title">${title} <${Help} of=${word} name=${title.toLowerCase()} /></h3>
    ${rows.length ? html`<${Table} caption=${title} ...${{ columns, rows }} />` : html`<p class="hint">${none}</p>`}</section>`;
}

const told = (rows, field) => rows.map((row) => [row[field] ?? 'unknown', row.nodes]);

function Facts({ swarm: { swarm, observer, since } }) {
  return html`<section class="card"><h3>This swarm</h3><dl class="facts">
    <div><dt>id</dt><dd><code class="long">${plain(swarm.id)}</code></dd></div>
    <div><dt>creator</dt><dd><${Author} hex=${swarm.founder} /></dd></div>
    <div><dt>created</dt><dd>${moment(swarm.created)}</dd></div>
    <div><dt>time slot</dt><dd>${lapse(swarm.epoch_seconds)}</dd></div>
    <div><dt>tasks</dt><dd><ul>${swarm.families.map(({ name, levels }) => html`<li key=${name}><${Stranger} text=${name} />
      <small> ${number(levels)} ${levels === 1 ? 'level' : 'levels'}</small></li>`)}</ul></dd></div>
    <div><dt>observed by</dt><dd>${observer.kind === 'bootstrap' ? 'its bootstrap node' : 'an observer'} <code class="long">${plain(observer.peer_id)}</code>
      ${' '}since ${moment(since)}</dd></div></dl></section>`;
}

export const observerOf = ({ observer }) => (observer.kind === 'bootstrap' ? 'the bootstrap node that serves this page' : 'the observer that serves this page');

export function Overview({ swarm, history }) {
  const { now, total: all } = swarm;
  const refused = Object.entries(all.refused).filter(([, count]) => count).map(([name, count]) => [reason(name), count]);
  const checked = all.checked ? ` ${percent(all.verified / all.checked)} of ${number(all.checked)} checked groups passed.` : '';
  return html`<${Join} addresses=${swarm.join} /><${Figures} ...${{ swarm, history }} />
    ${now.nodes ? null : html`<${Empty} title="No nodes yet">To add the first node, run the command above on any machine.
      It appears here within two time slots (${lapse(2 * swarm.swarm.epoch_seconds)}).<//>`}
    <h3 class="title">Over time</h3><${Timeline} ...${{ history, swarm }} />
    <${Rewards} rewards=${swarm.rewards} by=${observerOf(swarm)} />
    <div class="columns"><${Counts} title="Refusals" word="refusals" name="reason" unit="groups" of=${refused}
        none=${`No refused groups.${checked}`} /><${Facts} swarm=${swarm} /></div>
    <p class="hint said">Names, lines, models and versions are claims of their owners. They are not verified.</p>
    <div class="columns"><${Counts} title="Models" word="models" name="model" of=${told(swarm.models, 'model')} none="No node reports its model." />
      <${Counts} title="Versions" word="versions" name="version" of=${told(swarm.versions, 'version')} none="No node reports its version." /></div>`;
}
