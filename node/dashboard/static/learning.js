// Whether the node learns, by round.

import { html, useMemo } from './vendor/htm-preact.js';
import { Chart } from './chart.js';
import { brief, bytes, number, percent, plain, share } from './format.js';
import { Composition } from './lineage.js';
import { Choice, Empty, Problem, WORDS, useKept } from './parts.js';
import { useAnswer, useStore } from './store.js';

const PHASES = ['generate', 'wait', 'verify', 'publish', 'mix', 'update', 'evaluate', 'checkpoint', 'idle'];
const SMOOTHING = [['1', 'off'], ['5', '5'], ['20', '20'], ['100', '100']];
const DASHES = [undefined, 'dashed', 'dotted'];
const MOST_LEVELS = 24;

const line = (of, label, c, more) => ({ of, label, c, ...more });

const BEFORE = [
  { id: 'reward', title: 'Reward', show: share, lines: [
    line('reward_own', 'own', 1), line('reward_external', 'external', 2, { dash: 'dashed' }),
    line('reward_eval', 'held-out', 3, { points: true })] },
];
const AFTER = [
  { id: 'informative', title: 'Informative share', show: percent, lines: [
    line('informative_own', 'own groups', 1), line('unproven_share', 'of newcomers', 2, { dash: 'dashed' }),
    line('author_share', 'largest author', 3, { dash: 'dotted' })] },
  { id: 'entropy', title: 'Entropy, nats', lines: [line('entropy', 'entropy', 1)] },
  { id: 'length', title: 'Tokens a completion', lines: [line('mean_length', 'length', 1)] },
  { id: 'clip', title: 'Clipped, masked, cut', show: percent, lines: [
    line('clip_fraction', 'clip', 1), line('masked_fraction', 'masked', 2, { dash: 'dashed' }),
    line('truncated', 'cut', 3, { dash: 'dotted' })] },
  { id: 'lead', title: 'Lead of peers', lines: [line('lead', 'lead', 2)] },
];
const LAST = [
  { id: 'speed', title: 'Tokens a second', show: (v) => number(v), lines: [line('tokens_per_s', 'tokens/s', 1)] },
  { id: 'memory', title: 'Memory, MB', show: (v) => number(v), lines: [line('rss_mb', 'memory', 1)] },
  { id: 'pool', title: 'Pool and room', show: (v) => number(v), lines: [
    line('pool_groups', 'in the pool', 1), line('external_wanted', 'room in the update', 2, { dash: 'dashed' })] },
  { id: 'loss', title: 'Loss and gradient', lines: [
    line('loss', 'loss', 1), line('grad_norm', 'gradient norm', 2, { dash: 'dashed' })] },
  { id: 'gap', title: 'Engine gap', lines: [line('engine_gap', 'gap', 4)] },
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
  return html`<${Chart} id="time" title="Time of a round, s" stack lines=${lines} x=${columns.round}
    times=${columns.time} smooth=${view.smooth} />`;
}

// The levels of all families on the rounds of any of them.
function byLevel(families) {
  const rounds = [...new Set(families.flatMap((each) => each.rounds))].sort((a, b) => a - b);
  const place = new Map(rounds.map((round, at) => [round, at]));
  const lines = families.slice(0, MOST_LEVELS).map(({ env, level, rounds: own, reward }, at) => {
    const values = Array(rounds.length).fill(null);
    own.forEach((round, i) => {
      values[place.get(round)] = reward[i];
    });
    const c = (at % 8) + 1;
    return { label: `${plain(env)} ${level}`, c, dash: DASHES[Math.floor(at / 8) % 3], points: true, values };
  });
  return [rounds, lines];
}

function Families({ view }) {
  const { data, error } = useAnswer('levels', 5000);
  const [rounds, lines] = useMemo(() => byLevel(data?.families ?? []), [data]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!lines.length) return null;
  return html`<${Chart} id="families" title="Reward by family and level" show=${share} x=${rounds} lines=${lines} ...${view} />`;
}

const FIGURES = [
  ['reward', 'own reward', 'reward_own', share], ['reward', 'held-out', 'reward_eval', share],
  ['informative', 'informative', 'informative_own', percent], ['lead', 'lead of peers', 'lead', share],
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
    return html`<${Empty} title="No round is done yet">${status?.running
      ? 'The first one is on its way: loading a model can take a minute. This page fills by itself.'
      : 'This node has never finished a round. Start it with swarm-node join.'}<//>`;
  }
  const view = { smooth: Number(smooth), log: log === 'log' };
  const draw = (chart) => html`<${Lines} key=${chart.id} ...${{ chart, columns, view }} />`;
  return html`<div class="bar-of-choices">
      <${Choice} label="smoothing" of=${SMOOTHING} chosen=${smooth} choose=${setSmooth} />
      <${Choice} label="scale" of=${[['linear', 'linear'], ['log', 'log']]} chosen=${log} choose=${setLog} />
      <p class="hint">Drag to zoom, double-click to see everything; with the keyboard: arrows, + − 0.</p>
    </div>
    <${Figures} columns=${columns} />
    <div class="charts">
      ${BEFORE.map(draw)}<${Families} view=${view} />${AFTER.map(draw)}
      <${Composition} view=${view} />
      <${Time} columns=${columns} view=${view} />${LAST.map(draw)}
    </div>`;
}
