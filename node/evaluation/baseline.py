"""The baseline: what a policy solves before it trains, and the settings that follow from it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from node.config.config import Config
from node.engines.engine import RolloutEngine, Sampling
from node.evaluation.evaluator import SOLVED, Evaluation, Evaluator
from node.monitor.record import percent
from node.policy.policy import Policy
from node.tasks.answers import marks_answer
from node.tasks.curriculum import AutoCurriculum, EnvLevel
from node.tasks.scorer import Scorer
from node.trajectories.trajectory import Trajectory, TurnLimits
from protocol.announcement import heldout_seed
from protocol.rollout import Finish
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.groups import Split, TaskRef

SECONDS = 120.0
COMPARED = 1  # tasks of each easiest level at both temperatures
TASKS = 2  # further tasks of a level, at the better temperature
COMPLETIONS = 4  # of a task
COOLER, WARMER = 0.6, 1.0
PROBED = 8  # tokens of the completions that measure the speed
LEAST, SHARE = 24, 0.4  # fewest tokens of a completion; share of the time for the first tasks
PARTS = 8  # the time is looked at about so often
CLIMBS = 0.6  # success from which the next level is tried
MASTERED = 0.95
CUT = 0.5  # share of truncated completions that is the first thing to mend
BETTER = 0.05  # share of groups by which another temperature has to be better
WIDER = 4  # times the token cap, where most completions are cut
ROOM, STEP = 1.5, 8  # the cap is so many times the longest right answers, rounded up

UNFIT = (
    "most prompts do not fit this policy's context and are skipped: choose a policy.model with "
    "a longer context, or exclude the families with long prompts with tasks.weights"
)

Progress = Callable[[float, str], None]
"""Called with the fraction of the time that has passed, and what is tried."""


@dataclass(frozen=True, slots=True)
class LevelResult:
    """Results of a policy at one level, at one temperature; one row of rewards per task."""

    level: EnvLevel
    temperature: float
    rewards: tuple[tuple[float, ...], ...]
    answered: int  # completions that came to an answer
    truncated: int  # completions that the token cap cut off
    lengths: tuple[int, ...]  # tokens of the right completions
    unfit: int  # tasks whose prompt does not fit the policy's context

    @property
    def tasks(self) -> int:
        return len(self.rewards)

    @property
    def completions(self) -> int:
        return sum(map(len, self.rewards))

    @property
    def right(self) -> int:
        return sum(reward >= SOLVED for row in self.rewards for reward in row)

    @property
    def success(self) -> float:
        return self.right / self.completions

    @property
    def informative(self) -> int:
        """Groups whose rewards differ: only those train the policy."""
        return sum(min(row) < max(row) for row in self.rewards)

    def with_more(self, other: LevelResult) -> LevelResult:
        """Return this with other tasks of the same level and temperature."""
        names = ("rewards", "answered", "truncated", "lengths", "unfit")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class Baseline:
    """All that was tried, and what follows."""

    compared: tuple[LevelResult, ...]  # of the same tasks at each temperature
    results: tuple[LevelResult, ...]  # of all that was tried, one of each level and temperature
    temperature: float  # the config's
    max_new_tokens: int  # the config's
    cap: int  # tokens of a completion that was tried, at most
    levels: Mapping[str, Sequence[int]]  # that are served, ascending, by family
    takes: bool  # whether the node takes peers' groups

    def at(self, temperature: float) -> tuple[LevelResult, ...]:
        return tuple(each for each in self.results if each.temperature == temperature)

    @property
    def best(self) -> float:
        """The temperature at which most groups of the same tasks are informative."""
        tried = {each.temperature for each in self.compared}
        useful = {t: _share(self._compared(t), "informative", "tasks") for t in tried}
        other = max(useful, key=lambda t: useful[t])
        return other if useful[other] > useful[self.temperature] + BETTER else self.temperature

    def _compared(self, temperature: float) -> tuple[LevelResult, ...]:
        return tuple(each for each in self.compared if each.temperature == temperature)

    def reached(self) -> dict[str, list[int]]:
        """Return the levels to train on, by family: from what is not mastered to one level on.

        A family that there was no time for keeps its easiest one.
        """
        found: dict[str, list[int]] = {}
        for env, levels in self.levels.items():
            rows = [each for each in self.at(self.best) if each.level[0] == env]
            if not rows:
                found[env] = list(levels[:1])
                continue
            solved = [each.level[1] for each in rows if each.right]
            mastered = [each.level[1] for each in rows if each.success >= MASTERED]
            if solved:
                above = [level for level in levels if level > max(solved)][:1]
                kept = [level for level in levels if level <= max(solved)] + above
                found[env] = [level for level in kept if level not in mastered] or kept[-1:]
        return found

    def settings(self) -> dict[str, Any]:
        """Return the config keys to change, with their values; empty if none is."""
        keys: dict[str, Any] = {}
        if self.best != self.temperature:
            keys["engine.temperature"] = self.best
        rows = self.at(self.best)
        lengths = sorted(length for each in rows for length in each.lengths)
        if not lengths:
            cut = _share(self._compared(self.best), "truncated", "completions")
            if cut >= CUT and self.cap == self.max_new_tokens:
                keys["engine.max_new_tokens"] = WIDER * self.max_new_tokens
            return keys
        longest = lengths[int(0.95 * (len(lengths) - 1))]
        enough = max(LEAST, STEP * math.ceil(ROOM * longest / STEP))
        if 2 * enough <= self.max_new_tokens:
            keys["engine.max_new_tokens"] = enough
        reached = self.reached()
        least = AutoCurriculum.GRADED
        graded = {env for env, levels in self.levels.items() if len(levels) >= least}
        chosen = {env: reached[env] for env in reached if env in graded}
        if chosen:
            keys["tasks.levels"] = chosen
        tried = {each.level[0] for each in rows}
        if graded and tried - reached.keys():
            keys["tasks.weights"] = dict.fromkeys(reached, 1.0)
        return keys

    def lines(self) -> tuple[str, ...]:
        """Return what was found, by temperature and by family, and the verdict."""
        rows = [self._overall(t) for t in sorted({each.temperature for each in self.compared})]
        families = [_line(each) for each in self.at(self.best)]
        if _share(self.at(self.best), "unfit", "tasks") >= 0.5:
            families.append(UNFIT)
        return (*rows, *families, self.verdict())

    def _overall(self, temperature: float) -> str:
        rows = self._compared(temperature)
        tasks, written = sum(each.tasks for each in rows), sum(each.completions for each in rows)
        informative = _share(rows, "informative", "tasks")
        return (
            f"baseline on {counted(tasks, 'task')} at temperature {temperature:g}: "
            f"{sum(each.right for each in rows)} of {written} completions are correct, "
            f"{percent(_share(rows, 'answered', 'completions'))} have an answer, "
            f"{percent(_share(rows, 'truncated', 'completions'))} are truncated at {self.cap} "
            f"tokens; {percent(informative)} of groups are informative"
        )

    def verdict(self) -> str:
        """Return what to expect, and the remedy where there is nothing to learn from."""
        rows = self.at(self.best)
        if any(each.informative for each in rows):
            return "result: the policy can learn from its own rollouts"
        if all(each.success >= MASTERED for each in rows):
            return "result: these tasks are already solved; choose harder levels with tasks.levels"
        if _share(self._compared(self.best), "truncated", "completions") >= CUT:
            return (
                "result: completions end before an answer: increase engine.max_new_tokens, or "
                "train short answers with: swarm-node warm-start"
            )
        remedy = (
            "train the form of the answers with: swarm-node warm-start, choose easier tasks "
            "with tasks.weights, or a stronger policy.model"
        )
        if self.takes:
            return f"result: the policy can learn only from peers' groups: {remedy}"
        return (
            "result: the policy cannot learn here: use groups of peers (mixture.external), "
            f"{remedy}"
        )


def _share(rows: Sequence[LevelResult], part: str, whole: str) -> float:
    parts, wholes = (sum(int(getattr(each, name)) for each in rows) for name in (part, whole))
    return parts / max(1, wholes)


def _line(row: LevelResult) -> str:
    env, level = row.level
    answered, cut = row.answered / row.completions, row.truncated / row.completions
    return (
        f"  {env} level {level}: {row.right} of {row.completions} completions are correct, "
        f"{percent(answered)} have an answer, {percent(cut)} are truncated"
    )


class BaselineTrial:
    """Tries a policy on held-out tasks, the easiest levels of all families first.

    One task of each family's easiest level is tried at the config's temperature and at another
    one. At the better one it then tries more tasks of the levels that were never or always solved,
    and the levels above those that are mostly solved. ``levels`` are those that the node trains on.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        engine: RolloutEngine,
        verifier: Scorer,
        levels: Sequence[EnvLevel],
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._policy, self._engine = config, policy, engine
        self._verifier, self._counters, self._clock = verifier, counters, clock
        self._levels: dict[str, list[int]] = {}
        for env, level in sorted(levels):
            self._levels.setdefault(env, []).append(level)
        own = config.engine.temperature
        self._temperatures = (own, COOLER if own > (COOLER + WARMER) / 2 else WARMER)
        self._compared: tuple[LevelResult, ...] = ()
        self._results: dict[tuple[EnvLevel, float], LevelResult] = {}
        self.found: Baseline | None = None
        self._pace = 0.0  # seconds for a token
        self._cap = config.engine.max_new_tokens

    def run(self, seconds: float, progress: Progress = lambda done, what: None) -> Baseline:
        """Try for ``seconds``; what has begun is finished. Raises NodeError or JudgeRefused."""
        start = self._clock()

        def left(what: str) -> float:
            passed = self._clock() - start
            progress(min(1.0, passed / seconds), what)
            return seconds - passed

        self._seconds, self._left = seconds, left
        easiest = [(env, levels[0]) for env, levels in self._levels.items()]
        left("generation speed")
        self._limit_cap(easiest)
        self._try(easiest, self._temperatures, range(COMPARED))
        self._compared = tuple(self._results.values())
        found = self._baseline()
        better = (found.best,)
        unclear = [
            each.level
            for each in found.at(*better)
            if not each.unfit and not 0.0 < each.success < MASTERED
        ]
        self._try(unclear, better, range(COMPARED, COMPARED + TASKS))
        while above := self._above():
            if not self._try(above, better, range(TASKS)):
                break
        self.found = self._baseline()
        return self.found

    def _limit_cap(self, easiest: Sequence[EnvLevel]) -> None:
        """Measure the speed; limit completions so that the first tasks take their share."""
        for count in (1, 4):  # the first time, kernels are chosen and compiled
            self._timed(easiest[:count], self._temperatures[0], range(COMPARED), cap=PROBED)
        completions = len(easiest) * COMPARED * COMPLETIONS * len(self._temperatures)
        if self._pace > 0.0:  # not where the clock is too coarse to tell
            affordable = int(SHARE * self._seconds / (self._pace * completions))
            self._cap = min(self._cap, max(LEAST, affordable))

    def rewards(self) -> Iterator[tuple[EnvLevel, list[float]]]:
        """Yield the rewards of each level at the better temperature, for a curriculum."""
        for each in self.found.at(self.found.best) if self.found else ():
            yield each.level, [reward for row in each.rewards for reward in row]

    def _try(
        self, levels: Sequence[EnvLevel], temperatures: Sequence[float], numbers: range
    ) -> bool:
        """Try the tasks of these ``numbers`` at each level; False if the time was over.

        The first time, a part is tried whatever the time.
        """
        for part in self._parts(levels, len(numbers) * len(temperatures)):
            if self._left(_named(part)) <= 0 and self._results:
                return False
            for temperature in temperatures:
                for each in self._timed(part, temperature, numbers):
                    key = each.level, temperature
                    before = self._results.get(key)
                    self._results[key] = before.with_more(each) if before else each
        return True

    def _baseline(self) -> Baseline:
        config = self._config
        return Baseline(
            compared=self._compared,
            results=tuple(self._results.values()),
            temperature=config.engine.temperature,
            max_new_tokens=config.engine.max_new_tokens,
            cap=self._cap,
            levels=self._levels,
            takes=config.mixture.external > 0 and config.network.pulls_per_epoch > 0,
        )

    def _above(self) -> list[EnvLevel]:
        """Return the next level of each family whose highest one tried is mostly solved."""
        found, rows = [], self._baseline()
        for env, levels in self._levels.items():
            of_env = [each for each in rows.at(rows.best) if each.level[0] == env]
            if not of_env or of_env[-1].success < CLIMBS:
                continue
            found += [(env, level) for level in levels if level > of_env[-1].level[1]][:1]
        return found

    def _parts(self, levels: Sequence[EnvLevel], tasks: int) -> Iterator[Sequence[EnvLevel]]:
        """Yield as many levels at once as a part of the time is believed to be enough for."""
        while levels:
            each = self._pace * self._cap * tasks * COMPLETIONS
            count = max(1, int(self._seconds / PARTS / each)) if each > 0 else len(levels)
            yield levels[:count]
            levels = levels[count:]

    def _timed(
        self, levels: Sequence[EnvLevel], temperature: float, numbers: range, cap: int = 0
    ) -> list[LevelResult]:
        start = self._clock()
        refs = [
            TaskRef(env, level, heldout_seed(env, number), Split.HELDOUT)
            for env, level in levels
            for number in numbers
        ]
        cap = min(cap or self._cap, self._config.engine.max_new_tokens)
        sampling, limits = Sampling(temperature, cap, seed=0), TurnLimits.of(self._config.engine)
        policy, engine, verifier = self._policy, self._engine, self._verifier
        evaluator = Evaluator(policy, engine, verifier, refs, sampling, self._counters, limits)
        found = evaluator.evaluate(COMPLETIONS)
        self._pace = (self._clock() - start) / (len(refs) * COMPLETIONS * cap)
        return [
            _result(found, pair, temperature, slice(n * len(numbers), (n + 1) * len(numbers)))
            for n, pair in enumerate(levels)
        ]


def _result(found: Evaluation, level: EnvLevel, temperature: float, rows: slice) -> LevelResult:
    trajectories = [each for group in found.trajectories[rows] for each in group]
    return LevelResult(
        level,
        temperature,
        found.rewards[rows],
        sum(map(_answered, trajectories)),
        sum(each.finish is Finish.LENGTH for each in trajectories),
        tuple(
            len(each.tokens.ids)
            for group, rewards in zip(found.trajectories[rows], found.rewards[rows], strict=True)
            for each, reward in zip(group, rewards, strict=False)
            if reward >= SOLVED
        ),
        sum(not group for group in found.trajectories[rows]),
    )


def _answered(trajectory: Trajectory) -> bool:
    ended = trajectory.finish is not Finish.LENGTH
    return (ended and bool(trajectory.text.strip())) or marks_answer(trajectory.text)


def _named(levels: Sequence[EnvLevel]) -> str:
    env, level = levels[0]
    more = f" and {counted(len(levels) - 1, 'other level')}" if len(levels) > 1 else ""
    return f"{env} level {level}{more}"
