"""The record of each round, the groups shown of it, and its sinks."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from node.learner.losses import Advantage
from node.learner.update_stats import UpdateStats
from node.monitor.groups import (
    MOST_ANSWERS,
    ShownCompletion,
    ShownGroup,
    ShownTokens,
    in_words,
    transcript,
)
from node.monitor.record import RoundRecord, Sink, mean
from node.monitor.sinks import SafeSink, resident_mb, split_totals
from node.policy.policy import Policy
from node.rollout.groups import LocalGroup
from node.run.update_groups import Outcome
from protocol.rollout import Completion, Finish
from swarm.admission import RefusedGroup
from swarm.common.counters import Counters
from swarm.groups import PooledGroup, informative
from swarm.member import MemberStatus
from swarm.pool import Pool

AT_ONCE = 8  # maximum local groups of a round to show, and peer groups
SAME = "All {count} completions have the reward {reward:g}, so there is nothing to learn."
NO_STEP = "The update had no step."
REFUSED_STEP = "The update's step was skipped: its loss or gradient was not finite."
IMPLAUSIBLE = (
    "The better completions are very unlikely under this policy, so they do not count yet."
)
EMPTIED = (
    "Nothing was left to learn: a filter excludes its better completions, or they are too long."
)


@dataclass(eq=False)
class ShownGroups:
    """The latest round's groups for display; ``refused`` returns the newly refused."""

    policy: Policy
    advantage: Advantage
    refused: Callable[[], Sequence[RefusedGroup]]

    def __post_init__(self) -> None:
        self._pieces: dict[int, str] = {}
        self._latest: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        """Store a round in place of the one before."""
        self._latest = outcome

    def take(self) -> list[ShownGroup]:
        """Return the groups not shown yet, informative local ones first, and refused ones."""
        outcome, self._latest = self._latest, None
        if outcome is None:
            return []
        number, now = outcome.round, time.time()
        entropies = outcome.update.entropies
        if len(entropies) != len(outcome.local):
            entropies = ((),) * len(outcome.local)
        pairs = list(zip(outcome.local, entropies, strict=True))
        pairs.sort(key=lambda each: not each[0].informative)
        groups = [self._own(local, entropy, outcome, now) for local, entropy in pairs[:AT_ONCE]]
        usefulness = outcome.update.useful or (None,) * len(outcome.external)
        used = list(zip(outcome.external, usefulness, strict=False))
        used.sort(key=lambda each: not each[0].candidate.informative)
        for pooled, value in used[:AT_ONCE]:
            reason = _nothing(pooled.group.rewards, outcome)
            if reason is None and value == 0:
                reason = IMPLAUSIBLE
            groups.append(self._pooled(pooled, number, now, in_update=True, reason=reason))
        for pooled in outcome.dropped[:AT_ONCE]:
            groups.append(self._pooled(pooled, number, now, in_update=False, reason=EMPTIED))
        return groups + [self._refused_group(each, number) for each in self.refused()]

    def _own(
        self, local: LocalGroup, entropies: Sequence[Sequence[float]], outcome: Outcome, now: float
    ) -> ShownGroup:
        rewards = local.training.rewards
        return ShownGroup(
            round=outcome.round,
            time=now,
            origin="own",
            env=local.group.env,
            level=local.group.level,
            author=None,
            prompt=local.prompt,
            in_update=True,
            reason=_nothing(rewards, outcome),
            completions=self._completions(local.group.completions, rewards, entropies, local=True),
        )

    def _pooled(
        self, pooled: PooledGroup, number: int, now: float, *, in_update: bool, reason: str | None
    ) -> ShownGroup:
        group = pooled.group
        same_vocab = pooled.encoding == self.policy.encoding
        return ShownGroup(
            round=number,
            time=now,
            origin="external",
            env=group.env,
            level=group.level,
            author=pooled.author.hex(),
            prompt=pooled.prompt,
            in_update=in_update,
            reason=reason,
            completions=self._completions(group.completions, group.rewards, (), local=same_vocab),
        )

    def _refused_group(self, refused: RefusedGroup, number: int) -> ShownGroup:
        group = refused.group
        return ShownGroup(
            round=number,
            time=refused.at,
            origin="refused",
            env=group.env,
            level=group.level,
            author=refused.author.hex(),
            prompt=refused.prompt,
            in_update=False,
            reason=in_words(refused.reason),
            completions=[
                ShownCompletion(
                    text=transcript(completion.segments),
                    reward=refused.rewards[index] if index < len(refused.rewards) else None,
                    advantage=None,
                    truncated=completion.finish is Finish.LENGTH,
                )
                for index, completion in enumerate(group.completions[:MOST_ANSWERS])
            ],
        )

    def _completions(
        self,
        completions: Sequence[Completion],
        rewards: Sequence[float],
        entropies: Sequence[Sequence[float]],
        *,
        local: bool,
    ) -> list[ShownCompletion]:
        """With ``local``, token ids are of this policy's vocabulary; entropies may be empty."""
        entropies = entropies or ((),) * len(completions)
        rows = list(zip(completions, rewards, self.advantage(rewards), entropies, strict=True))
        if len(rows) > MOST_ANSWERS:  # the worst and the best ones
            rows.sort(key=itemgetter(1))
            rows = rows[: MOST_ANSWERS // 2] + rows[-MOST_ANSWERS // 2 :]
        return [
            ShownCompletion(
                text=transcript(completion.segments),
                reward=reward,
                advantage=advantage,
                truncated=completion.finish is Finish.LENGTH,
                tokens=self._tokens(completion, entropy) if local else ShownTokens(),
            )
            for completion, reward, advantage, entropy in rows
        ]

    def _tokens(self, completion: Completion, entropy: Sequence[float]) -> ShownTokens:
        tokens = completion.segments[0].tokens if len(completion.segments) == 1 else None
        stopped = completion.finish is Finish.STOP
        if tokens is None or not self.policy.spells(tokens.ids, completion.text, stopped):
            return ShownTokens()
        for token_id in set(tokens.ids) - self._pieces.keys():
            self._pieces[token_id] = str(self.policy.tokenizer.decode([token_id]))
        texts = [self._pieces[token_id] for token_id in tokens.ids]
        return ShownTokens(texts, tokens.logprobs, tokens.versions, entropy)


def _nothing(rewards: Sequence[float], outcome: Outcome) -> str | None:
    if not informative(rewards):
        return SAME.format(count=len(rewards), reward=rewards[0])
    if outcome.update.skipped:
        return REFUSED_STEP if outcome.update.refused else NO_STEP
    return None


# Fields of :class:`UpdateStats` that the record takes as they are.
UPDATE_FIGURES = (
    *("loss", "entropy", "grad_norm", "largest_share", "at_bound"),
    *("clip_fraction", "masked_fraction", "ratio_low", "ratio_median", "ratio_high"),
    *("ratio_max", "logprob_mismatch"),
)
MEMORY_SECONDS = 5.0  # between two readings of memory: one walks the page tables of every process


def record_of(
    outcome: Outcome, status: MemberStatus, pool: Pool, counters: Counters, memory_mb: float
) -> RoundRecord:
    """Build the record of one round; counters are totals since the process started."""
    rewards = [r for g in outcome.external for r in g.group.rewards]
    update = outcome.update
    refused, totals = split_totals(counters)
    return RoundRecord(
        round=outcome.round,
        policy_step=outcome.policy_step,
        time=time.time(),
        reward_external=mean(rewards),
        reward_eval=outcome.evaluation,
        groups_external=len(outcome.external),
        external_wanted=outcome.external_wanted,
        authors=Counter(pooled.author.hex() for pooled in outcome.external),
        useful=outcome.useful,
        author_share=outcome.author_share,
        unproven_share=outcome.unproven_share,
        pool_groups=pool.available(),
        tokens_trained=update.tokens_trained,
        seconds=outcome.seconds,
        peer_advantage=outcome.peer_advantage,
        cost_local=outcome.cost_local,
        cost_external=outcome.cost_external,
        **_local_figures(outcome),
        **_update_figures(update),
        staleness={str(age): count for age, count in enumerate(update.staleness)},
        peers=status.members,
        foreign_peers=status.foreign_peers,
        bytes_in=status.bytes_in,
        bytes_out=status.bytes_out,
        refused=refused,
        counters=totals,
        rss_mb=memory_mb,
    )


def _local_figures(outcome: Outcome) -> dict[str, Any]:
    rewards = [r for g in outcome.local for r in g.training.rewards]
    completions = [c for g in outcome.local for c in g.group.completions]
    lengths = [float(len(c.ids)) for g in outcome.local for c in g.training.completions]
    generated = outcome.generated
    seconds = outcome.seconds.get("generate", outcome.seconds.get("total", 0.0))
    return {
        "reward_local": mean(rewards),
        "informative_local": mean([float(g.informative) for g in outcome.local]),
        "groups_local": len(outcome.local),
        "tokens_generated": generated,
        "tokens_per_s": generated / seconds if generated and seconds else None,
        "mean_length": mean(lengths),
        "levels": _levels(outcome),
        "truncated": mean([float(c.finish is Finish.LENGTH) for c in completions]),
    }


def _levels(outcome: Outcome) -> dict[str, float]:
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for local in outcome.local:
        rewards[f"{local.group.env}/{local.group.level}"] += local.training.rewards
    return {name: sum(values) / len(values) for name, values in rewards.items()}


def _update_figures(update: UpdateStats) -> dict[str, Any]:
    """Leave out NaN and infinity, which JSON does not have."""
    if update.skipped:
        return {}
    figures = {name: getattr(update, name) for name in UPDATE_FIGURES}
    figures |= {"groups_bounded": float(update.groups_bounded), "learning_rate": update.lr}
    return {
        name: figure
        for name, figure in figures.items()
        if figure is not None and math.isfinite(figure)
    }


@dataclass(eq=False)
class Recorder:
    """Maker of every round's record; ``groups`` get the round before the sinks do."""

    status: Callable[[], MemberStatus]
    pool: Pool
    counters: Counters
    groups: ShownGroups | None = None

    def __post_init__(self) -> None:
        self._sinks: list[Sink] = []
        self._memory, self._memory_read = 0.0, float("-inf")

    def add(self, sink: Sink) -> None:
        """Hand every further record to ``sink`` too, and contain its failures."""
        self._sinks.append(SafeSink(sink, self.counters))

    def close(self) -> None:
        """Close all sinks, the last first."""
        for sink in reversed(self._sinks):
            sink.close()

    def report(self, outcome: Outcome) -> None:
        if time.monotonic() - self._memory_read > MEMORY_SECONDS:
            self._memory, self._memory_read = resident_mb(), time.monotonic()
        record = record_of(outcome, self.status(), self.pool, self.counters, self._memory)
        if self.groups:
            self.groups.add(outcome)
        for sink in self._sinks:
            sink.write(record)
