// An introduction to swarms, and the command to join this one.

import { html, useRef, useState } from './shared/vendor/htm-preact.js';

// An address stands in a line that people paste into a terminal: no character in it may mean more.
const ADDRESS = /^\/[\w.:-]+(\/[\w.:-]+)+$/;
const TOLD = { copied: 'Copied.', selected: 'Selected: copy it with the keyboard or the menu.' };

function select(element) {
  const all = document.createRange();
  all.selectNodeContents(element);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(all);
}

// Pages without encryption have no clipboard, and others may be denied it: then what is selected is copied.
async function copied(element) {
  const written = () => navigator.clipboard.writeText(element.textContent).then(() => true, () => false);
  if (navigator.clipboard && (await written())) return 'copied';
  select(element);
  return document.execCommand('copy') ? 'copied' : 'selected';
}

function Line({ address }) {
  const line = useRef(null);
  const [told, tell] = useState('');
  const press = async () => tell(await copied(line.current));
  return html`<div class="line"><code ref=${line} tabindex="0" role="textbox" aria-readonly="true" aria-label="Join command"
      onFocus=${() => select(line.current)}>swarm-node join --peers ${address}</code>
    <button type="button" onClick=${press}>copy</button><span role="status">${TOLD[told] ?? ''}</span></div>`;
}

export function Join({ addresses }) {
  const sound = addresses.filter((address) => ADDRESS.test(address));
  const [first, ...others] = sound;
  return html`<section class="card join" aria-label="About this swarm, and how to join">
    <p class="lead">In a swarm, each machine trains its own language model and shares its completions with their rewards. Each
      machine learns from far more completions than it can generate alone, and verifies each one that it takes.</p>
    <h3>Join with one command</h3>
    ${first
      ? html`<${Line} address=${first} />
        <p class="hint">Run it in a terminal, on a machine with swarm-node. You need no account: your node creates its own key.</p>`
      : html`<p>No reachable address is known. Ask the operator of this swarm for one.</p>`}
    ${others.length
      ? html`<details><summary>Other addresses of this swarm</summary><ul>${others.map((address) => html`<li key=${address}>
          <code class="long">${address}</code></li>`)}</ul></details>`
      : null}
  </section>`;
}
