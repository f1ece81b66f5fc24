"""A node's rounds without the network, over an engine in a process of its own."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from node_step import NEVER, SignalVerifier

from node.config.config import Config
from node.config.learning import LearnerSection, MixtureSection, PolicySection
from node.config.registry import ENGINES
from node.config.sections import EngineSection, ScheduleSection
from node.engines.engine import Sampling
from node.engines.process.child import Starter
from node.engines.process.engine import EngineProcess
from node.learner.batches import TrainingGroup
from node.learner.learner import Learner
from node.learner.steps import Newest
from node.lifecycle import Opened
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.rollout.async_generator import JUDGES, AsyncRolloutGenerator, StalenessWindow
from node.rollout.generator import Generator, TaskIndexes
from node.rollout.group_writer import UnfinishedGroups
from node.rollout.groups import GroupLimits, Intake
from node.run.training_loop import TrainingLoop
from node.run.update_groups import ExternalGroups, TrainedPolicy
from node.tasks.curriculum import TaskSampler, served_levels
from node.tasks.task_set import load_task_set
from node.tasks.verifier.verifier import VerifierPool
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.journal import Journal
from swarm.member import Experience
from swarm.mixture import Mixture
from swarm.pool import Pool


class Beside(Opened):
    """Whole rounds with J = 0 on groups that all have a signal, and each of their parts alone.

    Args:
        options: ``model``, ``prompts``, ``completions``, ``tokens``.
        folder: for the journal.
        staleness: of the schedule.
        share: of groups that run beyond those that a round needs.
        kind: of the engine.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        folder: Path,
        *,
        staleness: int,
        share: float = 0.0,
        kind: type[EngineProcess] = EngineProcess,
    ) -> None:
        self._options = options
        self._folder = folder
        self._share = share
        self._kind = kind
        self._window = StalenessWindow(staleness, oversample=share)

    def step(self) -> None:
        """One round."""
        self._rounds.step()

    def tokens(self) -> tuple[int, float]:
        """Tokens of a round's groups, and the seconds until they were complete."""
        begin = time.perf_counter()
        groups = self._source.generate(self._options.prompts, Stopwatch())
        return sum(group.tokens for group in groups), time.perf_counter() - begin

    def drain(self) -> None:
        """Let the engine finish what is begun."""
        while self._window.running:
            self._source.beside(lambda: time.sleep(0.01))

    def generate_alone(self) -> float:
        """Seconds of the engine on the prompts of the last round."""
        prompts = [list(group.prompt_ids) for group in self._learner.given]
        begin = time.perf_counter()
        self._engine.generate(prompts, self._options.completions, self._sampling)
        return time.perf_counter() - begin

    def learn_alone(self) -> float:
        """Seconds of an update on the groups of the last round."""
        begin = time.perf_counter()
        self._learner.update(self._learner.given)
        return time.perf_counter() - begin

    def _open(self, stack: ExitStack) -> None:
        options, counters, clock = self._options, Counters(), SystemClock()
        policy = Policy.load(PolicySection(model=options.model, device="cpu"))
        policy.stop_ids = ()
        policy.context_length = max(policy.context_length, 2 * options.tokens)
        policy.model.config.max_position_embeddings = policy.context_length
        self._sampling = sampling = Sampling(max_new_tokens=options.tokens)
        journal = Journal(self._folder / "journal.sqlite", clock)
        stack.callback(journal.close)
        task_set = load_task_set("tiny")
        verifiers = [SignalVerifier(task_set, outside=False) for _ in range(JUDGES)]
        pool = stack.enter_context(VerifierPool(verifiers))
        served = served_levels(task_set, pool.start())
        section = EngineSection(backend=options.engine, gpu_memory_utilization=0.5)
        kind = ENGINES.open(section.backend, {})
        starter = Starter(
            section.backend,
            seed=0,
            threads=options.threads,
            timeout=section.timeout,
            options=kind.settings(section),
            as_checkpoint=kind.as_checkpoint,
        )
        self._engine = self._kind(policy, starter, counters)
        stack.callback(self._engine.close)
        tasks = Generator(
            author=bytes(32),
            policy=policy,
            engine=self._engine,
            verifier=pool,
            sampler=TaskSampler(served, {}, random.Random(0)),
            indexes=TaskIndexes(journal, clock, 60.0, 1 << 20, random.Random(0)),
            sampling=sampling,
            group_size=options.completions,
            counters=counters,
        )
        self._source = AsyncRolloutGenerator(
            tasks,
            window=self._window,
            unfinished=UnfinishedGroups(journal),
            sleep_mode=self._share > 0,
            threads=ThreadPoolExecutor(JUDGES),
        )
        stack.callback(self._source.close)
        self._learner = Recorded(policy, LearnerSection())
        taken = Pool(journal, 1024, 600.0, clock, counters)
        trained = TrainedPolicy(Config(), policy, counters, self._engine)
        trained.learner = self._learner
        self._rounds = TrainingLoop(
            source=self._source,
            external=ExternalGroups(
                Experience.around(taken),
                Mixture(MixtureSection(external=0), 0),
                Intake(policy, GroupLimits(1, 1), b"", counters),
                counters,
            ),
            trained=trained,
            evaluate=lambda: 0.0,
            publish=lambda groups: None,
            save=lambda number: None,
            rate=lambda number, reward: False,
            report=lambda outcome: None,
            counters=counters,
            local=options.prompts,
            schedule=ScheduleSection(checkpoint_every=NEVER),
        )


class Recorded(Learner):
    """Remembers what it was last given."""

    def __init__(self, policy: Policy, config: LearnerSection) -> None:
        super().__init__(policy, config, decoupled=True)
        self.given: Sequence[TrainingGroup] = ()

    def update(self, groups: Sequence[TrainingGroup], newest: Newest = tuple) -> Any:
        self.given = groups
        return super().update(groups, newest)
