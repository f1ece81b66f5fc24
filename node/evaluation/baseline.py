"""The baseline: what a policy solves before it trains, and the settings that follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from node.evaluation.evaluator import SOLVED, Evaluation
from node.monitor.record import percent
from node.tasks.answers import marks_answer
from node.tasks.curriculum import AutoCurriculum, EnvLevel
from node.trajectories.trajectory import Trajectory
from protocol.rollout import Finish
from swarm.common.util import counted

LEAST_CAP = 24  # minimum tokens per completion
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
        answered, truncated = self.answered / self.completions, self.truncated / self.completions
        return (
            f"{self.right} of {self.completions} completions are correct, "
            f"{percent(answered)} have an answer, {percent(truncated)} are truncated"
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
        return tuple(row for row in self.results if row.temperature == temperature)

    @property
    def best(self) -> float:
        """The temperature at which most groups of the same tasks are informative."""
        totals = {t: self._total(t) for t in {row.temperature for row in self.compared}}
        shares = {t: total.informative / total.tasks for t, total in totals.items()}
        top = max(shares, key=lambda t: shares[t])
        current = shares.get(self.temperature)  # None if all of its tasks failed
        return top if current is None or shares[top] > current + BETTER else self.temperature

    def _total(self, temperature: float) -> LevelResult:
        """Return the sum of the results that are compared, at one temperature."""
        return reduce(add, (row for row in self.compared if row.temperature == temperature))

    def fair(self) -> tuple[LevelResult, ...]:
        """Return the best temperature's results, but none that a reduced token cap cut off.

        The config's cap may be enough for those tasks, so their failures prove nothing.
        """
        full_cap = self.cap == self.max_new_tokens
        return tuple(row for row in self.at(self.best) if full_cap or not row.mostly_truncated)

    def reached(self) -> dict[str, list[int]]:
        """Return the levels to train on by family: those below mastery, and one more.

        A family without fair results keeps its easiest level; one that is never solved is omitted.
        """
        result: dict[str, list[int]] = {}
        for env, levels in self.levels.items():
            rows = [row for row in self.fair() if row.level[0] == env]
            if not rows:
                result[env] = list(levels[:1])
                continue
            solved = [row.level[1] for row in rows if row.right]
            mastered = [row.level[1] for row in rows if row.success >= MASTERED]
            if solved:
                next_level = [level for level in levels if level > max(solved)][:1]
                choice = [level for level in levels if level <= max(solved)] + next_level
                result[env] = [level for level in choice if level not in mastered] or choice[-1:]
        return result

    def settings(self) -> dict[str, Any]:
        """Return the suggested config keys with their values; empty if none changes."""
        keys: dict[str, Any] = {}
        if self.best != self.temperature:
            keys["engine.temperature"] = self.best
        rows = self.fair()
        lengths = _lengths(rows)
        if not lengths:
            if self._total(self.best).mostly_truncated and self.cap == self.max_new_tokens:
                keys["engine.max_new_tokens"] = WIDER * self.max_new_tokens
            return keys
        reached = self.reached()
        min_levels = AutoCurriculum.GRADED
        graded = {env for env, levels in self.levels.items() if len(levels) >= min_levels}
        chosen = {env: reached[env] for env in reached if env in graded}
        if chosen:
            keys["tasks.levels"] = chosen
        tested = {row.level[0] for row in rows}
        trained = self.levels.keys()
        if graded and tested - reached.keys():
            keys["tasks.weights"] = dict.fromkeys(reached, 1.0)
            trained = reached.keys()
        cap = max(LEAST_CAP, CAP_STEP * math.ceil(CAP_MARGIN * max(lengths.values()) / CAP_STEP))
        if trained - tested:  # their answers may be longer
            cap = max(cap, WIDER * self.cap)
        if 2 * cap <= self.max_new_tokens and lengths.keys() >= trained & tested:
            keys["engine.max_new_tokens"] = cap
        return keys

    def lines(self) -> tuple[str, ...]:
        """Return the results by temperature and by family, and the verdict."""
        rows = [self._overall(t) for t in sorted({row.temperature for row in self.compared})]
        if self.late is not None:
            rows.append(f"  not tried: temperature {self.late:g}, because the time ended")
        families = ["  {} level {}: {}".format(*r.level, r) for r in self.at(self.best)]
        tested = {row.level[0] for row in self.at(self.best)}
        if untested := [env for env in self.levels if env not in tested]:
            families.append(f"  not tried: {', '.join(untested)}")
        fair = self.fair()
        if unclear := ["{} level {}".format(*r.level) for r in self.at(self.best) if r not in fair]:
            families.append(f"  not judged: {', '.join(unclear)}, because {self._reduced}")
        total = reduce(add, self.at(self.best))
        if total.unfit / total.tasks >= 0.5:
            families.append(UNFIT)
        return (*rows, *families, self.verdict())

    @property
    def _reduced(self) -> str:
        return f"most completions are truncated at {self.cap} of {self.max_new_tokens} tokens"

    def _overall(self, temperature: float) -> str:
        total = self._total(temperature)
        single = len({row.temperature for row in self.compared}) == 1
        phrase = "at temperature" if single else "sampled at both temperatures, at"
        return (
            f"baseline on {counted(total.tasks, 'task')} {phrase} {temperature:g}: {total} at "
            f"{self.cap} tokens; {percent(total.informative / total.tasks)} of groups are "
            "informative"
        )

    def verdict(self) -> str:
        """Return what to expect, with a remedy if there is nothing to learn from."""
        rows = self.at(self.best)
        if any(row.informative for row in rows):
            return "result: the policy can learn from its own rollouts"
        if all(row.success >= MASTERED for row in rows):
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
    lengths: dict[str, list[int]] = {}
    for each in rows:
        if each.lengths:
            lengths.setdefault(each.level[0], []).extend(each.lengths)
    return {env: sorted(each)[math.ceil(0.95 * (len(each) - 1))] for env, each in lengths.items()}


def measured(found: Evaluation, level: EnvLevel, temperature: float, rows: slice) -> LevelResult:
    """Return the result of a level, of which these are the tasks' ``rows``."""
    groups, rewards = found.trajectories[rows], found.rewards[rows]
    pairs = [
        (trajectory, reward >= SOLVED)
        for group, row in zip(groups, rewards, strict=True)
        for trajectory, reward in zip(group, row, strict=False)
    ]
    return LevelResult(
        level,
        temperature,
        rewards,
        sum(right or _answered(trajectory) for trajectory, right in pairs),
        sum(trajectory.finish is Finish.LENGTH for trajectory, _ in pairs),
        tuple(len(trajectory.tokens.ids) for trajectory, right in pairs if right),
        sum(not group for group in groups),
    )


def _answered(trajectory: Trajectory) -> bool:
    ended = trajectory.finish is not Finish.LENGTH
    return (ended and bool(trajectory.text.strip())) or marks_answer(trajectory.text)
