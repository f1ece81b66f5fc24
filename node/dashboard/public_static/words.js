// What the figures of a swarm mean, and why groups are refused.

import { plain } from './shared/format.js';
import { WORDS } from './shared/parts.js';

Object.assign(WORDS, {
  nodes: 'Authors that announced themselves within the last two epochs, this page’s own observer left out. Where only a part of the swarm is seen, the size of the whole is estimated.',
  bootstrap: 'Those that never shared a group: they only keep the swarm together.',
  link: 'Whether the observer reaches a node directly or through another that relays.',
  models: 'What the nodes train, as their owners say.',
  versions: 'Of the program, as their owners say.',
  offered: 'Groups that their authors offer to everybody: a task, several answers to it, and their rewards.',
  verified: 'Groups that the observer drew, pulled and scored itself, with the rewards that their authors had told.',
  refusals: 'Groups that were drawn and did not pass, by reason. What the observer had no time or no means to check is among them.',
  authors: 'Keys that ever offered anything, as far as was seen since the first look.',
  author: 'A name is what its owner says. The pattern and the short peer id beside it are made from the public key that signed the groups.',
  rewards: 'Mean reward of verified answers, 0 to 1, by family of tasks and level, with the interval in which the mean lies at 95 %.',
  groups: 'Groups that all authors together began to offer, by the hour.',
  checks: 'Groups that the observer drew from those on offer, by the hour, and what came of them.',
  churn: 'Nodes that announced themselves for the first time in two epochs, and those that were not heard of for as long. By the hour.',
  step: 'Optimizer steps that the owner says the policy has taken.',
  last: 'The last announcement that was heard.',
  days: 'Groups of this author by day, in the world’s time: offered, and verified of those that were drawn.',
  reward: 'Mean reward of this author’s verified answers by day.',
});

const BROKEN = 'not what the protocol allows';
const REASONS = {
  bad_signature: 'not signed by the author it names',
  bad_key: 'the author’s key is no usable one',
  wrong_author: 'another author’s than announced',
  reward_mismatch: 'other rewards than the verifier gives',
  equivocation: 'the same draw told twice, with other answers',
  offer_mismatch: 'not what its announcement says',
  protocol_error: BROKEN,
  bad_magic: `${BROKEN}: no frame`,
  truncated: `${BROKEN}: ends too early`,
  trailing_bytes: `${BROKEN}: something follows its end`,
  too_large: `${BROKEN}: too large`,
  too_deep: `${BROKEN}: nested too deeply`,
  too_many_items: `${BROKEN}: too many parts`,
  duplicate_key: `${BROKEN}: says one thing twice`,
  bad_encoding: `${BROKEN}: not encoded the one way there is`,
  bad_compression: `${BROKEN}: cannot be unpacked`,
  bad_schema: `${BROKEN}: a part is missing or of another kind`,
  wrong_swarm: 'of another swarm',
  wrong_shard: 'announced where it does not belong',
  not_replayed: 'environment answers otherwise',
  not_replayable: 'environment never answers twice alike',
  unexpected_segments: 'answers have parts that no family here has',
  wrong_content: 'what was sent is not what was announced',
  response_too_large: 'more was sent than announced',
  timeout: 'could not be verified in time',
  crashed: 'the verifier died over its answers',
  too_slow: 'the author or the line was too slow',
  stale_epoch: 'too old',
  epoch_ahead: 'from the future: a clock is off',
  before_restore: 'perhaps used before a journal was restored',
  replay: 'met before',
  expired: 'its announcement had run out',
  bad_lifetime: 'announced for longer than is allowed',
  not_admitted: 'the author is not admitted to this swarm',
  banned: 'the author is banned for what it sent before',
  unknown_env: 'a family, version or level that is not known here',
  evaluates_text: 'scoring it would execute what answers say',
  unavailable: 'the verifier was not at hand',
  abandoned: 'others of its frame took too long',
  over_budget: 'the time to verify this author was used up',
  bad_verdict: 'the verifier found no sound rewards',
  judge_failed: 'the verifier failed',
};

// A reason in words; one that is not known here by its name.
export const reason = (name) => (Object.hasOwn(REASONS, name) ? REASONS[name] : plain(name.replaceAll('_', ' ')));
