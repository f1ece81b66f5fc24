"""Whether nodes train as well by default as with the best fixed mix, in each regime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.arms import AUTO, Arm
from experiments.measures import Recordings, Summary, summarise
from experiments.regimes import Regime
from node.evaluation.comparison import ScoreEstimate

FLOOR = 0.97
"""Of the best fixed mix's reward: below it, the default hurts."""


@dataclass(frozen=True, slots=True)
class RegimeVerdict:
    """The default beside the best fixed mix, 8/0 among them.

    Attributes:
        rival: the mix with the highest cumulative reward, on average over seeds.
        ratio: of cumulative rewards, paired by seed.
        hurts: the mean ratio is below :data:`FLOOR`.
    """

    rival: str
    ratio: ScoreEstimate
    hurts: bool


@dataclass(frozen=True, slots=True)
class RegimeSummary:
    """All arms in one regime.

    Attributes:
        regime: its name.
        description: of the regime.
        judged: numbers of the nodes whose rewards are compared.
        arms: over their seeds.
        parts: the same for the judged nodes that start from each base; empty where all start from
            the same.
        verdict: None where the default or every fixed mix was not run, or one without any reward
            is the best.
    """

    regime: str
    description: str
    judged: tuple[int, ...]
    arms: tuple[Summary, ...]
    parts: Mapping[str, tuple[Summary, ...]]
    verdict: RegimeVerdict | None


def summarise_regime(
    regime: Regime, nodes: int, arms: Sequence[Arm], recordings: Recordings
) -> RegimeSummary:
    """Fold the runs of one regime."""
    judged, parts = regime.judged(nodes), regime.parts(nodes)
    summaries = summarise(arms, recordings, judged)
    return RegimeSummary(
        regime.name,
        regime.description,
        judged,
        summaries,
        {base: summarise(arms, recordings, part) for base, part in parts.items()}
        if len(parts) > 1
        else {},
        judge(summaries),
    )


def judge(summaries: Sequence[Summary]) -> RegimeVerdict | None:
    """The default beside the best of the others, which have the same seeds."""
    default = next((s for s in summaries if s.arm == AUTO.name), None)
    fixed = [s for s in summaries if not s.arm.startswith(AUTO.name)]
    if default is None or not fixed:
        return None
    rival = max(fixed, key=lambda s: s.measures["cumulative"].mean)
    rewards, best = (s.measures["cumulative"].values for s in (default, rival))
    if not all(best):
        return None
    ratio = ScoreEstimate.of([own / other for own, other in zip(rewards, best, strict=True)])
    return RegimeVerdict(rival.arm, ratio, ratio.mean < FLOOR)
