"""The evaluation of a policy before it trains, level by level, in limited time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from node.config.config import Config
from node.engines.engine import RolloutEngine, Sampling
from node.errors import NodeError
from node.evaluation.baseline import LEAST_CAP, MASTERED, Baseline, LevelResult, measured
from node.evaluation.evaluator import Evaluator, Progress, TimeLimit
from node.policy.policy import Policy
from node.tasks.curriculum import EnvLevel, EnvLevels
from node.tasks.scorer import Scorer
from node.trajectories.trajectory import TurnLimits
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.groups import TaskRef
from swarm.verification import VerifierError

SECONDS = 120.0
COMPARED = 1  # tasks of each easiest level at both temperatures; more if that are few
ENOUGH = 6  # tasks at both temperatures in all, if their share of the time suffices
TASKS = 2  # further tasks of a level, at the better temperature
COMPLETIONS = 4  # per task
COOLER, WARMER = 0.6, 1.0
PROBED = 8  # tokens per completion that measures the speed
COMPARED_SHARE = 0.4  # fraction of the time for the tasks at both temperatures
BATCHES = 8  # approximate number of batches in the whole time
CLIMBS = 0.6  # success from which the next level is evaluated


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
    levels: EnvLevels
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
        self._failed: VerifierError | NodeError | None = None
        self._late: float | None = None

    def run(self, seconds: float, progress: Progress = lambda done, what: None) -> Baseline:
        """Evaluate for ``seconds``, then finish the batch. Raises NodeError or VerifierError."""
        limit = TimeLimit(seconds, self.clock, progress)
        easiest = [(env, levels[0]) for env, levels in self._levels.items()]
        limit.left("generation speed")
        self._limit_cap(easiest, limit)
        in_time = self._evaluate(easiest, self._temperatures, range(COMPARED), limit)
        done, reserved = COMPARED, (1.0 - COMPARED_SHARE) * limit.seconds
        while in_time and done * len(easiest) < ENOUGH and limit.left(_named(easiest)) > reserved:
            in_time = self._evaluate(easiest, self._temperatures, range(done, done + 1), limit)
            done += 1
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
        self._evaluate(unclear, (best,), range(done, done + TASKS), limit)
        while harder := self._next_levels(best):
            if not self._evaluate(harder, (best,), range(TASKS), limit):
                break
        self.found = self._baseline()
        return self.found

    def rewards(self) -> Iterator[tuple[EnvLevel, list[float]]]:
        """Yield the rewards of each level at the better temperature, for a curriculum."""
        for each in self.found.fair() if self.found else ():
            yield each.level, [reward for row in each.rewards for reward in row]

    def _limit_cap(self, easiest: EnvLevels, limit: TimeLimit) -> None:
        """Measure the speed; limit completions so that the first tasks take their share."""
        for count in (1, 4):  # the first time, kernels are chosen and compiled
            self._sample(easiest[:count], self._temperatures[0], range(COMPARED), PROBED, limit)
        completions = len(easiest) * COMPARED * COMPLETIONS * len(self._temperatures)
        if self._pace > 0.0:  # it is 0 if the clock is too coarse
            affordable = int(COMPARED_SHARE * limit.seconds / (self._pace * completions))
            self._cap = min(self._cap, max(LEAST_CAP, affordable))

    def _evaluate(
        self, levels: EnvLevels, temperatures: Sequence[float], numbers: range, limit: TimeLimit
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

    def _batches(self, levels: EnvLevels, tasks: int, seconds: float) -> Iterator[EnvLevels]:
        """Yield levels in batches of about equal time, by the speed measured so far."""
        while levels:
            each = self._pace * self._cap * tasks * COMPLETIONS
            count = max(1, int(seconds / BATCHES / each)) if each > 0 else len(levels)
            yield levels[:count]
            levels = levels[count:]

    def _sample(
        self, levels: EnvLevels, temperature: float, numbers: range, cap: int, limit: TimeLimit
    ) -> list[LevelResult]:
        """Evaluate levels; omit those whose tasks cannot be built, answered or scored."""
        try:
            return self._sample_all(levels, temperature, numbers, cap)
        except (VerifierError, NodeError) as error:
            self._failed = error
            if len(levels) == 1:
                return []
        found: list[LevelResult] = []
        for level in levels:
            if limit.left(_named([level])) > 0:
                found += self._sample([level], temperature, numbers, cap, limit)
        return found

    def _sample_all(
        self, levels: EnvLevels, temperature: float, numbers: range, cap: int
    ) -> list[LevelResult]:
        """Sample and score the tasks, and measure the speed."""
        start = self.clock()
        refs = [TaskRef.heldout(*pair, number) for pair in levels for number in numbers]
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


def _named(levels: EnvLevels) -> str:
    env, level = levels[0]
    more = f" and {counted(len(levels) - 1, 'other level')}" if len(levels) > 1 else ""
    return f"{env} level {level}{more}"
