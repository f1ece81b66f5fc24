"""Rewards on held-out tasks: evaluation, its time limit and the forgetting alarm."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import itemgetter
from typing import Any

from node.engines.engine import Prompts, RolloutEngine, Sampling
from node.errors import NodeError
from node.policy.policy import Policy
from node.tasks.scorer import Scorer, buildable, nothing_built
from node.trajectories.player import Player, verified
from node.trajectories.trajectory import Trajectory, TurnLimits
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.verification import VerifierError

log = logging.getLogger(__name__)

SOLVED = 1.0 - 1e-6
LONGER_CONTEXT = "Choose a model with a longer context, or other families with tasks.weights."


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards on held-out tasks: one row per task, one entry per completion."""

    tasks: tuple[TaskRef, ...]
    rewards: tuple[tuple[float, ...], ...]
    unbuilt: int = 0  # tasks that could not be built or scored, with reward 0
    unfit: int = 0  # tasks whose prompt is too long, with reward 0
    prompts: tuple[str | None, ...] = ()  # None if unbuilt or unscored
    trajectories: tuple[tuple[Trajectory, ...], ...] = ()  # completions; empty if unanswered

    @property
    def mean(self) -> float:
        return sum(sum(row) / len(row) for row in self.rewards) / len(self.rewards)

    @property
    def means(self) -> tuple[float | None, ...]:
        """Mean reward of each task; None for one that could not be built or scored."""
        rows = zip(self.rewards, self.prompts or ("",) * len(self.rewards), strict=True)
        return tuple(None if prompt is None else sum(row) / len(row) for row, prompt in rows)

    @property
    def success(self) -> float:
        """Fraction of completions that are right."""
        return self.pass_at(1)

    @property
    def informative(self) -> float:
        """Fraction of groups whose rewards differ: only those train a policy."""
        return sum(min(row) < max(row) for row in self.rewards) / len(self.rewards)

    def pass_at(self, k: int) -> float:
        """Return pass@k: the chance that one of ``k`` completions solves a task.

        The unbiased estimate ``1 - C(n-c, k) / C(n, k)`` of Chen et al. (arXiv 2107.03374),
        averaged over tasks. Raises ``ValueError`` if ``k`` exceeds the completions per task.
        """
        shares = []
        for row in self.rewards:
            n, solved = len(row), sum(reward >= SOLVED for reward in row)
            if k > n:
                raise ValueError(f"pass@{k} needs {k} completions per task, there are {n}")
            shares.append(1.0 - math.comb(n - solved, k) / math.comb(n, k))
        return sum(shares) / len(shares)


def heldout_tasks(levels: Sequence[tuple[str, int]], count: int) -> tuple[TaskRef, ...]:
    """Return the first ``count`` held-out tasks, cycling through the levels.

    If there are more levels than tasks, those that are easiest in their family are asked.
    """
    if len(levels) > count:
        levels = sorted(levels, key=itemgetter(1))[:count]
    return tuple(
        TaskRef.heldout(*levels[number % len(levels)], number // len(levels))
        for number in range(count)
    )


def fitting(policy: Policy, prompts: Prompts) -> list[bool]:
    """Return which prompts (ids) leave room for an answer; raise NodeError if none."""
    fits = [0 < len(ids) < policy.context_length for ids in prompts]
    if fits and not any(fits):
        problem = "no prompt leaves space for a completion in the policy's context"
        value = f"{min(map(len, prompts))} tokens or more, context {policy.context_length}"
        raise NodeError(problem, value, LONGER_CONTEXT)
    return fits


@dataclass(eq=False)
class Evaluator:
    """Samples completions for fixed held-out tasks and scores them.

    A seed in ``sampling`` makes it repeatable. Counts ``heldout_unbuilt{reason}``, also for tasks
    that cannot be scored, and, for lost environments (reward 0), ``heldout_lost``.
    """

    policy: Policy
    engine: RolloutEngine
    verifier: Scorer
    tasks: Sequence[TaskRef]
    sampling: Sampling
    counters: Counters
    limits: TurnLimits = TurnLimits()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        self._player = Player(self.policy, self.engine, self.verifier, self.limits)
        self._tasks = tuple(self.tasks)

    def evaluate(self, completions: int = 1) -> Evaluation:
        """Score ``completions`` samples of every task under the current policy.

        A task that does not fit, or cannot be built or scored, counts as unsolved. Raises
        ``NodeError`` if no prompt fits, ``VerifierError`` if no task can be built or scored.
        """
        prompts = buildable(
            self.verifier, self._tasks, lambda number, why: self._unbuilt(self._tasks[number], why)
        )
        if prompts and not any(each is not None for each in prompts):
            raise nothing_built(len(prompts))
        prompt_ids = [self.policy.encode_prompt(each) for each in prompts if each is not None]
        fits = fitting(self.policy, prompt_ids)
        if not all(fits):
            log.warning("%d of %d held-out prompts do not fit", fits.count(False), len(fits))
        fit_flags = iter(fits)
        answerable = [prompt is not None and next(fit_flags) for prompt in prompts]
        tasks = list(compress(self._tasks, answerable))
        inputs = list(compress(prompt_ids, fits))
        trajectories = self._player.play(tasks, inputs, completions, self.sampling)
        results = iter(zip(self._scored(tasks, trajectories), trajectories, strict=True))
        rows = [next(results) if each else (None, ()) for each in answerable]
        for number, (rewards, _) in enumerate(rows):
            if answerable[number] and rewards is None:
                prompts[number] = None
        return Evaluation(
            self._tasks,
            tuple(rewards or (0.0,) * completions for rewards, _ in rows),
            unbuilt=prompts.count(None),
            unfit=fits.count(False),
            prompts=tuple(prompts),
            trajectories=tuple(tuple(group) for _, group in rows),
        )

    def _scored(
        self, tasks: Sequence[TaskRef], trajectories: Sequence[Sequence[Trajectory]]
    ) -> list[tuple[float, ...] | None]:
        """Return each task's rewards, None if unscored; raise ``VerifierError`` if all are."""
        pairs = list(zip(tasks, trajectories, strict=True))
        rows: list[tuple[float, ...] | None] = []
        for (task, group), result in zip(pairs, verified(self.verifier, pairs), strict=True):
            if not isinstance(result, VerifierError):
                rows.append(result.rewards)
            elif lost := sum(t.lost is not None for t in group):
                self.counters.add("heldout_lost", lost)
                log.warning("%d held-out trajectories of %s are lost: %s", lost, task.env, result)
                rows.append(tuple(t.reward or 0.0 for t in group))
            else:
                self._unbuilt(task, result)
                rows.append(None)
                error = result
        if rows and not any(rows):
            raise error
        return rows

    def _unbuilt(self, task: TaskRef, error: VerifierError) -> None:
        self.counters.add("heldout_unbuilt", reason=error.reason)
        log.warning("a held-out task of %s counts as unsolved: %s", task.env, error)


Progress = Callable[[float, str], None]
"""Called with the fraction of the time that has passed, and what is evaluated next."""


@dataclass(eq=False)
class TimeLimit:
    """The time of an evaluation, which starts now, and reports of its progress."""

    seconds: float
    clock: Callable[[], float]
    progress: Progress

    def __post_init__(self) -> None:
        self._start = self.clock()

    def left(self, what: str) -> float:
        """Return the seconds left; report that ``what`` is evaluated next."""
        elapsed = self.clock() - self._start
        self.progress(min(1.0, elapsed / self.seconds), what)
        return self.seconds - elapsed


ERRORS = 3.5  # standard errors by which the mean must fall
IN_A_ROW = 2  # the best of many evaluations is partly luck, so a single worse one proves nothing


class ForgettingAlarm:
    """Compares each evaluation with the best earlier one, task by task.

    Equal tasks cancel most random differences. The alarm fires once per fall, and changes nothing:
    you may lower ``mixture.external`` or ``learner.lr``, or return to a checkpoint. It counts
    ``forgetting_alarms``.
    """

    def __init__(self, counters: Counters, tasks: Sequence[TaskRef]) -> None:
        self._counters = counters
        self._tasks = [[task.env, task.level, task.seed] for task in tasks]
        self._best: Sequence[float | None] = ()
        self._worse = 0
        self._version: int | None = None

    def look(self, rewards: Sequence[float | None], version: int | None = None) -> bool:
        """Add an evaluation, one mean reward per task; return whether the alarm fires.

        None is a task that could not be built, which proves nothing. Evaluating a policy
        ``version`` again, as after a restart, adds no evidence.
        """
        if version is not None and version == self._version:
            return False
        self._version = version
        all_pairs = list(zip(self._best or rewards, rewards, strict=True))
        pairs = [(old, new) for old, new in all_pairs if old is not None and new is not None]
        if not self._best or sum(new for _, new in pairs) >= sum(old for old, _ in pairs):
            self._best = [old if new is None else new for old, new in all_pairs]
            self._worse = 0 if pairs else self._worse
            return False
        self._worse = self._worse + 1 if _fallen([new - old for old, new in pairs]) else 0
        if self._worse != IN_A_ROW:
            return False
        self._counters.add("forgetting_alarms")
        log.warning(
            "held-out reward fell from %.3f to %.3f in %d evaluations. Decrease learner.lr or "
            "mixture.external, or return to the best checkpoint with: swarm-node rollback --to "
            "best",
            sum(old for old, _ in pairs) / len(pairs),
            sum(new for _, new in pairs) / len(pairs),
            IN_A_ROW,
        )
        return True

    def state_dict(self) -> dict[str, Any]:
        state = {"tasks": self._tasks, "best": list(self._best), "worse": self._worse}
        return {**state, "version": self._version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, unless the tasks changed."""
        if state.get("tasks") == self._tasks:
            self._best, self._worse = state["best"], int(state["worse"])
            self._version = state["version"]


def _fallen(differences: Sequence[float]) -> bool:
    """Return whether the mean difference is far below zero, by its standard error."""
    n, mean = len(differences), sum(differences) / len(differences)
    std_error = math.sqrt(sum((d - mean) ** 2 for d in differences) / max(1, n - 1) / n)
    return mean < -ERRORS * std_error
