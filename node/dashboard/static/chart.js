// A chart: uPlot with a legend to read and to press, the keyboard, and a summary in words.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './vendor/htm-preact.js';
import { brief, known, moment, number } from './format.js';
import { Help } from './parts.js';

const HEIGHT = 190;
const DASHES = { dashed: [7, 4], dotted: [2, 3] };

// The x axis of a chart: its name, its tick labels, and the text for one position.
const ROUNDS = {
  name: 'round',
  mark: (splits) => splits.map((each) => (Number.isInteger(each) ? number(each) : '')),
  tell: (x) => `round ${number(Math.round(x))}`,
};

// Each value as the mean of those measured among the `window` rows around it.
function smoothed(values, window) {
  if (window <= 1) return values;
  const sums = new Float64Array(values.length + 1);
  const counts = new Uint32Array(values.length + 1);
  values.forEach((value, at) => {
    sums[at + 1] = sums[at] + (known(value) ? value : 0);
    counts[at + 1] = counts[at] + (known(value) ? 1 : 0);
  });
  const half = Math.floor(window / 2);
  return values.map((value, at) => {
    if (!known(value)) return null;
    const [from, to] = [Math.max(0, at - half), Math.min(values.length, at + half + 1)];
    return (sums[to] - sums[from]) / (counts[to] - counts[from]);
  });
}

// The first curve upon all that follow, and so on: painted in this order, each hides what is below.
function stacked(curves) {
  const total = new Float64Array(curves[0]?.length ?? 0);
  const tops = [];
  for (const values of [...curves].reverse()) {
    values.forEach((value, at) => {
      total[at] += value ?? 0;
    });
    tops.unshift(Array.from(total));
  }
  return tops;
}

// The range of an axis that holds these extremes, with room, and from 0 where 0 is near.
const ranged = (log) => (plot, low, high) => {
  const { rangeLog, rangeNum } = window.uPlot;
  if (low === null || high === null) return log ? [0.1, 1] : [0, 1];
  if (log) return rangeLog(low, high, 10, true);
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * high)];
  return rangeNum(low, high, 0.08, true);
};

// A canvas knows no colours that depend on the theme: an element is asked for what they are.
const asked = document.body.appendChild(Object.assign(document.createElement('i'), { hidden: true }));
const colours = new Map();
window.addEventListener('themechange', () => colours.clear());

function colour(name) {
  if (!colours.has(name)) {
    asked.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(asked).color);
  }
  return colours.get(name);
}

// Tints of stacked areas are opaque, as each hides the lower part of the one before it.
function series({ label, c, dash, points, sparse }, stack) {
  const stroke = () => colour(`--c${c}`);
  const line = { label, stroke, width: 1.6, spanGaps: Boolean(points || sparse), dash: DASHES[dash] };
  if (stack) return { ...line, width: 0.8, fill: () => colour(`--fill${c}`), points: { show: false } };
  return { ...line, points: { show: points ? true : undefined, size: points ? 5 : 4, fill: stroke } };
}

function axes(show, { mark }) {
  const ink = () => colour('--muted');
  const grid = { stroke: () => colour('--line'), width: 1 };
  const common = { stroke: ink, grid, ticks: { show: false }, font: '11px system-ui, sans-serif' };
  const values = (u, splits) => splits.map((each) => (each === null ? '' : show(each)));
  return [
    { ...common, values: (u, splits, axis, space, step) => mark(splits, step), size: 26, space: 70 },
    { ...common, values, size: 54, space: 34 },
  ];
}

function options({ width, height, lines, along, stack, log, whole, show, hovered }) {
  return {
    width,
    height,
    legend: { show: false },
    cursor: { sync: { key: along.name, setSeries: false }, drag: { x: true, y: false, dist: 5 } },
    scales: { x: { time: Boolean(along.time) }, y: { distr: log ? 3 : 1, range: whole && !log ? [0, 1] : ranged(log) } },
    axes: axes(show, along),
    series: [{}, ...lines.map((line) => series(line, stack))],
    hooks: { setCursor: [(u) => hovered(u.cursor.idx ?? null)] },
  };
}

// The drawn values: smoothed, without values that a log scale cannot show, stacked from the last up.
function drawn(x, lines, hidden, { smooth, log, stack }) {
  const curves = lines.map((line) => (hidden.has(line.label) ? line.values.map(() => null) : line.values));
  const smoother = curves.map((values) => smoothed(values, smooth));
  if (stack) return [x, ...stacked(smoother)];
  return [x, ...smoother.map((values) => (log ? values.map((v) => (v > 0 ? v : null)) : values))];
}

function summary(title, x, lines, show, { name, tell }) {
  if (!x.length) return `${title}: no ${name}s yet.`;
  const told = lines.map(({ label, values }) => {
    const found = values.flatMap((value, at) => (known(value) ? [at] : []));
    if (!found.length) return `${label} was not measured.`;
    const [first, last] = [found[0], found.at(-1)];
    const high = found.reduce((best, at) => (values[at] > values[best] ? at : best), first);
    const of = (at) => `${show(values[at])} at ${tell(x[at])}`;
    return `${label}: ${of(first)}, ${of(last)}, maximum ${of(high)}.`;
  });
  return `${title} by ${name}. ${told.join(' ')}`;
}

const last = (values) => values.findLast(known);

// Arrows move the cursor, + and − zoom around it, 0 shows everything.
function pressed(event, plot, say) {
  const { min, max } = plot.scales.x;
  const x = plot.data[0];
  const at = plot.cursor.idx ?? x.length - 1;
  const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
  if (step) {
    const next = Math.min(x.length - 1, Math.max(0, at + step));
    plot.setCursor({ left: plot.valToPos(x[next], 'x'), top: plot.bbox.height / 4 });
    say(next);
  } else if (event.key === '0') {
    plot.setScale('x', { min: x[0], max: x.at(-1) });
  } else if ('+-'.includes(event.key)) {
    const half = ((max - min) / 2) * (event.key === '+' ? 0.5 : 2);
    plot.setScale('x', { min: Math.max(x[0], x[at] - half), max: Math.min(x.at(-1), x[at] + half) });
  } else return;
  event.preventDefault();
}

// Put new data into a plot; a part that the reader has zoomed into stays as it is.
function put(plot, data) {
  const [old, { min, max }] = [plot.data[0], plot.scales.x];
  const zoomed = old.length > 1 && (min > old[0] || max < old.at(-1));
  if (!zoomed) return plot.setData(data);
  return plot.batch(() => {
    plot.setData(data, false);
    plot.setScale('x', { min, max });
  });
}

// Whether a box is near the window. Charts out of view are not redrawn with every round.
function useSeen(box) {
  const [seen, see] = useState(false);
  useEffect(() => {
    const watch = new IntersectionObserver((found) => see(found.at(-1).isIntersecting), { rootMargin: '150px' });
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return seen;
}

// The plot in a box: created again if its shape changes, updated if only the data changes.
function usePlot({ box, height, shape, data, make }) {
  const plot = useRef(null);
  useLayoutEffect(() => {
    plot.current = new window.uPlot(make(box.current.clientWidth), data ?? [[]], box.current);
    const fit = new ResizeObserver(([{ contentRect }]) =>
      plot.current.setSize({ width: Math.max(120, contentRect.width), height }));
    const repaint = () => plot.current.redraw(false);
    fit.observe(box.current);
    window.addEventListener('themechange', repaint);
    return () => {
      fit.disconnect();
      window.removeEventListener('themechange', repaint);
      plot.current.destroy();
    };
  }, [shape]);
  useEffect(() => {
    if (data && plot.current.data !== data) put(plot.current, data);
  }, [data, shape]);
  return plot;
}

const Legend = ({ lines, hidden, turn, value, stack }) =>
  html`<ul class="legend">${lines.map((line) => html`<li key=${line.label}>
    <button type="button" aria-pressed=${!hidden.has(line.label)} onClick=${() => turn(line.label)}
      title=${line.help ?? 'Click to hide or show'}>
      <svg class=${`swatch c${line.c} ${line.dash ?? ''}`} viewBox="0 0 18 8" aria-hidden="true">
        ${stack ? html`<rect width="18" height="8" />` : html`<path d="M0 4h18" />`}</svg>
      <span class="stranger">${line.label}</span> <b>${value(line)}</b></button></li>`)}</ul>`;

function useHidden() {
  const [hidden, hide] = useState(() => new Set());
  const turn = (label) =>
    hide((was) => new Set(was.has(label) ? [...was].filter((each) => each !== label) : [...was, label]));
  return [hidden, turn];
}

// Lines are `{label, values, c, dash, points, sparse, help}`, with one value for each of `x`: `points`
// marks each measured one, `sparse` only joins them. A `whole` chart goes from 0 to 1.
export function Chart({ id, title, x, times, lines, along = ROUNDS, height = HEIGHT, whole = false,
  stack = false, log = false, smooth = 1, show = brief, pick }) {
  const [hidden, turn] = useHidden();
  const [at, hovered] = useState(null);
  const [said, say] = useState('');
  const box = useRef(null);
  const onLog = log && !stack;
  const seen = useSeen(box);
  const changes = [x, lines, hidden, smooth, onLog, stack, seen];
  const data = useMemo(() => (seen ? drawn(x, lines, hidden, { smooth, log: onLog, stack }) : null), changes);
  const words = useMemo(() => summary(title, x, lines, show, along), [title, x, lines]);
  const shape = `${onLog} ${lines.map(({ label, points }) => `${label} ${Boolean(points)}`).join('\n')}`;
  const make = (width) => options({ width, height, lines, along, stack, log: onLog, whole, show, hovered });
  const plot = usePlot({ box, height, shape, data, make });
  const all = (next) => lines.map((line) => `${line.label} ${show(line.values[next])}`).join(', ');
  const key = (event) => pressed(event, plot.current, (next) => say(`${along.tell(x[next])}: ${all(next)}`));
  const click = () => pick && plot.current.cursor.idx !== null && pick(plot.current.cursor.idx);
  const value = (line) => show(at === null ? last(line.values) : line.values[at]);
  const where = at === null || at >= x.length ? 'latest' : along.tell(x[at]);
  return html`<figure class="chart card" id=${id} aria-labelledby=${`${id}-title`}>
    <figcaption><h3 id=${`${id}-title`}>${title}</h3><${Help} of=${id} name=${title} />
      <span class="where" title=${times?.[at] ? moment(times[at]) : ''}>${where}</span></figcaption>
    <div class="plot" ref=${box} tabindex="0" role="group" aria-roledescription="chart"
      aria-label=${words} onKeyDown=${key} onClick=${click} onMouseLeave=${() => hovered(null)}></div>
    <p class="unseen" aria-live="polite">${said}</p>
    <${Legend} ...${{ lines, hidden, turn, value, stack }} />
  </figure>`;
}
