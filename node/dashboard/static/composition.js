// Of whose groups each update was made.

import { html, useMemo } from './vendor/htm-preact.js';
import { Chart } from './chart.js';
import { count, shortId } from './format.js';
import { Problem } from './parts.js';
import { useAnswer } from './store.js';

// Authors in the order of what they gave, so that their colours stay.
export function composed({ own = [], authors = {}, other = [] }) {
  const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
  const named = Object.entries(authors).sort((a, b) => sum(b[1]) - sum(a[1]));
  return [
    { label: 'own', author: null, c: 1, values: own },
    ...named.map(([author, values], at) => ({
      label: shortId(author), author, help: author, c: 2 + (at % 7), values,
    })),
    ...(sum(other) ? [{ label: 'others', author: null, c: 8, values: other }] : []),
  ];
}

export function Composition({ view, pick }) {
  const { data, error } = useAnswer('updates?since=0&points=1000', 4000);
  const lines = useMemo(() => composed(data ?? {}), [data]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data?.rounds.length) return null;
  return html`<${Chart} id="composition" title="Groups of an update, by author" stack lines=${lines}
    x=${data.rounds} smooth=${view?.smooth ?? 1} show=${count}
    pick=${pick && ((at) => pick(Math.round(data.rounds[at])))} />`;
}
