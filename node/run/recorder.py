"""From what a round did to the record that is shown and kept."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from node.learner.update_stats import UpdateStats
from node.monitor.fenced import Fenced
from node.monitor.record import RoundRecord
from node.monitor.rollouts import LastRollouts
from node.monitor.sink import Sink
from node.run.outcome import Outcome
from node.run.shown_groups import ShownGroups
from node.run.shown_rollouts import shown_rollouts
from protocol.rollout import Finish
from swarm.common.counters import Counters
from swarm.member import MemberStatus
from swarm.pool import Pool

REFUSED = "refused{reason="
MEMORY_SECONDS = 5.0
"""Between two looks at the memory: one walks the page tables of every process."""


def record_of(
    outcome: Outcome, status: MemberStatus, pool: Pool, counters: Counters, memory_mb: float
) -> RoundRecord:
    """The record of one round.

    Args:
        status: the network's state after the round.
        pool: as the round left it.
        counters: totals since the process started.
        memory_mb: as :func:`resident_mb` last found.
    """
    external = [r for g in outcome.external for r in g.group.rewards]
    update = outcome.update
    totals = counters.snapshot()
    return RoundRecord(
        round=outcome.round,
        policy_step=outcome.policy_step,
        time=time.time(),
        reward_external=_mean(external),
        reward_eval=outcome.evaluation,
        groups_external=len(outcome.external),
        external_wanted=outcome.external_wanted,
        authors=Counter(pooled.author.hex() for pooled in outcome.external),
        useful=outcome.useful,
        author_share=outcome.author_share,
        newcomer_share=outcome.newcomer_share,
        pool_groups=pool.available(),
        tokens_trained=update.tokens_trained,
        seconds=outcome.seconds,
        lead=outcome.lead,
        **_own_figures(outcome),
        **_update_figures(update),
        staleness={str(age): count for age, count in enumerate(update.staleness)},
        peers=status.members,
        strangers=status.strangers,
        bytes_in=status.bytes_in,
        bytes_out=status.bytes_out,
        refused=_refused(totals),
        counters={k: v for k, v in totals.items() if not k.startswith(REFUSED)},
        rss_mb=memory_mb,
    )


def resident_mb() -> float:
    """Memory that this process and its children hold, MB of 10**6 bytes.

    Where the system tells it (Linux), a page that n processes share counts as one n-th in each.
    """
    process = psutil.Process()
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            memory = each.memory_full_info()
        except psutil.NoSuchProcess:
            continue
        total += getattr(memory, "pss", memory.rss)
    return float(total) / 1e6


def _own_figures(outcome: Outcome) -> dict[str, Any]:
    rewards = [r for g in outcome.own for r in g.training.rewards]
    completions = [c for g in outcome.own for c in g.group.completions]
    lengths = [float(len(c.ids)) for g in outcome.own for c in g.training.completions]
    generated = outcome.generated
    seconds = outcome.seconds.get("generate", outcome.seconds.get("total", 0.0))
    return {
        "reward_own": _mean(rewards),
        "informative_own": _mean([float(g.informative) for g in outcome.own]),
        "groups_own": len(outcome.own),
        "tokens_generated": generated,
        "tokens_per_s": generated / seconds if generated and seconds else None,
        "mean_length": _mean(lengths),
        "levels": _levels(outcome),
        "truncated": _mean([float(c.finish is Finish.LENGTH) for c in completions]),
    }


def _levels(outcome: Outcome) -> dict[str, float]:
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for own in outcome.own:
        rewards[f"{own.group.env}/{own.group.level}"] += own.training.rewards
    return {name: sum(each) / len(each) for name, each in rewards.items()}


def _update_figures(update: UpdateStats) -> dict[str, Any]:
    """JSON has no NaN and no infinity: such a figure is left out."""
    if update.skipped:
        return {}
    figures = {
        "loss": update.loss,
        "entropy": update.entropy,
        "grad_norm": update.grad_norm,
        "largest_share": update.largest_share,
        "groups_bounded": float(update.groups_bounded),
        "clip_fraction": update.clip_fraction,
        "masked_fraction": update.masked_fraction,
        "ratio_low": update.ratio_low,
        "ratio_median": update.ratio_median,
        "ratio_high": update.ratio_high,
        "ratio_max": update.ratio_max,
        "engine_gap": update.engine_gap,
        "learning_rate": update.lr,
    }
    return {
        name: figure
        for name, figure in figures.items()
        if figure is not None and math.isfinite(figure)
    }


def _refused(totals: Mapping[str, float]) -> dict[str, int]:
    return {
        name.removeprefix(REFUSED).rstrip("}"): int(total)
        for name, total in totals.items()
        if name.startswith(REFUSED)
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


class Recorder:
    """Makes a record of every round and hands it to all sinks.

    Args:
        groups: told of every round, before sinks get its record.

    Attributes:
        rollouts: some of each round, which are here when sinks get its record.
    """

    def __init__(
        self,
        status: Callable[[], MemberStatus],
        pool: Pool,
        counters: Counters,
        groups: ShownGroups | None = None,
    ) -> None:
        self.rollouts = LastRollouts()
        self._groups = groups
        self._sinks: list[Sink] = []
        self._memory = 0.0
        self._memory_read = float("-inf")
        self._status = status
        self._pool = pool
        self._counters = counters

    def add(self, sink: Sink) -> None:
        """Hand every further record to ``sink`` as well, whatever becomes of it."""
        self._sinks.append(Fenced(sink, self._counters))

    def close(self) -> None:
        """Close all sinks, the last first."""
        for sink in reversed(self._sinks):
            sink.close()

    def report(self, outcome: Outcome) -> None:
        """Record one round."""
        if time.monotonic() - self._memory_read > MEMORY_SECONDS:
            self._memory, self._memory_read = resident_mb(), time.monotonic()
        record = record_of(outcome, self._status(), self._pool, self._counters, self._memory)
        self.rollouts.add(shown_rollouts(outcome))
        if self._groups:
            self._groups.add(outcome)
        for sink in self._sinks:
            sink.write(record)
