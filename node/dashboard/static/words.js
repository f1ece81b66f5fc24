// What each figure means, in a sentence that stands behind its question mark.

import { WORDS } from './parts.js';

Object.assign(WORDS, {
  reward: 'Mean reward of completions, 0 to 1: the node’s own, those of external groups in the update by its own verdict, and answers to held-out tasks that nobody trains on. The own jumps, as every round has other tasks.',
  families: 'Mean reward of own completions by family of tasks and level. A higher level is harder.',
  informative: 'Share of own groups whose rewards differ: only those teach. Beside it, the share of the update from authors not proved useful before, and from the largest author.',
  entropy: 'How undecided the policy is at each token, in nats. Near 0 it always answers alike and explores no more.',
  loss: 'The update’s loss before its first step, and its gradient’s norm before clipping.',
  length: 'A sudden rise together with a high share of cut answers is length drift.',
  clip: 'Clip: share of the loss’s terms that left the trust region. Masked: share dropped because another policy would have written them with too different a probability. Cut: share of completions that the length cap ended.',
  gap: 'How far the engine’s log-probabilities are from the learner’s. It should stay near 0; a jump says that the engine runs other weights or other arithmetic.',
  lead: 'How far peers are ahead on tasks of the same level, in rewards: above 0 their groups are better than this node’s own.',
  composition: 'Of whose groups each update was made. One author has a quarter of it at most.',
  time: 'Idle is time in which nothing of the round could go on.',
  speed: 'Completion tokens sampled a second, while generating, or over the whole round where generation never stops.',
  memory: 'Resident memory of the node and its children. A line that only rises is a leak.',
  pool: 'External groups admitted that may still be used, and the room the last update had for external ones.',
  traffic: 'Payload bytes since the process started, from peers and to them.',
  advantage: 'How much better than its group this completion was: positive ones are made likelier, negative ones less likely. All 0 teach nothing.',
  author: 'The public key that signed the groups. The pattern beside it is drawn from the key, so that text cannot imitate it.',
  admitted: 'Groups of this author that passed every check of this node.',
  used: 'Groups of this author that were part of an update of this node.',
  share: 'This author’s part of all groups this node has learned from.',
  standing: 'How far this author’s groups have proved useful here, 0 to 1. From 0.25 on the author is no newcomer any more.',
  usefulness: 'Measured by this node, never told by the author: the gain of held-out reward that the author’s groups account for, with its 95 % interval. One that holds 0 says that nothing is known yet.',
  refused: 'Groups and offers that did not pass, by reason.',
  strikes: 'What refusals weigh that an honest node cannot cause. It halves every hour; at 5 the author is banned until it has fallen to 1.',
  seen: 'The last sign of life from this author.',
  link: 'Whether the peer is connected directly or through another peer that relays.',
  step: 'Optimizer steps the peer says its policy has taken.',
  map: 'A line is the thicker the more groups were admitted from that peer, solid where the connection is direct, dashed where it is relayed or gone. What peers take from each other is not known here.',
});
