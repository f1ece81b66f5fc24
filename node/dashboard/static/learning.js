// Whether the node learns, by round.

import { html, useMemo } from './vendor/htm-preact.js';
import { Chart } from './chart.js';
import { brief, bytes, number, percent, plain, share } from './format.js';
import { Composition } from './lineage.js';
import { Choice, Empty, Help, Problem, WORDS, useKept } from './parts.js';
import { useAnswer, useStore } from './store.js';

const PHASES = ['generate', 'wait', 'verify', 'publish', 'mix', 'update', 'evaluate', 'checkpoint', 'idle'];
const SMOOTHING = [['1', 'off'], ['5', '5'], ['20', '20'], ['100', '100']];
const DASHES = [undefined, 'dashed', 'dotted'];
const FEW_ROUNDS = 60; // up to here each measured reward has its dot
const SMALL = 120;
const MOST_FAMILIES = 24;

const line = (of, label, c, more) => ({ of, label, c, ...more });

const BEFORE = [
  { id: 'reward', title: 'Reward', show: share, lines: [
    line('reward_local', 'local', 1), line('reward_external', 'peers', 2, { dash: 'dashed' }),
    line('reward_eval', 'held-out', 3, { points: true })] },
];
const AFTER = [
  { id: 'informative', title: 'Informative groups', show: percent, lines: [
    line('informative_local', 'local groups', 1), line('unproven_share', 'unproven peers', 2, { dash: 'dashed' }),
    line('author_share', 'largest peer', 3, { dash: 'dotted' })] },
  { id: 'entropy', title: 'Entropy, nats', lines: [line('entropy', 'entropy', 1)] },
  { id: 'length', title: 'Tokens per completion', lines: [line('mean_length', 'length', 1)] },
  { id: 'clip', title: 'Clipped, masked, truncated', show: percent, lines: [
    line('clip_fraction', 'clipped', 1), line('masked_fraction', 'masked', 2, { dash: 'dashed' }),
    line('truncated', 'truncated', 3, { dash: 'dotted' })] },
  { id: 'ahead', title: 'Peer reward advantage', lines: [
    line('peer_advantage', 'advantage', 2), line('at_bound', 'tokens at their limit', 1, { dash: 'dashed' })] },
  { id: 'cost', title: 'Time per group, s', lines: [
    line('cost_local', 'informative local', 1), line('cost_external', 'peers', 2, { dash: 'dashed' })] },
];
const LAST = [
  { id: 'speed', title: 'Throughput, tokens/s', show: (v) => number(v), lines: [line('tokens_per_s', 'tokens/s', 1)] },
  { id: 'memory', title: 'Memory, MB', show: (v) => number(v), lines: [line('rss_mb', 'memory', 1)] },
  { id: 'pool', title: 'Replay buffer', show: (v) => number(v), lines: [
    line('pool_groups', 'in the buffer', 1), line('external_wanted', 'limit per update', 2, { dash: 'dashed' })] },
  { id: 'loss', title: 'Loss and gradient', lines: [
    line('loss', 'loss', 1), line('grad_norm', 'gradient norm', 2, { dash: 'dashed' })] },
  { id: 'gap', title: 'Train-inference mismatch', lines: [line('logprob_mismatch', 'mismatch', 4)] },
  { id: 'traffic', title: 'Traffic', show: bytes, lines: [
    line('bytes_in', 'in', 1), line('bytes_out', 'out', 2, { dash: 'dashed' })] },
];

// Columns of an earlier release may lack one: then nothing was measured.
const column = (columns, name) => columns[name] ?? columns.round.map(() => null);

function Lines({ chart, columns, view }) {
  const lines = useMemo(
    () => chart.lines.map((each) => ({ ...each, values: column(columns, each.of) })),
    [columns],
  );
  return html`<${Chart} id=${chart.id} title=${chart.title} show=${chart.show ?? brief} lines=${lines}
    x=${columns.round} times=${columns.time} ...${view} />`;
}

function Time({ columns, view }) {
  const lines = useMemo(() => PHASES.flatMap((phase, at) => {
    const values = columns.seconds[phase];
    return values ? [{ label: phase, c: (at % 8) + 1, values }] : [];
  }), [columns]);
  return html`<${Chart} id="time" title="Time per round, s" stack lines=${lines} x=${columns.round}
    times=${columns.time} smooth=${view.smooth} />`;
}

// The levels of one family on the rounds of any of them.
function byLevel(levels) {
  const rounds = [...new Set(levels.flatMap((each) => each.rounds))].sort((a, b) => a - b);
  const place = new Map(rounds.map((round, at) => [round, at]));
  const few = rounds.length <= FEW_ROUNDS;
  const lines = levels.map(({ level, rounds: own, reward }, at) => {
    const values = Array(rounds.length).fill(null);
    own.forEach((round, i) => {
      values[place.get(round)] = reward[i];
    });
    const dash = DASHES[Math.floor(at / 8) % DASHES.length];
    return { label: `level ${level}`, c: (at % 8) + 1, dash, points: few, sparse: true, values };
  });
  return { rounds, lines };
}

// A small chart for each family, all on one scale, so that many levels stay readable.
function byFamily(levels) {
  const families = new Map();
  for (const each of levels) families.set(each.env, [...(families.get(each.env) ?? []), each]);
  const ordered = (own) => own.sort((a, b) => a.level - b.level);
  return [...families].map(([env, own]) => ({ env, ...byLevel(ordered(own)) }));
}

function Families({ view }) {
  const { data, error } = useAnswer('levels', 5000);
  const families = useMemo(() => byFamily(data?.families ?? []), [data]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!families.length) return null;
  return html`<section id="families"><h3 class="title">Reward by family and level <${Help} of="families" name="these charts" /></h3>
    <div class="charts small">${families.slice(0, MOST_FAMILIES).map(({ env, rounds, lines }, at) => html`<${Chart} key=${env} id=${`family-${at}`}
      title=${plain(env)} show=${share} height=${SMALL} whole x=${rounds} lines=${lines} ...${view} />`)}</div>
    ${families.length > MOST_FAMILIES ? html`<p class="hint">${families.length - MOST_FAMILIES} more families are in the JSON, under levels.</p>` : null}</section>`;
}

const MARKS = { better: '↗', worse: '↘', unclear: '→', early: '…' };

// A short assessment of whether the node learns.
function Progress() {
  const { data, error } = useAnswer('progress', 5000);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return null;
  return html`<div class=${`headline ${data.level}`}><p role="status"><span aria-hidden="true">${MARKS[data.level] ?? ''}</span>
    ${' '}${plain(data.text)}</p><${Help} of="progress" name="this assessment" /></div>`;
}

const FIGURES = [
  ['reward', 'local reward', 'reward_local', share], ['reward', 'held-out', 'reward_eval', share],
  ['informative', 'informative', 'informative_local', percent], ['ahead', 'peer advantage', 'peer_advantage', share],
  ['speed', 'tokens/s', 'tokens_per_s', (v) => number(v)], ['memory', 'memory, MB', 'rss_mb', (v) => number(v)],
];

function Figures({ columns }) {
  const latest = (name) => column(columns, name).findLast((value) => value !== null);
  return html`<dl class="figures">${FIGURES.map(([word, name, of, show]) => html`<div key=${of} title=${WORDS[word]}>
    <dt>${name}</dt><dd>${show(latest(of))}</dd></div>`)}</dl>`;
}

export function Learning() {
  const { columns, status } = useStore();
  const [smooth, setSmooth] = useKept('smooth', '5');
  const [log, setLog] = useKept('log', 'linear');
  if (!columns.round.length) {
    return html`<${Empty} title="No finished rounds yet">${status?.running
      ? 'The first round is running. It can take a minute to load a model. This page updates automatically.'
      : 'Run swarm-node join to start the node.'}<//>`;
  }
  const view = { smooth: Number(smooth), log: log === 'log' };
  const draw = (chart) => html`<${Lines} key=${chart.id} ...${{ chart, columns, view }} />`;
  return html`<div class="bar-of-choices">
      <${Choice} label="smoothing" of=${SMOOTHING} chosen=${smooth} choose=${setSmooth} />
      <${Choice} label="scale" of=${[['linear', 'linear'], ['log', 'log']]} chosen=${log} choose=${setLog} />
      <p class="hint">Drag to zoom, double-click to reset. Keys: arrows, + − 0.</p>
    </div>
    <${Progress} /><${Figures} columns=${columns} />
    <div class="charts">${BEFORE.map(draw)}${AFTER.map(draw)}<${Composition} view=${view} /></div>
    <${Families} view=${view} />
    <div class="charts"><${Time} columns=${columns} view=${view} />${LAST.map(draw)}</div>`;
}
