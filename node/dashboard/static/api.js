// What the server says: single answers, and the stream of events that keeps the page live.

const BASE = 'api/v1/';
export const POINTS = 1000;
const RETRY_MS = 1500;
const EVENTS = ['round', 'status', 'groups', 'gone'];

// The answer to one GET; an error with the server's own words where it refuses.
export async function ask(path, signal) {
  const answer = await fetch(BASE + path, { signal, cache: 'no-store' });
  const type = answer.headers.get('content-type') ?? '';
  const told = type.includes('json') ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(told.error || `the server answered ${answer.status}`);
  return told;
}

// Follows the events for as long as the page is open, through every restart of the server.
export function follow(heard, opened, lost) {
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
