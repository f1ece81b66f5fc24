"""Where a node's own groups come from, and what others get of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from node.config.config import Config
from node.config.kinds import CURRICULA
from node.engines.engine import Sampling
from node.playing.limits import TurnLimits
from node.rollout.async_generator import JUDGES, OverlappingGenerator, StalenessWindow
from node.rollout.generator import Generator, TaskIndexes
from node.rollout.group_writer import GroupWriter, UnfinishedGroups
from node.rollout.groups import GroupSource
from node.run.trained_policy import TrainedPolicy
from node.tasks.curriculum import EnvLevel
from node.tasks.sampler import TaskSampler
from node.tasks.scorer import Scorer
from protocol.rollout import Group
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.groups import Origin
from swarm.journal import Journal

log = logging.getLogger(__name__)

MODEL_CHARACTERS = 64


class OwnGroups:
    """Has groups written as the schedule asks for, and tells readers who wrote them.

    Args:
        author: the node's public key; task seeds follow from it.
        journal: where groups that are not complete outlive the process.
    """

    def __init__(
        self,
        config: Config,
        trained: TrainedPolicy,
        sampler: TaskSampler,
        indexes: TaskIndexes,
        sampling: Sampling,
        verifier: Scorer,
        journal: Journal,
        counters: Counters,
        author: bytes,
    ) -> None:
        self._schedule = config.schedule
        self._verifier = verifier
        self._trained = trained
        self._indexes = indexes
        self._sampling = sampling
        self._group_size = config.engine.group_size
        self._journal = journal
        self._counters = counters
        self._limits = TurnLimits.of(config.engine)
        self._overlapping: OverlappingGenerator | None = None
        self._generator = Generator(
            author=author,
            policy=trained.policy,
            engine=trained.engine,
            verifier=verifier,
            sampler=sampler,
            indexes=indexes,
            sampling=sampling,
            group_size=self._group_size,
            counters=counters,
            limits=self._limits,
        )

    def source(self, done: int) -> GroupSource:
        """Own groups of the rounds after ``done``, as the schedule has them written."""
        policy, schedule = self._trained.policy, self._schedule
        if self._trained.streaming is None:
            return self._generator
        unfinished = UnfinishedGroups(self._journal)
        if lost := unfinished.rewind(done, policy.version):
            tokens = counted(lost, "token")
            log.info("%s of policies after the last checkpoint will be written anew", tokens)
        engine = self._trained.streaming
        self._overlapping = OverlappingGenerator(
            self._generator,
            policy=policy,
            engine=engine,
            writer=GroupWriter(
                policy, engine, self._verifier, self._limits, self._sampling, unfinished
            ),
            group_size=self._group_size,
            window=StalenessWindow(
                schedule.max_staleness, over_provision=schedule.over_provision, version=done
            ),
            unfinished=unfinished,
            sleep_mode=self._trained.sleep_mode,
            threads=ThreadPoolExecutor(JUDGES, "verifier"),
            counters=self._counters,
        )
        return self._overlapping

    def shareable(self, groups: Sequence[Group]) -> tuple[list[Group], Origin]:
        """Those of the groups that others may get, and what they are told of their policy."""
        policy, sampling = self._trained.policy, self._sampling
        origin = Origin(
            policy.version,
            public_name(policy.name),
            policy.encoding,
            sampling.temperature,
            sampling.max_new_tokens,
        )
        kept_back = self._verifier.unrepeatable
        shared = [g for g in groups if g.env not in kept_back and self._indexes.shareable(g.index)]
        return shared, origin

    def close(self) -> None:
        """Keep what is begun."""
        if self._overlapping:
            self._overlapping.close()


def open_sampler(config: Config, levels: Sequence[EnvLevel]) -> TaskSampler:
    """The sampler that a node's configuration asks for, of levels that can be served here."""
    tasks = config.tasks
    curriculum = CURRICULA.open(
        tasks.curriculum, tasks.curriculum_options, config.engine.group_size
    )
    return TaskSampler(levels, tasks.weights, random.Random(config.node.seed), curriculum)


def public_name(name: str) -> str:
    """A model's name as peers see it: of a folder only the last part, in printable ASCII."""
    last = Path(name).name if Path(name).is_absolute() else name
    return "".join(c if " " <= c <= "~" else "?" for c in last)[:MODEL_CHARACTERS] or "model"
