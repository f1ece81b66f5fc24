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

    Tasks of each family's easiest level are sampled at the config's temperature and at another
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
        current = self.config.engine.temperature
        self._temperatures = (current, COOLER if current > (COOLER + WARMER) / 2 else WARMER)
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
        common = set.intersection(*(self._sampled_at(each) for each in self._temperatures))
        rows = [each for each in self._results.values() if each.level in common]
        self._compared = tuple(rows or self._results.values())
        self.found = baseline = self._baseline()
        if not in_time:
            return baseline
        best = baseline.best
        unclear = [
            each.level
            for each in baseline.at(best)
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
        for result in self.found.fair() if self.found else ():
            yield result.level, [reward for row in result.rewards for reward in row]

    def _limit_cap(self, easiest: EnvLevels, limit: TimeLimit) -> None:
        """Measure the speed; limit completions so that the first tasks take their share."""
        for count in (1, 4):  # the first time, kernels are chosen and compiled
            self._sample(easiest[:count], self._temperatures[0], range(COMPARED), PROBED, limit)
        completions = len(easiest) * COMPARED * COMPLETIONS * len(self._temperatures)
        if self._pace > 0.0:  # it is 0 if the clock is too coarse
            max_tokens = int(COMPARED_SHARE * limit.seconds / (self._pace * completions))
            self._cap = min(self._cap, max(LEAST_CAP, max_tokens))

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
            elapsed = 0.0
            for temperature in temperatures:
                if elapsed and self._results and limit.left(_named(batch)) < elapsed:
                    self._late = None if self._sampled_at(temperature) else temperature
                    return False
                start = self.clock()
                for result in self._sample(batch, temperature, numbers, self._cap, limit):
                    key = result.level, temperature
                    previous = self._results.get(key)
                    self._results[key] = previous + result if previous else result
                elapsed = self.clock() - start
        return True

    def _sampled_at(self, temperature: float) -> set[EnvLevel]:
        return {level for level, other in self._results if other == temperature}

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
        harder, rows = [], self._baseline().at(temperature)
        for env, levels in self._levels.items():
            results = [row for row in rows if row.level[0] == env]
            if results and results[-1].success >= CLIMBS:
                harder += [(env, level) for level in levels if level > results[-1].level[1]][:1]
        return harder

    def _batches(self, levels: EnvLevels, tasks: int, seconds: float) -> Iterator[EnvLevels]:
        """Yield levels in batches of about equal time, by the speed measured so far."""
        while levels:
            cost = self._pace * self._cap * tasks * COMPLETIONS
            count = max(1, int(seconds / BATCHES / cost)) if cost > 0 else len(levels)
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
        results: list[LevelResult] = []
        for level in levels:
            if limit.left(_named([level])) > 0:
                results += self._sample([level], temperature, numbers, cap, limit)
        return results

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
        evaluation = evaluator.evaluate(COMPLETIONS)
        self._pace = (self.clock() - start) / (len(refs) * COMPLETIONS * cap)
        rows = [slice(n * len(numbers), (n + 1) * len(numbers)) for n in range(len(levels))]
        return [
            measured(evaluation, level, temperature, row)
            for level, row in zip(levels, rows, strict=True)
            if any(prompt is not None for prompt in evaluation.prompts[row])
        ]


def _named(levels: EnvLevels) -> str:
    env, level = levels[0]
    suffix = f" and {counted(len(levels) - 1, 'other level')}" if len(levels) > 1 else ""
    return f"{env} level {level}{suffix}"
