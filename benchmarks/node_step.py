"""A node's rounds without the network, on groups that all have a signal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bare import BareTrainer, bare_generate, seconds
from layouts import padded, rows_of

from node.config.config import Config
from node.config.learning import LearnerSection, MixtureSection
from node.config.sections import ScheduleSection
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.learner.batches import MicroBatch, TrainingGroup
from node.learner.learner import Learner
from node.learner.steps import Newest
from node.policy.policy import Policy
from node.rollout.generator import Generator, TaskIndexes
from node.rollout.groups import GroupLimits, Intake
from node.run.training_loop import TrainingLoop
from node.run.update_groups import ExternalGroups, TrainedPolicy
from node.tasks.curriculum import TaskSampler, served_levels
from node.tasks.task_set import load_task_set
from node.tasks.verifier.verifier import Verifier
from protocol.rollout import Group
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.groups import Origin
from swarm.journal import Journal
from swarm.member import Experience
from swarm.mixture import Mixture
from swarm.pool import Pool
from swarm.verification import Judged, JudgeRefused

NEVER = 1 << 40


PROMPTS = tuple(f"What is {n} + {n + 1}?\nAnswer:" for n in range(10, 90))


class SignalVerifier(Verifier):
    """Does all of a verifier's work, then asks for what TRL is asked for, and says that every
    other answer is right."""

    def prompts(self, tasks: Sequence[Any]) -> list[str]:
        return list(PROMPTS[: len(super().prompts(tasks))])

    def judge_some(self, *args: Any, **kwargs: Any) -> Sequence[Judged]:
        return [_signal(found) for found in super().judge_some(*args, **kwargs)]


def _signal(found: Judged) -> Judged:
    if isinstance(found, JudgeRefused):
        return found
    return replace(found, rewards=tuple(float(i % 2) for i in range(len(found.rewards))))


class NodeStep:
    """Whole rounds with J = 0, and the bare work of the round just done.

    Args:
        policy: never stops by itself, so that every completion has ``tokens`` tokens.
        folder: for the journal.
        prompts: groups a round.
        completions: of each group.
        learner: how it learns; a node's defaults where nothing is said.
    """

    def __init__(
        self,
        policy: Policy,
        folder: Path,
        prompts: int,
        completions: int,
        tokens: int,
        learner: LearnerSection | None = None,
    ) -> None:
        self._policy, self._n, self._tokens = policy, completions, tokens
        self._stack = ExitStack()
        self._counters, self._clock = Counters(), SystemClock()
        self._sampling = Sampling(max_new_tokens=tokens)
        self._engine = TransformersEngine(policy, seed=0)
        self._learner = Learner(policy, learner or LearnerSection())
        self._groups: Sequence[TrainingGroup] = ()
        self._rounds = self._assemble(folder, prompts)

    def whole(self) -> float:
        """Seconds of one round."""
        return seconds(self._rounds.step)

    def bare_sampling(self) -> float:
        """Seconds of the engine alone on the prompts of the round just done."""
        return seconds(lambda: self._engine.generate(self._prompts(), self._n, self._sampling))

    def bare_generate(self) -> float:
        """Seconds of ``transformers.generate`` on them."""
        arguments = (self._prompts(), self._n, self._tokens, self._policy.pad_id)
        return seconds(lambda: bare_generate(self._policy.model, *arguments))

    def bare_training(self) -> float:
        """Seconds of forward, backward and optimizer on the round just done, laid out as the
        learner does."""
        return self._train(self._learner.batches(rows_of(self._groups)))

    def bare_padded_training(self) -> float:
        """The same with a padded row for every completion, prompt included."""
        return self._train(padded(rows_of(self._groups), self._policy))

    def close(self) -> None:
        """Stop the verifier's process."""
        self._stack.close()

    @cached_property
    def _bare(self) -> BareTrainer:
        return BareTrainer(self._policy.model)

    def _train(self, batches: Sequence[MicroBatch]) -> float:
        return seconds(lambda: self._bare.step(batches))

    def _prompts(self) -> list[list[int]]:
        return [list(group.prompt_ids) for group in self._groups]

    def _assemble(self, folder: Path, prompts: int) -> TrainingLoop:
        task_set, counters, clock = load_task_set("tiny"), self._counters, self._clock
        journal = Journal(folder / "journal.sqlite", clock)
        self._stack.callback(journal.close)
        pool = Pool(journal, 1024, 600.0, clock, counters)
        experience = Experience.around(pool)
        verifier = self._stack.enter_context(SignalVerifier(task_set, outside=False))
        sampler = TaskSampler(served_levels(task_set, verifier.start()), {}, rng=random.Random(0))
        update = self._learner.update

        def recorded(groups: Sequence[TrainingGroup], newest: Newest = tuple) -> Any:
            self._groups = groups
            return update(groups, newest)

        self._learner.update = recorded  # type: ignore[method-assign]

        def publish(groups: Sequence[Group]) -> None:
            policy = self._policy
            experience.outbox.put(
                groups, Origin(policy.version, policy.name, policy.encoding, 1.0, self._tokens)
            )

        dtype = str(self._policy.model.dtype).removeprefix("torch.")
        config = Config.model_validate({"policy": {"dtype": dtype}})
        trained = TrainedPolicy(config, self._policy, counters, self._engine)
        trained.learner = self._learner
        return TrainingLoop(
            source=Generator(
                author=bytes(32),
                policy=self._policy,
                engine=self._engine,
                verifier=verifier,
                sampler=sampler,
                indexes=TaskIndexes(journal, clock, 60.0, 1 << 20, random.Random(0)),
                sampling=self._sampling,
                group_size=self._n,
                counters=counters,
            ),
            external=ExternalGroups(
                experience,
                Mixture(MixtureSection(external=0), 0),
                Intake(self._policy, GroupLimits(1, 1), b"", counters),
                counters,
            ),
            trained=trained,
            evaluate=lambda: 0.0,
            publish=publish,
            save=lambda number: None,
            rate=lambda number, reward: False,
            report=lambda outcome: None,
            counters=counters,
            local=prompts,
            schedule=ScheduleSection(checkpoint_every=NEVER),
        )
