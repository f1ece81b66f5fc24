"""Why a group of somebody else was refused, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

_BROKEN = "It is not what the protocol allows"
WORDS: Mapping[str, str] = {
    "bad_signature": "It is not signed by the author whose name it bears.",
    "bad_key": "Its author's key is no usable one.",
    "wrong_author": "It is another author's than the one who announced it.",
    "reward_mismatch": "This node's verifier gives other rewards than its author claims.",
    "equivocation": "Its author told the same draw before, with other answers.",
    "offer_mismatch": "It is not what its author's announcement says.",
    "protocol_error": f"{_BROKEN}.",
    "bad_magic": f"{_BROKEN}: it is no frame.",
    "truncated": f"{_BROKEN}: it ends too early.",
    "trailing_bytes": f"{_BROKEN}: something follows its end.",
    "too_large": f"{_BROKEN}: it is too large.",
    "too_deep": f"{_BROKEN}: it is nested too deeply.",
    "too_many_items": f"{_BROKEN}: it has too many parts.",
    "duplicate_key": f"{_BROKEN}: it says one thing twice.",
    "bad_encoding": f"{_BROKEN}: it is not encoded the one way there is.",
    "bad_compression": f"{_BROKEN}: it cannot be unpacked.",
    "bad_schema": f"{_BROKEN}: a part is missing or of another kind.",
    "wrong_swarm": "It is of another swarm.",
    "wrong_shard": "It was announced where it does not belong.",
    "not_replayed": "Its environment, rebuilt here, answers otherwise.",
    "not_replayable": "Its environment never answers twice alike: it cannot be checked.",
    "unexpected_segments": "Its answers have parts that no family here has.",
    "wrong_content": "What was sent is not what was announced.",
    "response_too_large": "More was sent than was announced.",
    "timeout": "The verifier did not get done with its answers in time.",
    "crashed": "The verifier died over its answers.",
    "too_slow": "Its author or the line was too slow.",
    "stale_epoch": "It is too old.",
    "epoch_ahead": "It is from the future: its author's clock or this one is off.",
    "before_restore": "It may have been used before this node's journal was restored.",
    "replay": "It was met before.",
    "expired": "Its announcement had run out.",
    "bad_lifetime": "Its announcement was to last longer than is allowed.",
    "not_admitted": "Its author is not among those whom this swarm admits.",
    "banned": "Its author is banned here for what it sent before.",
    "unknown_env": "This node has no such family of tasks, or not this version or level.",
    "evaluates_text": "To score this family is to execute what answers say: not allowed here.",
    "unavailable": "The verifier was not at hand.",
    "abandoned": "Others of its frame had kept the verifier for too long.",
    "over_budget": "The time to verify its author's groups was used up.",
    "bad_verdict": "This node's verifier found no sound rewards.",
    "judge_failed": "This node's verifier failed.",
}
"""By the names of :mod:`swarm.refusals`."""


def in_words(reason: str) -> str:
    """A sentence for a reason; of one that is not known here, its name."""
    return WORDS.get(reason, f"Refused: {reason}.")
