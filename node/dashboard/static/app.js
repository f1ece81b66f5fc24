// The page: a header that is always true, six views, and what is said when the node is gone.

import { html, render, useEffect, useState } from './vendor/htm-preact.js';
import { Ask } from './ask.js';
import { ago, lapse, moment, number, plain, share, shortId } from './format.js';
import { Health } from './health.js';
import { Learning } from './learning.js';
import { Lineage } from './lineage.js';
import { Sparkline, Stranger, Theme } from './parts.js';
import { Rollouts } from './rollouts.js';
import { start, useStore } from './store.js';
import { Swarm } from './swarm.js';
import './words.js';

const VIEWS = {
  learning: ['Learning', Learning],
  rollouts: ['Rollouts', Rollouts],
  lineage: ['Lineage', Lineage],
  swarm: ['Swarm', Swarm],
  health: ['Health', Health],
  ask: ['Ask', Ask],
};
const SPARK_ROUNDS = 60;
const STATES = {
  running: 'running', starting: 'starting', stopping: 'stopping', stopped: 'stopped', crashed: 'crashed',
  none: 'never started',
};
const CONNECTIONS = { live: 'live', connecting: 'connecting', lost: 'reconnecting' };

function chosen() {
  const [view] = location.hash.slice(2).split('?');
  return Object.hasOwn(VIEWS, view) ? view : 'learning';
}

function useRoute() {
  const [view, go] = useState(chosen);
  useEffect(() => {
    const moved = () => location.hash === '#main' || go(chosen());
    window.addEventListener('hashchange', moved);
    return () => window.removeEventListener('hashchange', moved);
  }, []);
  return view;
}

function Header() {
  const { status, columns, round, connection } = useStore();
  const state = status?.state ?? 'starting';
  const recent = (columns.reward_local ?? []).slice(-SPARK_ROUNDS);
  const reward = (columns.reward_local ?? []).findLast((value) => value !== null);
  return html`<header class="top">
    <div class="who">
      <strong><${Stranger} text=${status?.swarm_name ?? 'swarm-node'} title="The swarm’s name" /></strong>
      <code title=${plain(status?.peer_id ?? '')}>${shortId(status?.peer_id)}</code>
    </div>
    <dl class="now">
      <div><dt class="unseen">State</dt><dd aria-live="polite"><span class=${`dot ${state}`} aria-hidden="true"></span>${STATES[state] ?? plain(state)}</dd></div>
      <div><dt>round</dt><dd id="round">${round ? number(round) : 'none yet'}</dd></div>
      <div class="rewarded"><dt>reward</dt><dd><${Sparkline} values=${recent} label="Local reward over the latest rounds" />${share(reward)}</dd></div>
      <div><dt class="unseen">Connection</dt><dd id="connection" aria-live="polite" class=${connection}>${CONNECTIONS[connection]}</dd></div>
    </dl>
    <${Theme} />
  </header>`;
}

const Tabs = ({ view }) =>
  html`<nav aria-label="Views"><ul>${Object.entries(VIEWS).map(([key, [name]]) => html`<li key=${key}>
    <a href=${`#/${key}`} aria-current=${key === view ? 'page' : undefined}>${name}</a></li>`)}</ul></nav>`;

// A clock for what counts seconds; only while there is something to count.
function useTick(on) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!on) return undefined;
    const timer = setInterval(() => tick((times) => times + 1), 1000);
    return () => clearInterval(timer);
  }, [on]);
}

function Banner() {
  const { connection, lostAt, status, error } = useStore();
  const lost = connection === 'lost';
  useTick(lost);
  if (lost) {
    return html`<p class="banner lost" role="status">The server has not answered since ${moment(lostAt)}
      <span aria-hidden="true"> (${lapse(Date.now() / 1000 - lostAt)})</span>. The node has stopped or
      is restarting. The figures are from that time and update when the node is back. To start it, run <code>swarm-node join</code>.</p>`;
  }
  if (error) return html`<p class="banner lost" role="status">The server refused the request: ${plain(error)}</p>`;
  if (status && !status.running) {
    if (status.state === 'none') {
      return html`<p class="banner" role="status">No node has run in this folder yet. Run <code>swarm-node join</code> to start one.</p>`;
    }
    return html`<p class="banner" role="status">This node does not run. It ${status.state === 'crashed' ? 'crashed; its last report was' : 'stopped'}
      ${' '}${ago(status.time)} (${moment(status.time)}).
      To resume, run <code>swarm-node join</code> with the same <code>--config</code>.</p>`;
  }
  return null;
}

function App() {
  const view = useRoute();
  const { status } = useStore();
  const [name, View] = VIEWS[view];
  useEffect(start, []);
  useEffect(() => {
    document.title = `${name} · ${plain(status?.swarm_name ?? 'swarm-node')}`;
  }, [name, status?.swarm_name]);
  return html`<${Header} /><${Tabs} view=${view} />
    <main id="main" tabindex="-1"><${Banner} /><h2 class="unseen">${name}</h2><${View} /></main>
    <footer>swarm-node ${plain(status?.version ?? '')} · read-only · <a href="api/v1/status">JSON</a> · <a href="metrics">Prometheus</a></footer>`;
}

const place = document.getElementById('app');
place.replaceChildren();
render(html`<${App} />`, place);
