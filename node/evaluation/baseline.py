"""The baseline: what a policy solves before it trains, and the settings that follow from it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

from node.config.config import Config
from node.engines.engine import RolloutEngine, Sampling
from node.errors import NodeError
from node.evaluation.evaluator import SOLVED, Evaluation, Evaluator, Progress, TimeLimit
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
from swarm.verification import JudgeRefused

SECONDS = 120.0
COMPARED = 1  # tasks of each easiest level at both temperatures
TASKS = 2  # further tasks of a level, at the better temperature
COMPLETIONS = 4  # per task
COOLER, WARMER = 0.6, 1.0
PROBED = 8  # tokens per completion that measures the speed
LEAST_CAP = 24  # minimum tokens per completion
COMPARED_SHARE = 0.4  # fraction of the time for the tasks at both temperatures
BATCHES = 8  # approximate number of batches in the whole time
CLIMBS = 0.6  # success from which the next level is evaluated
MASTERED = 0.95
MOSTLY_TRUNCATED = 0.5  # fraction of truncated completions that is mended before anything else
BETTER = 0.05  # fraction of groups by which another temperature has to be better
WIDER = 4  # factor of the token cap if most completions are truncated
CAP_MARGIN, CAP_STEP = 1.5, 8  # suggested cap relative to long right answers, and its multiple

UNFIT = (
    "most prompts do not fit this policy's context and are skipped: choose a policy.model with "
    "a longer context, or exclude the families with long prompts with tasks.weights"
)


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
    def mostly_truncated(self) -> bool:
        return self.truncated / self.completions >= MOSTLY_TRUNCATED

    @property
    def informative(self) -> int:
        """Groups whose rewards differ: only those train the policy."""
        return sum(min(row) < max(row) for row in self.rewards)

    def __str__(self) -> str:
        answered, cut = self.answered / self.completions, self.truncated / self.completions
        return (
            f"{self.right} of {self.completions} completions are correct, "
            f"{percent(answered)} have an answer, {percent(cut)} are truncated"
        )

    def __add__(self, other: LevelResult) -> LevelResult:
        """Add the results of other tasks; level and temperature remain."""
        return replace(
            self,
            rewards=self.rewards + other.rewards,
            answered=self.answered + other.answered,
            truncated=self.truncated + other.truncated,
            lengths=self.lengths + other.lengths,
            unfit=self.unfit + other.unfit,
        )


@dataclass(frozen=True, slots=True)
class Baseline:
    """All results, and what follows from them; at least one level was evaluated."""

    compared: tuple[LevelResult, ...]  # of the same tasks at each temperature
    results: tuple[LevelResult, ...]  # all, one per level and temperature
    temperature: float  # the config's
    max_new_tokens: int  # the config's
    cap: int  # maximum tokens per completion in the evaluation
    levels: Mapping[str, Sequence[int]]  # served levels by family, ascending
    takes: bool  # whether the node takes peers' groups
    late: float | None = None  # temperature that there was no time for

    def at(self, temperature: float) -> tuple[LevelResult, ...]:
        return tuple(each for each in self.results if each.temperature == temperature)

    @property
    def best(self) -> float:
        """The temperature at which most groups of the same tasks are informative."""
        tried = {each.temperature for each in self.compared}
        totals = {t: self._total(t) for t in tried}
        useful = {t: total.informative / total.tasks for t, total in totals.items()}
        other = max(useful, key=lambda t: useful[t])
        own = useful.get(self.temperature)  # None if all of its tasks failed
        return other if own is None or useful[other] > own + BETTER else self.temperature

    def _total(self, temperature: float) -> LevelResult:
        """Return the sum of the results that are compared, at one temperature."""
        return reduce(add, (each for each in self.compared if each.temperature == temperature))

    def fair(self) -> tuple[LevelResult, ...]:
        """Return the best temperature's results, but none that a reduced token cap cut off.

        The config's cap may be enough for those tasks, so their failures prove nothing.
        """
        whole = self.cap == self.max_new_tokens
        return tuple(each for each in self.at(self.best) if whole or not each.mostly_truncated)

    def reached(self) -> dict[str, list[int]]:
        """Return the levels to train on by family: those below mastery, and one more.

        A family without fair results keeps its easiest level; one that is never solved is omitted.
        """
        found: dict[str, list[int]] = {}
        for env, levels in self.levels.items():
            rows = [each for each in self.fair() if each.level[0] == env]
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
        """Return the suggested config keys with their values; empty if none changes."""
        keys: dict[str, Any] = {}
        if self.best != self.temperature:
            keys["engine.temperature"] = self.best
        rows = self.fair()
        needed = _lengths(rows)
        if not needed:
            if self._total(self.best).mostly_truncated and self.cap == self.max_new_tokens:
                keys["engine.max_new_tokens"] = WIDER * self.max_new_tokens
            return keys
        reached = self.reached()
        least = AutoCurriculum.GRADED
        graded = {env for env, levels in self.levels.items() if len(levels) >= least}
        chosen = {env: reached[env] for env in reached if env in graded}
        if chosen:
            keys["tasks.levels"] = chosen
        tried = {each.level[0] for each in rows}
        trained = self.levels.keys()
        if graded and tried - reached.keys():
            keys["tasks.weights"] = dict.fromkeys(reached, 1.0)
            trained = reached.keys()
        enough = max(LEAST_CAP, CAP_STEP * math.ceil(CAP_MARGIN * max(needed.values()) / CAP_STEP))
        if trained - tried:  # their answers may be longer
            enough = max(enough, WIDER * self.cap)
        if 2 * enough <= self.max_new_tokens and needed.keys() >= trained & tried:
            keys["engine.max_new_tokens"] = enough
        return keys

    def lines(self) -> tuple[str, ...]:
        """Return the results by temperature and by family, and the verdict."""
        rows = [self._overall(t) for t in sorted({each.temperature for each in self.compared})]
        if self.late is not None:
            rows.append(f"  not tried: temperature {self.late:g}, because the time ended")
        families = ["  {} level {}: {}".format(*r.level, r) for r in self.at(self.best)]
        tried = {each.level[0] for each in self.at(self.best)}
        if untried := [env for env in self.levels if env not in tried]:
            families.append(f"  not tried: {', '.join(untried)}")
        fair = self.fair()
        if cut := ["{} level {}".format(*r.level) for r in self.at(self.best) if r not in fair]:
            families.append(f"  not tried: {', '.join(cut)}, because {self._reduced}")
        total = reduce(add, self.at(self.best))
        if total.unfit / total.tasks >= 0.5:
            families.append(UNFIT)
        return (*rows, *families, self.verdict())

    @property
    def _reduced(self) -> str:
        return f"most completions are truncated at {self.cap} of {self.max_new_tokens} tokens"

    def _overall(self, temperature: float) -> str:
        total = self._total(temperature)
        one = len({each.temperature for each in self.compared}) == 1
        at = "at temperature" if one else "sampled at both temperatures, at"
        return (
            f"baseline on {counted(total.tasks, 'task')} {at} {temperature:g}: {total} at "
            f"{self.cap} tokens; {percent(total.informative / total.tasks)} of groups are "
            "informative"
        )

    def verdict(self) -> str:
        """Return what to expect, with a remedy if there is nothing to learn from."""
        rows = self.at(self.best)
        if any(each.informative for each in rows):
            return "result: the policy can learn from its own rollouts"
        if all(each.success >= MASTERED for each in rows):
            return "result: these tasks are already solved; choose harder levels with tasks.levels"
        if self._total(self.best).mostly_truncated:
            if self.cap < self.max_new_tokens:
                return f"result: unknown, because {self._reduced}; training uses all of them"
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


def _lengths(rows: Sequence[LevelResult]) -> dict[str, int]:
    """Return the length of nearly all right completions, by family that has any."""
    found: dict[str, list[int]] = {}
    for each in rows:
        if each.lengths:
            found.setdefault(each.level[0], []).extend(each.lengths)
    return {env: sorted(each)[math.ceil(0.95 * (len(each) - 1))] for env, each in found.items()}


@dataclass(eq=False)
class BaselineEvaluation:
    """Evaluates a policy on held-out tasks, the easiest levels of all families first.

    One task of each family's easiest level is sampled at the config's temperature and at another
    one. At the better one follow more tasks of the levels that were never or always solved, and
    then the levels above those that are mostly solved. ``levels`` are those that the node trains
    on. ``found`` is the result, None before :meth:`run` returns.
    """

    config: Config
    policy: Policy
    engine: RolloutEngine
    verifier: Scorer
    levels: Sequence[EnvLevel]
    counters: Counters
    clock: Callable[[], float] = time.monotonic
    found: Baseline | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._levels: dict[str, list[int]] = {}
        for env, level in sorted(self.levels):
            self._levels.setdefault(env, []).append(level)
        own = self.config.engine.temperature
        self._temperatures = (own, COOLER if own > (COOLER + WARMER) / 2 else WARMER)
        self._compared: tuple[LevelResult, ...] = ()
        self._results: dict[tuple[EnvLevel, float], LevelResult] = {}
        self._pace = 0.0  # seconds per token in the latest batch
        self._cap = self.config.engine.max_new_tokens
        self._failed: JudgeRefused | NodeError | None = None
        self._late: float | None = None

    def run(self, seconds: float, progress: Progress = lambda done, what: None) -> Baseline:
        """Evaluate for ``seconds``, then finish the batch. Raises NodeError or JudgeRefused."""
        limit = TimeLimit(seconds, self.clock, progress)
        easiest = [(env, levels[0]) for env, levels in self._levels.items()]
        limit.left("generation speed")
        self._limit_cap(easiest, limit)
        in_time = self._evaluate(easiest, self._temperatures, range(COMPARED), limit)
        if self._failed and not self._results:
            raise self._failed
        both = set.intersection(*(self._sampled_at(each) for each in self._temperatures))
        rows = [each for each in self._results.values() if each.level in both]
        self._compared = tuple(rows or self._results.values())
        self.found = found = self._baseline()
        if not in_time:
            return found
        best = found.best
        unclear = [
            each.level
            for each in found.at(best)
            if not each.unfit and not 0.0 < each.success < MASTERED
        ]
        self._evaluate(unclear, (best,), range(COMPARED, COMPARED + TASKS), limit)
        while harder := self._next_levels(best):
            if not self._evaluate(harder, (best,), range(TASKS), limit):
                break
        self.found = self._baseline()
        return self.found

    def rewards(self) -> Iterator[tuple[EnvLevel, list[float]]]:
        """Yield the rewards of each level at the better temperature, for a curriculum."""
        for each in self.found.fair() if self.found else ():
            yield each.level, [reward for row in each.rewards for reward in row]

    def _limit_cap(self, easiest: Sequence[EnvLevel], limit: TimeLimit) -> None:
        """Measure the speed; limit completions so that the first tasks take their share."""
        for count in (1, 4):  # the first time, kernels are chosen and compiled
            self._sample(easiest[:count], self._temperatures[0], range(COMPARED), PROBED, limit)
        completions = len(easiest) * COMPARED * COMPLETIONS * len(self._temperatures)
        if self._pace > 0.0:  # it is 0 if the clock is too coarse
            affordable = int(COMPARED_SHARE * limit.seconds / (self._pace * completions))
            self._cap = min(self._cap, max(LEAST_CAP, affordable))

    def _evaluate(
        self,
        levels: Sequence[EnvLevel],
        temperatures: Sequence[float],
        numbers: range,
        limit: TimeLimit,
    ) -> bool:
        """Add the results of the tasks with these ``numbers``; return whether time sufficed.

        The very first batch is evaluated in any case, so that there is a result, but at another
        temperature only if the time left is as long as the previous temperature took.
        """
        tasks = len(numbers) * len(temperatures)
        for batch in self._batches(levels, tasks, limit.seconds):
            if limit.left(_named(batch)) <= 0 and self._results:
                return False
            took = 0.0
            for temperature in temperatures:
                if took and self._results and limit.left(_named(batch)) < took:
                    self._late = None if self._sampled_at(temperature) else temperature
                    return False
                began = self.clock()
                for each in self._sample(batch, temperature, numbers, self._cap, limit):
                    key = each.level, temperature
                    before = self._results.get(key)
                    self._results[key] = before + each if before else each
                took = self.clock() - began
        return True

    def _sampled_at(self, temperature: float) -> set[EnvLevel]:
        return {level for level, sampled in self._results if sampled == temperature}

    def _baseline(self) -> Baseline:
        config = self.config
        return Baseline(
            compared=self._compared,
            results=tuple(self._results.values()),
            temperature=config.engine.temperature,
            max_new_tokens=config.engine.max_new_tokens,
            cap=self._cap,
            levels=self._levels,
            takes=config.mixture.external > 0 and config.network.pulls_per_epoch > 0,
            late=self._late,
        )

    def _next_levels(self, temperature: float) -> list[EnvLevel]:
        """Return the next level of each family whose hardest one so far is mostly solved."""
        found, rows = [], self._baseline().at(temperature)
        for env, levels in self._levels.items():
            of_env = [each for each in rows if each.level[0] == env]
            if of_env and of_env[-1].success >= CLIMBS:
                found += [(env, level) for level in levels if level > of_env[-1].level[1]][:1]
        return found

    def _batches(
        self, levels: Sequence[EnvLevel], tasks: int, seconds: float
    ) -> Iterator[Sequence[EnvLevel]]:
        """Yield levels in batches of about equal time, by the speed measured so far."""
        while levels:
            each = self._pace * self._cap * tasks * COMPLETIONS
            count = max(1, int(seconds / BATCHES / each)) if each > 0 else len(levels)
            yield levels[:count]
            levels = levels[count:]

    def _sample(
        self,
        levels: Sequence[EnvLevel],
        temperature: float,
        numbers: range,
        cap: int,
        limit: TimeLimit,
    ) -> list[LevelResult]:
        """Evaluate levels; omit those whose tasks cannot be built, answered or scored."""
        try:
            return self._sample_all(levels, temperature, numbers, cap)
        except (JudgeRefused, NodeError) as error:
            self._failed = error
            if len(levels) == 1:
                return []
        found: list[LevelResult] = []
        for level in levels:
            if limit.left(_named([level])) > 0:
                found += self._sample([level], temperature, numbers, cap, limit)
        return found

    def _sample_all(
        self, levels: Sequence[EnvLevel], temperature: float, numbers: range, cap: int
    ) -> list[LevelResult]:
        """Sample and score the tasks, and measure the speed."""
        start = self.clock()
        refs = [
            TaskRef(env, level, heldout_seed(env, number), Split.HELDOUT)
            for env, level in levels
            for number in numbers
        ]
        cap = min(cap, self.config.engine.max_new_tokens)
        sampling, limits = Sampling(temperature, cap, seed=0), TurnLimits.of(self.config.engine)
        policy, engine, verifier = self.policy, self.engine, self.verifier
        evaluator = Evaluator(policy, engine, verifier, refs, sampling, self.counters, limits)
        found = evaluator.evaluate(COMPLETIONS)
        self._pace = (self.clock() - start) / (len(refs) * COMPLETIONS * cap)
        rows = [slice(n * len(numbers), (n + 1) * len(numbers)) for n in range(len(levels))]
        return [
            measured(found, level, temperature, each)
            for level, each in zip(levels, rows, strict=True)
            if any(prompt is not None for prompt in found.prompts[each])
        ]


def measured(found: Evaluation, level: EnvLevel, temperature: float, rows: slice) -> LevelResult:
    """Return the result of a level, of which these are the tasks' ``rows``."""
    groups, rewards = found.trajectories[rows], found.rewards[rows]
    pairs = [
        (each, reward >= SOLVED)
        for group, of_group in zip(groups, rewards, strict=True)
        for each, reward in zip(group, of_group, strict=False)
    ]
    return LevelResult(
        level,
        temperature,
        rewards,
        sum(right or _answered(each) for each, right in pairs),
        sum(each.finish is Finish.LENGTH for each, _ in pairs),
        tuple(len(each.tokens.ids) for each, right in pairs if right),
        sum(not group for group in groups),
    )


def _answered(trajectory: Trajectory) -> bool:
    ended = trajectory.finish is not Finish.LENGTH
    return (ended and bool(trajectory.text.strip())) or marks_answer(trajectory.text)


def _named(levels: Sequence[EnvLevel]) -> str:
    env, level = levels[0]
    more = f" and {counted(len(levels) - 1, 'other level')}" if len(levels) > 1 else ""
    return f"{env} level {level}{more}"
