// The data of the swarm: three files, fetched repeatedly while the page is visible.

import { useEffect, useState } from './shared/vendor/htm-preact.js';

const FILES = ['swarm', 'history', 'authors'];
const PATIENCE_MS = 20_000;
const SOONEST_S = 2;
const RETRY_S = 15;

const state = { swarm: null, history: null, authors: null, error: null, lostAt: null };
const listeners = new Set();

function tell(news) {
  Object.assign(state, news);
  for (const listener of listeners) listener();
}

export function useData() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const listener = () => redraw((times) => times + 1);
    listeners.add(listener);
    listener();
    return () => listeners.delete(listener);
  }, []);
  return state;
}

// The browser asks whether a file is another by now, and is sent it only then.
async function read(name) {
  const answer = await fetch(`data/${name}.json`, { cache: 'no-cache', signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`data/${name}.json: the server returned status ${answer.status}`);
  return answer.json();
}

async function refresh() {
  try {
    const [swarm, history, authors] = await Promise.all(FILES.map(read));
    const same = swarm.time === state.swarm?.time;
    tell({ ...(same ? {} : { swarm, history, authors }), error: null, lostAt: null });
  } catch (error) {
    tell({ error: error.message, lostAt: state.lostAt ?? Date.now() / 1000 });
  }
}

const pause = () => {
  const every = Math.max(SOONEST_S, state.swarm?.every ?? RETRY_S);
  return 1000 * (state.error ? Math.min(RETRY_S, every) : every);
};

// Start to fetch. A hidden page fetches nothing, and catches up when it is visible again.
export function start() {
  let timer = null;
  let due = 0;
  const wait = () => {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(again, Math.max(0, due - Date.now()));
  };
  const again = async () => {
    due = Infinity;
    await refresh();
    due = Date.now() + pause();
    wait();
  };
  document.addEventListener('visibilitychange', wait);
  wait();
  return () => {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', wait);
  };
}
