// The page of a swarm: who it is, how fresh this is, and three views.

import { html, render, useEffect, useRef, useState } from './shared/vendor/htm-preact.js';
import { lapse, moment, number, plain, shortId } from './shared/format.js';
import { Pattern, Stranger, Theme } from './shared/parts.js';
import { AuthorPage, Authors } from './authors.js';
import { start, useData } from './data.js';
import { Overview, observerOf } from './overview.js';

const TABS = { swarm: 'Swarm', authors: 'Authors' };
const VIEWS = { swarm: Overview, authors: Authors, author: AuthorPage };
const LATE_LOOKS = 3;
const TICK_MS = 5000;

const capital = (words) => words[0].toUpperCase() + words.slice(1);

function chosen() {
  const [view, hex] = location.hash.slice(2).split('/');
  return Object.hasOwn(VIEWS, view) ? { view, hex } : { view: 'swarm' };
}

// The current view. A change of view scrolls to its start.
function useRoute() {
  const [route, go] = useState(chosen);
  const turned = useRef(false);
  useEffect(() => {
    const moved = () => {
      if (location.hash === '#main') return;
      turned.current = true;
      go(chosen());
    };
    window.addEventListener('hashchange', moved);
    return () => window.removeEventListener('hashchange', moved);
  }, []);
  useEffect(() => {
    if (!turned.current) return;
    window.scrollTo(0, 0);
    document.getElementById('main').focus({ preventScroll: true });
  }, [route]);
  return route;
}

// Unix time in seconds, updated every few seconds.
function useNow() {
  const now = () => Date.now() / 1000;
  const [at, tick] = useState(now);
  useEffect(() => {
    const timer = setInterval(() => tick(now()), TICK_MS);
    return () => clearInterval(timer);
  }, []);
  return Math.max(at, now());
}

function Header({ swarm }) {
  return html`<header class="top">
    <div class="who"><${Pattern} of=${swarm.swarm.id} />
      <h1><${Stranger} text=${swarm.swarm.name} title="The swarm’s name" /></h1>
      <code title=${plain(swarm.swarm.id)}>${shortId(swarm.swarm.id)}</code></div>
    <dl class="now"><div><dt>nodes</dt><dd id="nodes">${number(swarm.now.nodes)}</dd></div>
      <div><dt>as of</dt><dd id="time"><time>${moment(swarm.time)}</time></dd></div></dl>
    <${Theme} /></header>`;
}

const Tabs = ({ view }) =>
  html`<nav aria-label="Views"><ul>${Object.entries(TABS).map(([key, name]) => html`<li key=${key}>
    <a href=${`#/${key}`} aria-current=${view === key ? 'page' : view.startsWith('author') && key === 'authors' ? 'true' : undefined}>${name}</a></li>`)}</ul></nav>`;

function Banner() {
  const { swarm, error, lostAt } = useData();
  const silent = useNow() - (swarm?.time ?? Infinity);
  if (error) {
    return html`<p class="banner lost" role="status">The server has not answered since ${moment(lostAt)} (<${Stranger} text=${error} />).
      ${swarm ? ` The figures are from ${moment(swarm.time)}. ` : ' '}This page retries automatically.</p>`;
  }
  if (silent > LATE_LOOKS * (swarm?.every ?? Infinity)) {
    return html`<p class="banner" role="status">${capital(observerOf(swarm))} has not reported for
      ${' '}${lapse(silent)}. The figures are from ${moment(swarm.time)}.</p>`;
  }
  return null;
}

function App() {
  const { view, hex } = useRoute();
  const data = useData();
  const { swarm } = data;
  useEffect(start, []);
  const person = view === 'author' ? data.authors?.authors.find(({ author }) => author === hex) : null;
  const name = TABS[view] ?? person?.name ?? shortId(hex);
  useEffect(() => {
    if (swarm) document.title = `${plain(name)} · ${plain(swarm.swarm.name)}`;
  }, [name, swarm]);
  if (!swarm) return html`<main id="main" tabindex="-1"><${Banner} /><p class="hint">Loading the figures of the swarm …</p></main>`;
  const View = VIEWS[view];
  return html`<${Header} swarm=${swarm} /><${Tabs} view=${view} />
    <main id="main" tabindex="-1"><${Banner} /><h2 class="unseen">${plain(name)}</h2><${View} ...${{ ...data, hex }} /></main>
    <footer>swarm-node ${plain(swarm.version)} · no tracking · <a href="data/swarm.json">swarm</a>,${' '}
      <a href="data/history.json">history</a> and <a href="data/authors.json">authors</a> as JSON</footer>`;
}

const place = document.getElementById('app');
place.replaceChildren();
render(html`<${App} />`, place);
