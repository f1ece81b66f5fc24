"""Why experience is refused, and what each reason costs its author.

Every refusal is counted; only what an honest, well-kept node cannot do is a strike. The author in
question signed the announcement that offers the frame under its hash, so a frame that is broken
was broken by him and not on the way.
"""

from __future__ import annotations

from collections.abc import Mapping

WRONG_AUTHOR = "wrong_author"
EQUIVOCATION = "equivocation"
REWARD_MISMATCH = "reward_mismatch"
UNEXPECTED_SEGMENTS = "unexpected_segments"
NOT_REPLAYED = "not_replayed"
BANNED = "banned"
STALE_EPOCH = "stale_epoch"
EPOCH_AHEAD = "epoch_ahead"
BEFORE_RESTORE = "before_restore"
REPLAY = "replay"
ABANDONED = "abandoned"
OVER_BUDGET = "over_budget"
OFFER_MISMATCH = "offer_mismatch"
BAD_VERDICT = "bad_verdict"
JUDGE_FAILED = "judge_failed"

# Bars the author at once; see swarm.reputation.BAR_AT.
_FORGED = 5.0
_WRONG = 1.0
# A loaded machine makes honest texts slow now and then, but not ten of one author in an hour.
_SLOW = 0.5
_NO_FAULT = 0.0

STRIKES: Mapping[str, float] = {
    # Forgery: somebody's name under what he did not sign.
    "bad_signature": _FORGED,
    "bad_key": _FORGED,
    WRONG_AUTHOR: _FORGED,
    # Lies: another reward than the verifier gives, another observation than the environment does;
    # one draw told in two ways. A node that lost its journal without a backup can do the last once
    # by honest mistake.
    REWARD_MISMATCH: _WRONG,
    NOT_REPLAYED: _WRONG,
    EQUIVOCATION: _WRONG,
    # An offer that says other things of its frame than the frame does.
    OFFER_MISMATCH: _WRONG,
    # Malformed: not what the protocol or the manifest, which every member has, allows.
    "protocol_error": _WRONG,
    "bad_magic": _WRONG,
    "truncated": _WRONG,
    "trailing_bytes": _WRONG,
    "too_large": _WRONG,
    "too_deep": _WRONG,
    "too_many_items": _WRONG,
    "duplicate_key": _WRONG,
    "bad_encoding": _WRONG,
    "bad_compression": _WRONG,
    "bad_schema": _WRONG,
    "wrong_swarm": _WRONG,
    "wrong_shard": _WRONG,
    UNEXPECTED_SEGMENTS: _WRONG,
    # Served over a stream that only the author's key can open: not the frame he announced.
    "wrong_content": _WRONG,
    "response_too_large": _WRONG,
    # Texts that hang or kill the verifier.
    "timeout": _SLOW,
    "crashed": _SLOW,
    # Time: a slow author or line, a clock that is off (his or ours), a frame met twice.
    "too_slow": _NO_FAULT,
    STALE_EPOCH: _NO_FAULT,
    EPOCH_AHEAD: _NO_FAULT,
    BEFORE_RESTORE: _NO_FAULT,
    REPLAY: _NO_FAULT,
    "expired": _NO_FAULT,
    "bad_lifetime": _NO_FAULT,
    # Policy of the swarm or of this node.
    "not_admitted": _NO_FAULT,
    BANNED: _NO_FAULT,
    # This node's limits: what it does not know, dares not run, or failed at.
    "unknown_env": _NO_FAULT,
    "evaluates_text": _NO_FAULT,
    "not_replayable": _NO_FAULT,
    "unavailable": _NO_FAULT,
    ABANDONED: _NO_FAULT,
    OVER_BUDGET: _NO_FAULT,
    BAD_VERDICT: _NO_FAULT,
    JUDGE_FAILED: _NO_FAULT,
}


def strike_weight(reason: str) -> float:
    """Strikes for one refusal; a reason that the table does not know costs nothing."""
    return STRIKES.get(reason, _NO_FAULT)
