// The known peers, and the peers whose groups this node takes.

import { html } from './vendor/htm-preact.js';
import { ago, brief, bytes, count, known, moment, number, plain, shortId, signed } from './format.js';
import { Authors } from './lineage.js';
import { Empty, Help, Pattern, Problem, Refused, Stranger, Table, Told } from './parts.js';
import { useAnswer } from './store.js';

const LINKS = { direct: 'direct', relayed: 'relayed' };

const unit = (value, name, written) => (known(value) ? `${written(value)} ${name}` : '');

function kind(peer, ours) {
  const kinds = {
    bootstrap: peer.bootstrap,
    'another swarm': peer.swarm_id && ours && peer.swarm_id !== ours,
    banned: peer.banned,
  };
  return Object.keys(kinds).filter((name) => kinds[name]).join(', ') || 'node';
}

function columns(ours, told) {
  return [
    { key: 'peer', name: 'peer', word: 'told', show: (row) => html`<span class="author">${row.author ? html`<${Pattern} of=${row.author} />` : null}
      <code title=${plain(row.peer_id)}>${shortId(row.peer_id)}</code></span><${Told} of=${row} />` },
    { key: 'kind', name: 'role', show: (row) => kind(row, ours) },
    { key: 'link', name: 'connection', word: 'link', show: (row) => (row.connected ? LINKS[row.link] ?? 'yes' : 'no') },
    { key: 'away', name: 'round trip', word: 'away', kind: 'figure', show: (row) => unit(1000 * (row.round_trip_s ?? NaN), 'ms', brief) },
    { key: 'clock', name: 'clock', word: 'clock', kind: 'figure', show: (row) => unit(row.clock_ahead_s, 's', signed) },
    ...(told ? [{ key: 'model', name: 'model', word: 'told', show: (row) => html`<span class="told"><${Stranger} text=${row.model ?? ''} /></span>` }] : []),
    { key: 'step', name: 'policy step', word: 'step', kind: 'figure', show: (row) => number(row.policy_step) },
    { key: 'admitted', name: 'admitted', word: 'admitted', kind: 'figure', show: (row) => number(row.admitted) },
    { key: 'refused', name: 'refused', word: 'refused', show: (row) => html`<${Refused} refused=${row.refused} />` },
    { key: 'strikes', name: 'penalties', word: 'penalties', kind: 'figure', show: (row) => count(row.strikes) },
    { key: 'in', name: 'in', word: 'traffic', kind: 'figure', show: (row) => bytes(row.bytes_in) },
    { key: 'out', name: 'out', word: 'traffic', kind: 'figure', show: (row) => bytes(row.bytes_out) },
    { key: 'heard', name: 'last seen', word: 'seen', kind: 'figure', show: (row) => html`<span title=${moment(row.heard)}>${ago(row.heard)}</span>` },
  ];
}

// A map of the peers whose groups this node takes.
const MOST = 24;
const [WIDTH, HEIGHT] = [420, 300];
const [CENTRE_X, CENTRE_Y] = [WIDTH / 2, HEIGHT / 2];
const [REACH_X, REACH_Y] = [150, 108];

const place = (at, count) => {
  const angle = (2 * Math.PI * at) / count - Math.PI / 2;
  return [CENTRE_X + REACH_X * Math.cos(angle), CENTRE_Y + REACH_Y * Math.sin(angle)];
};

const said = (peer) =>
  `${plain(peer.peer_id)}: ${number(peer.admitted)} groups admitted, ` +
  `${peer.connected ? plain(peer.link ?? 'connected') : 'not connected'}${peer.bootstrap ? ', new or bootstrap node' : ''}`;

function Spoke({ peer, at, count, most }) {
  const [x, y] = place(at, count);
  const solid = peer.connected && peer.link !== 'relayed';
  const kind = peer.banned ? 'banned' : peer.bootstrap ? 'bootstrap' : peer.admitted ? 'giver' : 'silent';
  return html`<g class=${kind}><title>${said(peer)}</title>
    <path class=${solid ? 'solid' : 'dashed'} d=${`M${x} ${y} ${CENTRE_X} ${CENTRE_Y}`}
      stroke-width=${1 + 7 * Math.sqrt(peer.admitted / (most || 1))} />
    ${peer.bootstrap ? html`<rect x=${x - 7} y=${y - 7} width="14" height="14" />` : html`<circle cx=${x} cy=${y} r="8" />`}
    <text x=${x} y=${y + (y < CENTRE_Y ? -13 : 21)}>${shortId(peer.peer_id)}</text></g>`;
}

function Takes({ peers, self, more }) {
  const shown = [...peers].sort((a, b) => b.admitted - a.admitted).slice(0, MOST);
  const most = Math.max(...shown.map((peer) => peer.admitted));
  const givers = peers.filter((peer) => peer.admitted).length;
  const words = `${givers} of ${peers.length + more} known peers have admitted groups.`;
  return html`<figure class="card map"><figcaption><h3>Sources of groups</h3><${Help} of="map" name="this map" /></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${words}>
      ${shown.map((peer, at) => html`<${Spoke} key=${peer.peer_id} ...${{ peer, at, most, count: shown.length }} />`)}
      <circle class="self" cx=${CENTRE_X} cy=${CENTRE_Y} r="13" />
      <text class="own" x=${CENTRE_X} y=${CENTRE_Y + 28}>${shortId(self.peer_id)}</text></svg>
    <p class="hint">${words}${peers.length > MOST ? ` The map shows the ${MOST} peers with the most admitted groups.` : ''} A square is a new or bootstrap node.</p></figure>`;
}

const Self = ({ self }) =>
  html`<section class="card"><h3>This node</h3><dl class="facts">
    <div><dt>peer id</dt><dd><code class="long">${plain(self.peer_id ?? 'not known yet')}</code></dd></div>
    <div><dt>swarm</dt><dd><${Stranger} text=${self.swarm_name ?? 'none yet'} /> <code class="long">${plain(self.swarm_id ?? '')}</code></dd></div>
    ${self.reach ? html`<div><dt>reachability</dt><dd>${plain(self.reach.way)}${self.reach.cause ? html`: <${Stranger} text=${self.reach.cause} />` : ''}</dd></div>` : null}
    ${self.reach?.remedy ? html`<div><dt>to do</dt><dd><${Stranger} text=${self.reach.remedy} /></dd></div>` : null}
    ${(self.addresses ?? []).map((address) => html`<div key=${address}><dt>join command</dt>
      <dd><code class="long">swarm-node join --peers ${plain(address)}</code></dd></div>`)}
  </dl></section>`;

export function Swarm() {
  const { data, error } = useAnswer('peers', 3000);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return null;
  const rows = data.peers.map((peer) => ({ ...peer, key: peer.peer_id }));
  return html`<div class="swarm"><${Self} self=${data.self ?? {}} />
    ${rows.length ? html`<${Takes} peers=${rows} self=${data.self ?? {}} more=${data.more ?? 0} />` : null}</div>
    ${rows.length
      ? html`<h3 class="title">Peers</h3><${Table} caption="Known peers" columns=${columns(data.self?.swarm_id, rows.some((row) => row.model))} rows=${rows} />`
      : html`<${Empty} title="No known peers yet">This node trains alone. Run the join command on another machine.
          Or run swarm-node join here, with --lan or with --peers and the address of a peer.<//>`}
    ${rows.length ? html`<h3 class="title">Usefulness to this node <${Help} of="usefulness" name="usefulness" /></h3>
      <${Authors} first="gain" caption="Peers by usefulness to this node" />` : null}`;
}
