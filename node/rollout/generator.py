"""Synchronous generation of local groups: tasks, completions, scores."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress

from node.engines.engine import Prompts, RolloutEngine, Sampling
from node.errors import NodeError
from node.evaluation.evaluator import LONGER_CONTEXT
from node.learner.batches import TrainingGroup
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.rollout.groups import GroupSource, LocalGroup, LocalTask, local_group
from node.tasks.curriculum import EnvLevel, TaskSampler
from node.tasks.scorer import Scorer, buildable, nothing_built
from node.trajectories.player import Player, verified
from node.trajectories.trajectory import Trajectory, TurnLimits
from protocol.announcement import epoch_of
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.journal import Journal
from swarm.verification import VerifierError

log = logging.getLogger(__name__)

MANY_UNFIT = 8  # Unanswerable prompts in a row that show a general problem.


class PromptRoom:
    """Filter of prompts that a policy cannot answer; fails if there are no others."""

    def __init__(self, policy: Policy, counters: Counters) -> None:
        self._policy = policy
        self._counters = counters
        self._unfit: list[int] = []

    def fits(self, prompts: Prompts) -> list[bool]:
        """Return for each prompt whether it leaves room; NodeError after many unfit ones."""
        context = self._policy.context_length
        lengths = [len(ids) for ids in prompts]
        fits = [0 < length < context for length in lengths]
        if empty := lengths.count(0):
            self._counters.add("own_prompts_empty", empty)
            log.warning("skipped %d of %d prompts: they have no token", empty, len(prompts))
        if too_long := fits.count(False) - empty:
            self._counters.add("own_prompts_too_long", too_long)
            log.warning(
                "skipped %d of %d prompts, of up to %d tokens: they do not fit the policy's "
                "context of %d. %s",
                too_long,
                len(prompts),
                max(lengths),
                context,
                LONGER_CONTEXT,
            )
        self._note(lengths, fits)
        return fits

    def _note(self, lengths: Sequence[int], fits: Sequence[bool]) -> None:
        for length, fit in zip(lengths, fits, strict=True):
            self._unfit = [] if fit else [*self._unfit, length]
        if len(self._unfit) >= MANY_UNFIT:
            raise NodeError(
                "no prompt leaves space for a completion",
                f"{len(self._unfit)} in a row have {min(self._unfit)} to {max(self._unfit)} "
                f"tokens, context {self._policy.context_length}",
                LONGER_CONTEXT,
            )


PRIVATE = range(1 << 31, 1 << 32)  # above every manifest's limit; trained on, never shared


@dataclass(eq=False)
class TaskIndexes:
    """Source of ``(epoch, index)`` pairs; the journal keeps them across crashes.

    ``limit`` is the maximum of an author per time slot, from the manifest. A node that needs more
    uses random private indexes.
    """

    journal: Journal
    clock: Clock
    epoch_seconds: float
    limit: int
    rng: random.Random

    def take(self, count: int) -> list[tuple[int, int]]:
        epoch = epoch_of(self.clock.time(), self.epoch_seconds)
        shared = list(self.journal.next_indexes(epoch, count, self.limit))
        private = [self.rng.choice(PRIVATE) for _ in range(count - len(shared))]
        return [(epoch, index) for index in shared + private]

    def shareable(self, index: int) -> bool:
        """Return whether peers accept a group of this index."""
        return index < self.limit


MANY_UNBUILT = 8  # Tasks in a row that cannot be built, which show a general problem.


@dataclass(eq=False, kw_only=True)
class Generator(GroupSource):
    """Source of scored groups from a node's next tasks.

    A task's seed follows from the author's key and an index used once, so peers can rebuild it.
    """

    author: bytes
    policy: Policy
    engine: RolloutEngine
    verifier: Scorer
    sampler: TaskSampler
    indexes: TaskIndexes
    sampling: Sampling
    group_size: int
    counters: Counters
    limits: TurnLimits = field(default_factory=TurnLimits)

    def __post_init__(self) -> None:
        self._player = Player(self.policy, self.engine, self.verifier, self.limits)
        self.room = PromptRoom(self.policy, self.counters)
        self._unbuilt = 0
        self._newest: list[TrainingGroup] = []

    def generate(self, count: int, watch: Stopwatch) -> list[LocalGroup]:
        """Roll out ``count`` tasks; omit and count those that cannot be used.

        Raises NodeError or VerifierError: :data:`MANY_UNFIT` or :data:`MANY_UNBUILT` in a row.
        """
        tasks = self.next_tasks(count)
        with watch.time("verify"):
            prompts = self.prompts(tasks)
            self._note(prompts)
        with watch.time("generate"):
            tasks = [task for task, p in zip(tasks, prompts, strict=True) if p is not None]
            prompt_ids = [self.policy.encode_prompt(p) for p in prompts if p is not None]
            fits = self.room.fits(prompt_ids)
            tasks, prompt_ids = list(compress(tasks, fits)), list(compress(prompt_ids, fits))
            refs = [task.ref for task in tasks]
            trajectories = self._player.play(refs, prompt_ids, self.group_size, self.sampling)
        with watch.time("verify"):
            results = self._score(list(zip(tasks, prompt_ids, trajectories, strict=True)))
            groups = [group for group in results if group is not None]
        self.observe(groups)
        self._newest = [group.training for group in groups]
        return groups

    def newest(self) -> Sequence[TrainingGroup]:
        """Return the groups of the last :meth:`generate`."""
        return self._newest

    def observe(self, groups: Iterable[LocalGroup]) -> None:
        """Adapt the choice of further tasks to these groups' rewards."""
        for group in groups:
            self.sampler.observe((group.group.env, group.group.level), group.training.rewards)

    @property
    def levels(self) -> tuple[EnvLevel, ...]:
        return self.sampler.levels

    def next_tasks(self, count: int) -> list[LocalTask]:
        tasks = []
        for epoch, index in self.indexes.take(count):
            ref = TaskRef.shared(self.author, *self.sampler.next(), epoch, index)
            tasks.append(LocalTask(ref, epoch, index))
        return tasks

    def prompts(self, tasks: Sequence[LocalTask]) -> list[str | None]:
        """Return the tasks' prompts; None, counted, for a task that cannot be built.

        May run concurrently with everything else; raises VerifierError if nothing can be built now.
        """
        refs = [task.ref for task in tasks]
        return buildable(self.verifier, refs, lambda n, error: self._unscored(tasks[n], error))

    def score(
        self, task: LocalTask, prompt_ids: Sequence[int], trajectories: Sequence[Trajectory]
    ) -> LocalGroup | None:
        """Return the group; None, counted, if it cannot be scored. May run concurrently."""
        return next(self._score([(task, prompt_ids, trajectories)]))

    def _note(self, prompts: Sequence[str | None]) -> None:
        for prompt in prompts:
            self._unbuilt = self._unbuilt + 1 if prompt is None else 0
        if self._unbuilt >= MANY_UNBUILT:
            raise nothing_built(self._unbuilt)

    def _score(
        self, rollouts: Sequence[tuple[LocalTask, Sequence[int], Sequence[Trajectory]]]
    ) -> Iterator[LocalGroup | None]:
        outcomes = verified(self.verifier, [(task.ref, group) for task, _, group in rollouts])
        for (task, prompt_ids, group), outcome in zip(rollouts, outcomes, strict=True):
            if isinstance(outcome, VerifierError):
                self._unscored(task, outcome)
                yield None
            else:
                if outcome.over:
                    self.counters.add("completions_slow", len(outcome.over))
                yield local_group(task, prompt_ids, group, outcome)

    def _unscored(self, task: LocalTask, error: VerifierError) -> None:
        self.counters.add("own_groups_unscored", reason=error.reason)
        log.warning("local group of %s could not be scored: %s", task.ref.env, error)
