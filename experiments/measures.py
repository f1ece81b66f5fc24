"""Measures of a run, comparison of arms seed by seed, and the verdict on a regime."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from experiments.arms import AUTO, Arm
from experiments.recording import Recording
from experiments.regimes import Regime
from node.evaluation.comparison import ScoreEstimate

Recordings = Mapping[tuple[str, int], Recording]  # by name of the arm and seed
Costs = Callable[[Recording], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm relative to its reference, over the seeds that both have completed."""

    reference: str  # name of the arm
    gain: ScoreEstimate  # difference in cumulative reward at equal rounds, paired by seed
    factor: ScoreEstimate  # ratio of cumulative rewards at equal rounds
    at_equal_tokens: ScoreEstimate  # ratio of mean rewards up to the smaller number of tokens
    at_equal_cpu: ScoreEstimate  # the same for CPU seconds
    heldout: ScoreEstimate  # difference in mean held-out reward over all rounds
    heldout_at_equal_tokens: ScoreEstimate  # the same up to the smaller number of tokens
    heldout_at_equal_cpu: ScoreEstimate  # the same for CPU seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """An arm over its seeds."""

    arm: str
    seeds: tuple[int, ...]
    # By name: ``cumulative`` (mean reward of the compared nodes, summed over rounds), ``solved``
    # (the same for right answers), ``heldout`` (reward of the final policies), ``learned`` (its
    # difference to that of the first ones), ``coverage`` (pass@8 of the final policies on held-out
    # tasks), ``informative`` (fraction of local groups), ``filled`` (peer groups per update),
    # ``entropy`` (nats per token), ``variance`` (of rewards in a group), ``tokens`` (generated per
    # node, without evaluation) and ``cpu`` (seconds of the whole swarm).
    measures: Mapping[str, ScoreEstimate]
    comparison: Comparison | None  # None without runs or without reward of the reference


def summarize(
    arms: Sequence[Arm], recordings: Recordings, nodes: Collection[int]
) -> tuple[Summary, ...]:
    """Summarize the arms that have runs.

    Args:
        nodes: numbers of the nodes whose rewards are compared; other measures use the judged nodes.
    """
    done = {arm.name: sorted(s for name, s in recordings if name == arm.name) for arm in arms}
    return tuple(
        Summary(
            arm.name,
            tuple(done[arm.name]),
            _estimates([measure(recordings[arm.name, seed], nodes) for seed in done[arm.name]]),
            _compare(arm, recordings, nodes),
        )
        for arm in arms
        if done[arm.name]
    )


def measure(recording: Recording, nodes: Collection[int]) -> dict[str, float]:
    """Return the measures of one run; see :class:`Summary`.

    ``entropy`` is missing if no policy learned.
    """
    rounds = recording.rounds
    entropies = [r.entropy for r in rounds if r.entropy is not None]
    heldout = [r.evaluation for r in rounds if r.evaluation is not None]
    figures = {
        "cumulative": sum(recording.rewards(nodes)),
        "solved": sum(r.solved for r in rounds),
        "heldout": heldout[-1],
        "learned": heldout[-1] - heldout[0],
        "informative": fmean(r.informative for r in rounds),
        "filled": fmean(r.external for r in rounds),
        "variance": fmean(r.variance for r in rounds),
        "tokens": sum(r.tokens for r in rounds),
        "cpu": sum(recording.seconds),
    }
    if recording.coverage is not None:
        figures["coverage"] = recording.coverage
    if entropies:
        figures["entropy"] = fmean(entropies)
    return figures


def mean_reward_within(rewards: Sequence[float], costs: Sequence[float], budget: float) -> float:
    """Return the mean reward up to a cost of ``budget``; each round is as wide as its cost."""
    total = spent = 0.0
    for reward, cost in zip(rewards, costs, strict=True):
        width = min(cost, budget - spent)
        total += reward * width
        spent += width
    return total / budget


def heldout_within(recording: Recording, costs: Sequence[float], budget: float) -> float:
    """Return the mean held-out reward up to a cost of ``budget``.

    Evaluations precede the update of their round, except the last, which follows it. Between two
    evaluations the reward is interpolated linearly.
    """
    at = np.concatenate([[0.0], np.cumsum(costs)[:-1]])
    at[-1] = sum(costs)
    looks = [(x, r.evaluation) for x, r in zip(at, recording.rounds, strict=True)]
    points, rewards = zip(*((x, y) for x, y in looks if y is not None), strict=True)
    within = np.array([0.0, *(x for x in points if 0 < x < budget), budget])
    return float(np.trapezoid(np.interp(within, points, rewards), within)) / budget


def _estimates(runs: Sequence[Mapping[str, float]]) -> dict[str, ScoreEstimate]:
    names = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: ScoreEstimate.of([run[name] for run in runs]) for name in names}


def _compare(arm: Arm, recordings: Recordings, nodes: Collection[int]) -> Comparison | None:
    pairs = [
        (recording, recordings[arm.reference, seed])
        for (name, seed), recording in sorted(recordings.items())
        if name == arm.name and (arm.reference, seed) in recordings
    ]
    sums = [(sum(own.rewards(nodes)), sum(other.rewards(nodes))) for own, other in pairs]
    if arm.name == arm.reference or not pairs or not all(other for _, other in sums):
        return None
    return Comparison(
        arm.reference,
        ScoreEstimate.of([own - other for own, other in sums]),
        ScoreEstimate.of([own / other for own, other in sums]),
        ScoreEstimate.of([_equal(own, other, nodes, _tokens) for own, other in pairs]),
        ScoreEstimate.of([_equal(own, other, nodes, _seconds) for own, other in pairs]),
        *(
            ScoreEstimate.of([_ahead(own, other, costs) for own, other in pairs])
            for costs in (_rounds, _tokens, _seconds)
        ),
    )


def _equal(own: Recording, other: Recording, nodes: Collection[int], costs: Costs) -> float:
    """Return the ratio of mean rewards at a budget that both runs have spent."""
    budget = min(sum(costs(own)), sum(costs(other)))
    mean, reference = (
        mean_reward_within(run.rewards(nodes), costs(run), budget) for run in (own, other)
    )
    return mean / reference if reference else math.inf


def _ahead(own: Recording, other: Recording, costs: Costs) -> float:
    """Return the difference in held-out reward at a budget that both runs have spent."""
    budget = min(sum(costs(own)), sum(costs(other)))
    mean, reference = (heldout_within(run, costs(run), budget) for run in (own, other))
    return mean - reference


def _rounds(recording: Recording) -> list[float]:
    return [1.0] * len(recording.rounds)


def _seconds(recording: Recording) -> Sequence[float]:
    return recording.seconds


def _tokens(recording: Recording) -> list[float]:
    return [r.tokens for r in recording.rounds]


FLOOR = 0.97  # below this fraction of the best fixed mix's reward, the default hurts


@dataclass(frozen=True, slots=True)
class RegimeVerdict:
    """The default relative to the best fixed batch composition, including 8/0."""

    rival: str  # fixed mix with the highest mean cumulative reward
    ratio: ScoreEstimate  # ratio of cumulative rewards, paired by seed
    hurts: bool  # whether the mean ratio is below :data:`FLOOR`


@dataclass(frozen=True, slots=True)
class RegimeSummary:
    """All arms in one regime."""

    regime: str  # name
    description: str
    judged: tuple[int, ...]  # numbers of the nodes whose rewards are compared
    arms: tuple[Summary, ...]
    parts: Mapping[str, tuple[Summary, ...]]  # arms by base policy of the judged nodes, if several
    verdict: RegimeVerdict | None  # None without the default, a fixed mix, or a reward


def summarize_regime(
    regime: Regime, nodes: int, arms: Sequence[Arm], recordings: Recordings
) -> RegimeSummary:
    judged, parts = regime.judged(nodes), regime.parts(nodes)
    summaries = summarize(arms, recordings, judged)
    return RegimeSummary(
        regime.name,
        regime.description,
        judged,
        summaries,
        {base: summarize(arms, recordings, part) for base, part in parts.items()}
        if len(parts) > 1
        else {},
        judge_default(summaries),
    )


def judge_default(summaries: Sequence[Summary]) -> RegimeVerdict | None:
    """Compare the default with the best fixed mix, which has the same seeds."""
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
