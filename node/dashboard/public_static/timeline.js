// The swarm over time: charts whose buckets are minutes, hours or days long.

import { html, useMemo } from './shared/vendor/htm-preact.js';
import { Chart } from './shared/chart.js';
import { brief, count, known, moment, plain, share } from './shared/format.js';
import { Choice, Empty, useKept } from './shared/parts.js';

const [MINUTE, HOUR, DAY] = [60, 3600, 86400];
const SPANS = [['2', '2 days'], ['60', '60 days'], ['all', 'all']];
const DASHES = [undefined, 'dashed', 'dotted'];
export const MOST_FAMILIES = 24;

const date = (unix, zone) =>
  new Date(1000 * unix).toLocaleDateString('en-GB', { day: 'numeric', month: 'short', timeZone: zone });

function clock(unix) {
  const at = new Date(1000 * unix);
  return at.getHours() || at.getMinutes() ? at.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' }) : date(unix);
}

const TIME = {
  name: 'time', time: true, tell: moment,
  mark: (splits, step) => splits.map((each) => (step >= DAY ? date(each) : clock(each))),
};

// Days are counted in the world's time, so that they are the same ones for every reader.
const dayOf = (day) => date(day * DAY, 'UTC');
export const DAYS = {
  name: 'day', tell: dayOf,
  mark: (splits) => splits.map((each) => (Number.isInteger(each) ? dayOf(each) : '')),
};

// Rows of a history from `from` on; null is a gap between measurements.
function places({ time, seconds }, from) {
  return time.flatMap((begin, at) => {
    if (begin < from) return [];
    const silent = at && time[at - 1] >= from && begin > time[at - 1] + 1.5 * seconds[at - 1];
    return silent ? [null, at] : [at];
  });
}

// The columns of a history. Sums are per hour, because buckets grow longer with age. The first and the last bucket
// count only as long as they were observed.
function columns(history, span, { since, time: now }) {
  const { time, seconds } = history;
  const observed = (at) => Math.max(MINUTE, Math.min(time[at] + seconds[at], now) - Math.max(time[at], since));
  const found = places(history, span === 'all' ? -Infinity : (time.at(-1) ?? 0) - Number(span) * DAY);
  const x = found.map((at, place) => time[at] ?? time[found[place - 1]] + seconds[found[place - 1]]);
  const plainly = (values) => found.map((at) => values?.[at] ?? null);
  const hourly = (values) => found.map((at) => (known(values?.[at]) ? (HOUR * values[at]) / observed(at) : null));
  return { x, plainly, hourly };
}

function families(rewards, plainly) {
  return Object.entries(rewards).slice(0, MOST_FAMILIES).map(([env, values], at) => ({
    label: plain(env), c: (at % 8) + 1, dash: DASHES[Math.floor(at / 8) % 3], values: plainly(values),
  }));
}

function charts(history, span, swarm) {
  const { x, plainly, hourly } = columns(history, span, swarm);
  const line = (label, c, values, dash) => ({ label, c, values, dash });
  return [x, [
    ['rewards', 'Verified reward by family', share, families(history.rewards, plainly)],
    ['nodes', 'Nodes', count, [line('nodes', 1, plainly(history.nodes))]],
    ['churn', 'Joined and left per hour', brief, [
      line('joined', 3, hourly(history.joined)), line('left', 2, hourly(history.left), 'dashed')]],
    ['groups', 'Offered groups per hour', brief, [line('offered', 1, hourly(history.offered))]],
    ['checks', 'Checked groups per hour', brief, [
      line('checked', 1, hourly(history.checked)), line('verified', 3, hourly(history.verified), 'dashed'),
      line('refused', 2, hourly(history.refused), 'dotted')]],
  ]];
}

export function Timeline({ history, swarm }) {
  const [span, setSpan] = useKept('span', '2');
  const [x, drawn] = useMemo(() => charts(history, span, swarm), [history, span]);
  if (!history.time.length) {
    return html`<${Empty} title="No measurements yet">The first measurement is running. This page updates automatically.<//>`;
  }
  return html`<div class="bar-of-choices"><${Choice} label="time span" of=${SPANS} chosen=${span} choose=${setSpan} />
      <p class="hint">Drag to zoom, double-click to reset. Keys: arrows, + − 0.</p></div>
    <div class="charts">${drawn.filter(([, , , lines]) => lines.length).map(([id, title, show, lines]) => html`<${Chart} key=${id}
      along=${TIME} ...${{ id, title, show, lines, x }} />`)}</div>`;
}
