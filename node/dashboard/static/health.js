// Problems of this node or its machine, with remedies.

import { html } from './vendor/htm-preact.js';
import { brief, bytes, plain } from './format.js';
import { Empty, Problem, Stranger } from './parts.js';
import { useAnswer } from './store.js';

const LEVELS = { ok: ['✓', 'fine'], warn: ['!', 'warning'], fail: ['✕', 'failure'] };
const ORDER = ['fail', 'warn', 'ok'];

const Level = ({ level }) => {
  const [mark, name] = LEVELS[level] ?? ['?', plain(level)];
  return html`<span class=${`level ${level}`}><span aria-hidden="true">${mark}</span> ${name}</span>`;
};

const byLevel = (rows) => [...rows].sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level));

const Finding = ({ finding }) =>
  html`<li class="card finding"><${Level} level=${finding.level} /><b><${Stranger} text=${finding.what} /></b>
    <${Stranger} as="p" text=${finding.found} />
    ${finding.remedy ? html`<p class="remedy">→ <${Stranger} text=${finding.remedy} /></p>` : null}</li>`;

const Alarm = ({ alarm }) =>
  html`<li class="card finding"><${Level} level=${alarm.level} /><b><${Stranger} text=${alarm.name} /></b>
    ${alarm.value === null ? null : html`<code>${alarm.name === 'disk' ? bytes(alarm.value) : brief(alarm.value)}</code>`}
    <${Stranger} as="p" text=${alarm.means} /></li>`;

function Log() {
  const { data, error } = useAnswer('log?lines=200', 2000);
  return html`<h3 class="title">Latest log lines</h3><${Problem} error=${error} />
    ${data?.lines.length === 0 ? html`<p class="hint">The log is empty.</p>` : null}
    ${data?.lines.length ? html`<pre class="log stranger" dir="auto" tabindex="0" role="log" aria-live="off" aria-label="The last lines of the log, newest first">${
      [...data.lines].reverse().map((line, at) => html`<span key=${at} class=${/ (WARNING|ERROR) /.exec(line.slice(0, 60))?.[1]?.toLowerCase()}>${plain(line)}${'\n'}</span>`)}</pre>` : null}`;
}

export function Health() {
  const { data, error } = useAnswer('health', 5000);
  const [findings, alarms] = [data?.findings ?? [], data?.alarms ?? []];
  return html`<${Problem} error=${error} />
    <div class="health">
      <section><h3 class="title">Alarms</h3>
        ${data && !alarms.length ? html`<${Empty} title="No alarms">All monitored figures are within their limits.<//>` : null}
        <ul>${byLevel(alarms).map((alarm) => html`<${Alarm} key=${alarm.name} alarm=${alarm} />`)}</ul></section>
      <section><h3 class="title">Checks</h3>
        ${data && !findings.length ? html`<${Empty} title="No checks yet">Run swarm-node doctor to check now.<//>` : null}
        <ul>${byLevel(findings).map((finding, at) => html`<${Finding} key=${at} finding=${finding} />`)}</ul></section>
    </div><${Log} />`;
}
