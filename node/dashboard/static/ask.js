// A question to the policy, its answer as it is written, and what the verifier makes of it.

import { html, useEffect, useMemo, useRef, useState } from './vendor/htm-preact.js';
import { number, plain, share } from './format.js';
import { Empty, Help, Stranger } from './parts.js';
import { streamed, useAnswer, useStore } from './store.js';

const nothing = { question: null, stage: '', answers: [], error: null };

const last = (answers, change) => answers.map((each, at) => (at === answers.length - 1 ? { ...each, ...change(each) } : each));

// The state after one more event.
const HEARD = {
  stage: (was, { what }) => ({ ...was, stage: `${what} …` }),
  question: (was, question) => ({ ...was, question }),
  model: (was, { name, base }) => ({ ...was, stage: 'generating …', answers: [...was.answers, { name, base, text: '' }] }),
  text: (was, { text }) => ({ ...was, answers: last(was.answers, (each) => ({ text: each.text + text })) }),
  opinion: (was, { reward, unscored, empty }) => ({ ...was, answers: last(was.answers, () => ({ reward, unscored, empty, done: true })) }),
  error: (was, { error }) => ({ ...was, stage: '', error }),
  end: (was) => ({ ...was, stage: '' }),
};

const Answer = ({ answer }) =>
  html`<article class="completion card" aria-label=${answer.base ? 'Untrained' : 'Trained'}>
    <dl><div><dt>${answer.base ? 'untrained' : 'trained'}</dt><dd><${Stranger} text=${answer.name} /></dd></div>
      ${answer.done ? html`<div><dt>reward</dt><dd class="verdict">${answer.unscored ? 'none' : share(answer.reward)}</dd></div>` : null}</dl>
    <pre><${Stranger} text=${answer.text} /></pre>
    ${answer.empty ? html`<p class="hint">It wrote ${plain(answer.empty)}.</p>` : null}
    ${answer.unscored ? html`<p class="hint">No reward: ${plain(answer.unscored)}.</p>` : null}
  </article>`;

function Told({ told: { question, stage, answers, error } }) {
  return html`<section class="group" aria-label="Answer">
    <p class="newer" role="status">${stage}</p>
    ${error ? html`<p class="problem" role="status">${plain(error)}</p>` : null}
    ${question ? html`<h4>${question.family ? html`Question of <${Stranger} text=${question.family} />, level ${number(question.level)}` : 'Question'}</h4>
      <pre><${Stranger} text=${question.prompt} /></pre>` : null}
    <div class="completions">${answers.map((answer, at) => html`<${Answer} key=${at} answer=${answer} />`)}</div></section>`;
}

const SAMPLES = 3;
const LONGEST_SAMPLE = 300; // less than the field takes

// Questions that this node was asked lately, one of each family.
function samplesOf(groups) {
  const found = new Map();
  for (const { env, prompt } of groups) {
    if (prompt.trim() && prompt.length <= LONGEST_SAMPLE && !found.has(env)) found.set(env, prompt);
  }
  return [...found].slice(0, SAMPLES);
}

const Samples = ({ of, take }) =>
  of.length ? html`<p class="samples">for example:
    ${of.map(([env, prompt]) => html`<button type="button" key=${env} title=${plain(env)} onClick=${() => take(prompt)}>
      <${Stranger} text=${prompt.split('\n').find((line) => line.trim()) ?? prompt} /></button>`)}</p>` : null;

export function Ask() {
  const { status } = useStore();
  const { data } = useAnswer('levels?points=2', 60000);
  const { data: lately } = useAnswer('groups?limit=40&origin=own', 60000);
  const samples = useMemo(() => samplesOf(lately?.groups ?? []), [lately]);
  const typed = useRef(null);
  const [told, tell] = useState(nothing);
  const [busy, setBusy] = useState(false);
  const abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);
  if (status?.state === 'none') {
    return html`<${Empty} title="No checkpoint yet">You can ask questions after the node writes the first checkpoint of its policy.<//>`;
  }
  const families = [...new Set((data?.families ?? []).map(({ env }) => env))];
  const take = (prompt) => {
    typed.current.value = prompt;
    typed.current.focus();
  };
  const begin = async (event) => {
    event.preventDefault();
    const { question, family, base } = event.target;
    const asked = new URLSearchParams();
    if (question.value.trim()) asked.set('question', question.value);
    if (family.value) asked.set('family', family.value);
    if (base.checked) asked.set('base', 1);
    abort.current = new AbortController();
    tell({ ...nothing, stage: 'asking …' });
    setBusy(true);
    try {
      await streamed(`ask?${asked}`, abort.current.signal, (each) => tell((was) => (Object.hasOwn(HEARD, each.event) ? HEARD[each.event](was, each) : was)));
    } catch (error) {
      tell((was) => ({ ...was, stage: '', error: error.name === 'AbortError' ? 'stopped' : error.message }));
    }
    setBusy(false);
  };
  return html`<form class="filters asking card" onSubmit=${begin}>
      <label class="typed">question <textarea name="question" ref=${typed} rows="3" maxlength="1000" placeholder="leave empty to sample a held-out question"></textarea></label>
      <label>family <select name="family"><option value="">any</option>
        ${families.map((env) => html`<option key=${env} value=${env}>${plain(env)}</option>`)}</select></label>
      <label><input type="checkbox" name="base" /> also ask the untrained model</label>
      ${busy ? html`<button type="button" onClick=${() => abort.current.abort()}>stop</button>` : html`<button>ask</button>`}
      <${Help} of="ask" name="asking" />
      <${Samples} of=${samples} take=${take} /></form>
    <${Told} told=${told} />`;
}
