// The data of the node: answers of its server, kept current by a stream of events.

import { useEffect, useRef, useState } from './vendor/htm-preact.js';

const BASE = 'api/v1/';
const POINTS = 1000;
const RETRY_MS = 1500;
const EVENTS = ['round', 'status', 'groups', 'gone'];

// The answer to one GET; an error with the server's own words where it refuses.
export async function ask(path, signal) {
  const answer = await fetch(BASE + path, { signal, cache: 'no-store' });
  const type = answer.headers.get('content-type') ?? '';
  const told = type.includes('json') ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(told.error || `the server returned status ${answer.status}`);
  return told;
}

// Each JSON line of a streamed answer, as it arrives.
export async function streamed(path, signal, heard) {
  const answer = await fetch(BASE + path, { signal, cache: 'no-store', headers: { 'x-asked-by': 'page' } });
  if (!answer.ok) throw new Error((await answer.json()).error);
  let rest = '';
  for (let reader = answer.body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) heard(JSON.parse(line));
  }
}

// Follows the events for as long as the page is open, through every restart of the server.
function follow(heard, opened, lost) {
  let source = null;
  let timer = null;
  const connect = () => {
    source = new EventSource(`${BASE}events`);
    source.onopen = opened;
    source.onerror = () => {
      source.close();
      lost();
      timer = setTimeout(connect, RETRY_MS);
    };
    for (const name of EVENTS) {
      source.addEventListener(name, (event) => heard(name, event.data ? JSON.parse(event.data) : null));
    }
  };
  connect();
  return () => {
    clearTimeout(timer);
    source.close();
  };
}

const MOST_ROWS = 3 * POINTS;
const REDRAW_MS = 250;
const NESTED = ['seconds', 'refused'];

const empty = () => ({ round: [], time: [], policy_step: [], seconds: {}, refused: {} });

const state = {
  status: null,
  columns: empty(),
  round: 0,
  group: 0,
  connection: 'connecting',
  lostAt: null,
  error: null,
};
const listeners = new Set();

function tell(news) {
  Object.assign(state, news);
  for (const listener of listeners) listener();
}

export function useStore() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const listener = () => redraw((times) => times + 1);
    listeners.add(listener);
    listener();
    return () => listeners.delete(listener);
  }, []);
  return state;
}

// The columns with one more row; rounds done again after a crash take the place of those lost.
export function appended(columns, record) {
  let rows = columns.round.length;
  while (rows && columns.round[rows - 1] >= record.round) rows -= 1;
  const put = (column, value) => [...fill(column, rows), value ?? null];
  const next = {};
  for (const name of new Set([...Object.keys(columns), ...scalars(record)])) {
    if (!NESTED.includes(name)) next[name] = put(columns[name], record[name]);
  }
  for (const name of NESTED) {
    const parts = { ...columns[name] };
    for (const key of Object.keys(record[name] ?? {})) parts[key] ??= [];
    next[name] = Object.fromEntries(
      Object.keys(parts).map((key) => [key, put(parts[key], record[name]?.[key])]),
    );
  }
  return next;
}

const scalars = (record) =>
  Object.keys(record).filter((name) => record[name] === null || typeof record[name] === 'number');

function fill(column, rows) {
  const begun = (column ?? []).slice(0, rows);
  return begun.length < rows ? begun.concat(Array(rows - begun.length).fill(null)) : begun;
}

// Events that arrive while an answer is pending are newer than the answer, and are kept.
let meanwhile = null;

async function refresh() {
  const newer = { status: null, rounds: [] };
  meanwhile = newer;
  const told = await Promise.all([ask('status'), ask(`rounds?since=0&points=${POINTS}`)]).then(
    ([status, rounds]) => answered(newer, status, rounds),
    (error) => ({ error: error.message }),
  );
  if (meanwhile !== newer) return;
  meanwhile = null;
  tell(told);
}

function answered(newer, status, { columns, last }) {
  const since = newer.rounds.filter(({ round }) => round > (last ?? 0));
  return {
    status: newer.status ?? status,
    columns: since.reduce(appended, { ...empty(), ...columns }),
    round: since.at(-1)?.round ?? last ?? 0,
    error: null,
  };
}

// Small models do many rounds per second. Redrawing a few times per second is enough.
const arrived = [];
let drawing = null;

function drawArrived() {
  drawing = null;
  const columns = arrived.reduce(appended, state.columns);
  tell({ columns, round: arrived.at(-1).round });
  arrived.length = 0;
  if (columns.round.length > MOST_ROWS) refresh();
}

const HEARD = {
  round: (record) => {
    meanwhile?.rounds.push(record);
    arrived.push(record);
    drawing ??= setTimeout(drawArrived, REDRAW_MS);
  },
  status: (status) => {
    if (meanwhile) meanwhile.status = status;
    tell({ status });
  },
  groups: ({ last }) => tell({ group: last }),
  gone: () => refresh(),
};

// Start to listen. After an interruption, the missed data is fetched again.
export function start() {
  return follow(
    (name, data) => HEARD[name](data),
    () => {
      tell({ connection: 'live', lostAt: null });
      refresh();
    },
    () => tell({ connection: 'lost', lostAt: state.lostAt ?? Date.now() / 1000 }),
  );
}

// The answer of a path, fetched again after a new round, with at least `pause` ms between requests.
export function useAnswer(path, pause = 3000) {
  const [told, tellAnswer] = useState({ data: null, error: null });
  const { round, connection, status } = useStore();
  const asked = useRef(0);
  const [due, setDue] = useState(0);
  useEffect(() => {
    if (connection === 'lost') return undefined;
    const abort = new AbortController();
    asked.current = Date.now();
    ask(path, abort.signal).then(
      (data) => tellAnswer({ data, error: null }),
      (error) => abort.signal.aborted || tellAnswer((was) => ({ ...was, error: error.message })),
    );
    return () => abort.abort();
  }, [path, due, connection === 'lost']);
  useEffect(() => {
    const wait = Math.max(0, asked.current + pause - Date.now());
    const timer = setTimeout(() => setDue((times) => times + 1), wait);
    return () => clearTimeout(timer);
  }, [round, connection, status?.time]);
  return told;
}
