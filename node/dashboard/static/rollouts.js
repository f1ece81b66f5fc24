// Tasks and completions: local groups, groups of peers, and refused groups.

import { html, useEffect, useMemo, useRef, useState } from './vendor/htm-preact.js';
import { ago, brief, known, moment, number, plain, share, shortId, signed } from './format.js';
import { Author, Choice, Empty, Help, Problem, Stranger, useKept } from './parts.js';
import { ask, useAnswer, useStore } from './store.js';

const PAGE = 20;
const TYPING_MS = 300;
const ORIGINS = [['', 'all'], ['own', 'local'], ['external', 'peer'], ['refused', 'refused']];
const originName = ({ origin }) => Object.fromEntries(ORIGINS)[origin] ?? origin;
const TAUGHT = [['', 'all'], ['1', 'used'], ['0', 'not used']];
const FINISHES = { stop: 'EOS (stop)', length: 'truncated (length)' };
const NOTHING = { origin: '', env: '', author: '', text: '', taught: '', round: '' };

function query(filter, before) {
  const asked = new URLSearchParams({ limit: PAGE });
  for (const [key, value] of Object.entries(filter)) if (value) asked.set(key, value);
  if (before) asked.set('before', before);
  return `groups?${asked}`;
}

// The groups of a filter, newest first, and what asks for more of them.
function useGroups(filter, asked) {
  const [found, setFound] = useState({ of: null, groups: [], more: false, correction: '', error: null, loaded: false });
  const path = query(filter);
  useEffect(() => {
    const abort = new AbortController();
    ask(path, abort.signal).then(
      ({ groups, more, correction }) => setFound({ of: path, groups, more, correction, error: null, loaded: true }),
      (error) => abort.signal.aborted || setFound((was) => ({ ...was, error: error.message, loaded: true })),
    );
    return () => abort.abort();
  }, [path, asked]);
  const older = () => {
    const last = found.groups.at(-1).id;
    // An answer to a repeated request, or with another filter, does not continue this list.
    const goOn = (was, news) => (was.of === path && was.groups.at(-1)?.id === last ? { ...was, ...news } : was);
    return ask(query(filter, last)).then(
      ({ groups, more }) => setFound((was) => goOn(was, { groups: [...was.groups, ...groups], more })),
      (error) => setFound((was) => goOn(was, { error: error.message })),
    );
  };
  return { ...found, older };
}

const mean = (group) => {
  const known = group.completions.map((each) => each.reward).filter((reward) => reward !== null);
  return known.length ? known.reduce((sum, reward) => sum + reward, 0) / known.length : null;
};

// The rewards of a group as bars, so that one sees from afar whether they differ.
const Rewards = ({ completions }) =>
  html`<svg class="rewards" viewBox=${`0 0 ${6 * Math.max(1, completions.length)} 14`} aria-hidden="true">
    ${completions.map(({ reward }, at) => html`<rect key=${at} x=${6 * at} width="5"
      y=${13 - 12 * Math.min(1, Math.max(0, reward ?? 0))} height=${1 + 12 * Math.min(1, Math.max(0, reward ?? 0))} />`)}</svg>`;

const Row = ({ group, chosen, choose }) =>
  html`<li><button type="button" class="row" aria-pressed=${chosen} onClick=${choose}>
    <span class=${`origin ${group.origin}`}>${originName(group)}</span>
    <${Stranger} text=${group.env} /> <small>level ${number(group.level)}</small>
    <${Rewards} completions=${group.completions} /><b>${share(mean(group))}</b>
    <small class="when">round ${number(group.round)}${group.reason && group.origin !== 'refused' ? ' · not used' : ''}</small>
    <span class="ask"><${Stranger} text=${group.prompt.slice(0, 160)} /></span></button></li>`;

// A completion token by token, tinted by what is known of each.
const STEPS = 5;

const TINTS = [['logprob', 'log-prob'], ['entropy', 'entropy'], ['version', 'version']];

// The tints that the tokens of these completions allow.
const tintsOf = (completions) =>
  [['none', 'none'], ...TINTS.filter(([key]) =>
    completions.some(({ tokens }) => tokens.some((token) => known(token[key]))))];

// From nats to a step: probability above 0.9 is the first step, below 0.01 the last.
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

const versionsOf = (completions) =>
  [...new Set(completions.flatMap(({ tokens }) => tokens.map((token) => token.version)))]
    .filter(known)
    .sort((a, b) => a - b);

function Tokens({ completion, by, versions }) {
  if (by === 'none' || !completion.tokens.length) return html`<${Stranger} as="pre" text=${completion.text} />`;
  return html`<pre class="stranger" dir="auto">${completion.tokens.map((token, at) => html`<span key=${at}
    class=${`token ${tint(token, by, versions)}`} title=${told(token)}>${plain(token.text)}</span>`)}</pre>`;
}

function TintLegend({ by, versions }) {
  if (by === 'none') return null;
  const steps = by === 'version'
    ? versions.map((version, at) => [`v${at % (STEPS + 1)}`, `step ${version}`])
    : LEGEND[by].map((name, at) => [`t${at}`, name]);
  return html`<ul class="tints" aria-label="Legend of the tints">
    ${steps.map(([kind, name]) => html`<li key=${name}><span class=${`token ${kind}`}>${name}</span></li>`)}
    <li><span class="token unknown">unknown</span></li></ul>`;
}

const Completion = ({ completion, at, by, versions }) =>
  html`<article class="completion card" aria-label=${`Completion ${at + 1}`}>
    <dl><div><dt>reward</dt><dd>${share(completion.reward)}</dd></div>
      <div><dt>advantage</dt><dd>${signed(completion.advantage)}</dd></div>
      <div><dt>finish</dt><dd>${FINISHES[completion.finish] ?? 'unknown'}</dd></div></dl>
    <${Tokens} ...${{ completion, by, versions }} />
  </article>`;

// How an update uses a group. For a peer's group that depends on the current mixture.correction.
function learned(origin, correction) {
  if (origin === 'external' && correction === 'better') {
    return 'Used in an update. It made better completions more likely, weighted by their probability under this policy. A peer’s worse completions are not used.';
  }
  return 'Used in an update. It made better completions more likely and worse completions less likely.';
}

function Group({ group, correction, by: wanted, setBy }) {
  const versions = useMemo(() => versionsOf(group.completions), [group]);
  const tints = useMemo(() => tintsOf(group.completions), [group]);
  const by = tints.some(([key]) => key === wanted) ? wanted : 'none';
  return html`<section class="group" aria-label="Selected group">
    <header><h3><${Stranger} text=${group.env} /> level ${number(group.level)}</h3>
      <p><span class=${`origin ${group.origin}`}>${originName(group)}</span> <${Author} hex=${group.author} own="this node" /> ·
      round ${number(group.round)} · <time title=${moment(group.time)}>${ago(group.time)}</time></p></header>
    ${group.reason
      ? html`<p class="reason"><b>${group.origin === 'refused' ? 'Refused:' : 'Not used:'}</b> <${Stranger} text=${group.reason} /></p>`
      : html`<p class="reason good">${group.in_update ? learned(group.origin, correction) : 'Not in an update yet.'}</p>`}
    <h4>Prompt</h4><${Stranger} as="pre" text=${group.prompt} />
    <h4>Completions <${Help} of="advantage" name="advantage" /></h4>
    ${tints.length > 1
      ? html`<${Choice} label="tint" of=${tints} chosen=${by} choose=${setBy} /><${TintLegend} ...${{ by, versions }} />`
      : html`<p class="hint">No tokens are stored for these completions, so they cannot be tinted.</p>`}
    <div class="completions">${group.completions.map((completion, at) => html`<${Completion} key=${at}
      ...${{ completion, at, by, versions }} />`)}</div>
  </section>`;
}

// A field that reports its text when the typing pauses.
function Typed({ label, value, told, type = 'search' }) {
  const [typed, type_] = useState(value);
  const timer = useRef(null);
  useEffect(() => type_(value), [value]);
  const input = ({ target }) => {
    type_(target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => told(target.value), TYPING_MS);
  };
  return html`<label>${label} <input type=${type} value=${typed} onInput=${input} maxlength="200" /></label>`;
}

function Pick({ label, value, told, of }) {
  return html`<label>${label} <select value=${value} onChange=${({ target }) => told(target.value)}>
    ${of.map(([key, name]) => html`<option key=${key} value=${key} selected=${key === value}>${name}</option>`)}</select></label>`;
}

function Filters({ filter, change, groups }) {
  const { data } = useAnswer('authors', 10000);
  const seen = useRef(new Set());
  for (const group of groups) seen.current.add(group.env);
  const families = [['', 'all'], ...[...seen.current].sort().map((env) => [env, plain(env)])];
  const authors = [['', 'all'], ...(data?.authors ?? []).map(({ author }) => [author, shortId(author)])];
  const set = (key) => (value) => change((was) => ({ ...was, [key]: value }));
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <${Choice} label="origin" of=${ORIGINS} chosen=${filter.origin} choose=${set('origin')} />
    <${Choice} label="use" of=${TAUGHT} chosen=${filter.taught} choose=${set('taught')} />
    <${Pick} label="family" value=${filter.env} told=${set('env')} of=${families} />
    <${Pick} label="peer" value=${filter.author} told=${set('author')} of=${authors} />
    <${Typed} label="text" value=${filter.text} told=${set('text')} />
    <${Typed} label="round" value=${filter.round} told=${set('round')} type="number" />
    <button type="button" onClick=${() => change(NOTHING)}>clear</button>
  </form>`;
}

function Nothing({ filter }) {
  const narrowed = Object.values(filter).some(Boolean);
  return narrowed
    ? html`<${Empty} title="No groups match">Change or clear the filter.<//>`
    : html`<${Empty} title="No stored groups yet">Groups of the first round appear here automatically.
      A bootstrap node does not train and has no groups.<//>`;
}

// A filter can come along in the address: #/rollouts?author=…
const fromAddress = () => {
  const told = new URLSearchParams(location.hash.split('?')[1]);
  return Object.fromEntries(Object.keys(NOTHING).map((key) => [key, told.get(key) ?? '']));
};

export function Rollouts() {
  const { group: latest } = useStore();
  const [filter, change] = useState(fromAddress);
  const [asked, again] = useState(0);
  const [chosen, choose] = useState(null);
  const [opened, setOpened] = useState(false); // on a narrow screen: the group instead of the list
  const [by, setBy] = useKept('tint', 'none');
  const detail = useRef(null);
  const { groups, more, correction, error, loaded, older } = useGroups(filter, asked);
  const shown = groups.find(({ id }) => id === chosen) ?? groups[0];
  const known = useRef(0);
  useEffect(() => {
    known.current = latest;
  }, [groups]);
  const newer = groups.length > 0 && latest > Math.max(known.current, groups[0].id);
  useEffect(() => {
    if (loaded && !groups.length && latest) again((times) => times + 1);
  }, [latest]);
  const open = (id) => {
    choose(id);
    setOpened(true);
    if (!window.matchMedia('(max-width: 720px)').matches) return;
    requestAnimationFrame(() => {
      detail.current?.scrollIntoView();
      detail.current?.querySelector('.back button').focus();
    });
  };
  const back = () => {
    setOpened(false);
    requestAnimationFrame(() => {
      const row = detail.current?.parentElement.querySelector('.row[aria-pressed="true"]');
      row?.focus();
      row?.scrollIntoView({ block: 'nearest' });
    });
  };
  return html`<${Filters} ...${{ filter, change, groups }} /><${Problem} error=${error} />
    <p class="newer" role="status">${newer
      ? html`<button type="button" onClick=${() => again(asked + 1)}>Show newer groups</button>` : ''}</p>
    ${loaded && !groups.length ? html`<${Nothing} filter=${filter} />` : null}
    <div class=${`split ${opened ? 'opened' : ''}`}><div><ul class="rows" aria-label="Groups, newest first">${groups.map((group) => html`<${Row} key=${group.id}
        group=${group} chosen=${group === shown} choose=${() => open(group.id)} />`)}</ul>
        ${more ? html`<button type="button" onClick=${older}>Show older groups</button>` : null}</div>
      <div ref=${detail}><p class="back"><button type="button" onClick=${back}>← back to the list</button></p>
        ${shown ? html`<${Group} ...${{ group: shown, correction, by, setBy }} />` : null}</div></div>`;
}
