// A completion token by token, tinted by what is known of each.

import { html } from './vendor/htm-preact.js';
import { brief, plain } from './format.js';
import { Stranger } from './parts.js';

const STEPS = 5;

const TINTS = [['logprob', 'log-prob'], ['entropy', 'entropy'], ['version', 'version']];

// What the tokens of these completions can be tinted by.
export const tintsOf = (completions) =>
  [['none', 'none'], ...TINTS.filter(([key]) =>
    completions.some(({ tokens }) => tokens.some((token) => known(token[key]))))];

const known = (value) => value !== null && value !== undefined;

// From nats to a step: a token of probability above 0.9 is no surprise, one below 0.01 is a large one.
const LIMITS = { logprob: [0.105, 0.69, 1.61, 3, 4.6], entropy: [0.1, 0.4, 0.8, 1.4, 2.2] };
const LEGEND = {
  logprob: ['p > 0.9', '> 0.5', '> 0.2', '> 0.05', '> 0.01', 'less'],
  entropy: ['< 0.1 nats', '< 0.4', '< 0.8', '< 1.4', '< 2.2', 'more'],
};

const SIZE = { logprob: (token) => -token.logprob, entropy: (token) => token.entropy };

function tint(token, by, versions) {
  if (!known(token[by])) return 'unknown';
  if (by === 'version') return `v${versions.indexOf(token.version) % (STEPS + 1)}`;
  const at = LIMITS[by].findIndex((limit) => SIZE[by](token) < limit);
  return `t${at < 0 ? STEPS : at}`;
}

const told = (token) =>
  TINTS.filter(([key]) => known(token[key]))
    .map(([key, name]) => `${name} ${brief(token[key])}`)
    .join(', ');

export const versionsOf = (completions) =>
  [...new Set(completions.flatMap(({ tokens }) => tokens.map((token) => token.version)))]
    .filter(known)
    .sort((a, b) => a - b);

export function Tokens({ completion, by, versions }) {
  if (by === 'none' || !completion.tokens.length) return html`<${Stranger} as="pre" text=${completion.text} />`;
  return html`<pre class="stranger" dir="auto">${completion.tokens.map((token, at) => html`<span key=${at}
    class=${`token ${tint(token, by, versions)}`} title=${told(token)}>${plain(token.text)}</span>`)}</pre>`;
}

export function TintLegend({ by, versions }) {
  if (by === 'none') return null;
  const steps = by === 'version'
    ? versions.map((version, at) => [`v${at % (STEPS + 1)}`, `step ${version}`])
    : LEGEND[by].map((name, at) => [`t${at}`, name]);
  return html`<ul class="tints" aria-label="What the tints mean">
    ${steps.map(([kind, name]) => html`<li key=${name}><span class=${`token ${kind}`}>${name}</span></li>`)}
    <li><span class="token unknown">not told</span></li></ul>`;
}
