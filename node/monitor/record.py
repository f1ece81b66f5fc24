"""The one record that a round leaves behind; every view of a node is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

PHASES = (
    "generate",
    "wait",
    "verify",
    "publish",
    "mix",
    "update",
    "evaluate",
    "checkpoint",
    "idle",
)
"""Keys of :attr:`RoundRecord.seconds` in the order of a round, and ``total`` beside them.

Where generation never stops there is no ``generate`` but ``wait``: for own groups to be complete.
"""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round in figures; None stands for what there was nothing to measure of.

    Attributes:
        round: number of the round in this run folder's life, from 1.
        policy_step: optimizer steps taken so far.
        time: unix time at the end of the round, seconds.
        reward_own: mean reward of the node's own completions, 0 to 1.
        reward_external: mean reward (our verdict) of the external groups trained on.
        reward_eval: mean reward on held-out tasks, in rounds that evaluate.
        informative_own: share of own groups whose rewards differ, 0 to 1.
        groups_own: own groups in the update.
        groups_external: external groups in the update.
        external_wanted: external groups that the update had room for.
        authors: external groups in the update by author, the public key in hex.
        useful: by author, how useful these were together, as in
            :attr:`node.learner.update_stats.UpdateStats.useful`.
        levels: mean reward of own completions by ``family/level``.
        author_share: share of the update's groups that are of the author with most of them, 0 to 1;
            own groups are nobody's.
        newcomer_share: share that is of authors who had not proved useful before.
        pool_groups: groups in the pool after the round.
        tokens_generated: completion tokens sampled.
        tokens_trained: completion tokens in the update.
        tokens_per_s: sampling speed, tokens a second of the generate phase, or of the whole round
            where generation never stops.
        mean_length: tokens a completion.
        truncated: share of completions cut by the length cap, 0 to 1.
        seconds: time by phase, see :data:`PHASES`, and ``total``.
        lead: how far peers are ahead, as in :class:`swarm.mixture.peer_advantage.PeersLead`.
        loss, entropy, grad_norm, largest_share, groups_bounded, clip_fraction, masked_fraction,
            ratio_low, ratio_median, ratio_high, ratio_max, engine_gap, learning_rate: of the
            update, as in :class:`node.learner.update_stats.UpdateStats`; all ``None`` when no
            optimizer step was taken.
        staleness: own tokens of the update by the policy steps since they were sampled.
        peers: others known to be in this swarm.
        strangers: connected nodes of other swarms.
        bytes_in, bytes_out: payload bytes since the process started.
        refused: refused groups by reason since the process started.
        counters: every other counter since the process started.
        rss_mb: resident memory of this process and its children, MB of 10**6 bytes.
    """

    round: int
    policy_step: int
    time: float
    reward_own: float | None
    reward_external: float | None = None
    reward_eval: float | None = None
    informative_own: float | None = None
    groups_own: int = 0
    groups_external: int = 0
    external_wanted: int = 0
    authors: Mapping[str, int] = field(default_factory=dict)
    useful: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)
    author_share: float | None = None
    newcomer_share: float | None = None
    pool_groups: int = 0
    tokens_generated: int = 0
    tokens_trained: int = 0
    tokens_per_s: float | None = None
    mean_length: float | None = None
    truncated: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    lead: float | None = None
    loss: float | None = None
    entropy: float | None = None
    grad_norm: float | None = None
    largest_share: float | None = None
    groups_bounded: float | None = None
    clip_fraction: float | None = None
    masked_fraction: float | None = None
    ratio_low: float | None = None
    ratio_median: float | None = None
    ratio_high: float | None = None
    ratio_max: float | None = None
    engine_gap: float | None = None
    learning_rate: float | None = None
    staleness: Mapping[str, int] = field(default_factory=dict)
    peers: int = 0
    strangers: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    rss_mb: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = ((name, getattr(self, name)) for name in _names())
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RoundRecord:
        """The inverse of :meth:`to_dict`; keys of other versions are left out."""
        return cls(**{name: values[name] for name in _names() if name in values})

    def scalars(self) -> dict[str, float]:
        """Every single figure by name, absent ones left out; phases as ``seconds_<phase>``
        and ages as ``staleness_<steps>``."""
        flat = {
            name: float(value)
            for name, value in self.to_dict().items()
            if isinstance(value, int | float)
        }
        flat.update({f"seconds_{phase}": float(s) for phase, s in self.seconds.items()})
        flat.update({f"staleness_{steps}": float(n) for steps, n in self.staleness.items()})
        return flat


@cache
def _names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(RoundRecord))
