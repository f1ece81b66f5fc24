"""The learning side of a node: everything between the tasks and the policy.

It needs a journal and a verifier but no network and no files, so a node in a process of its own
and a simulated one among many run the same parts.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from node.config.config import Config
from node.config.kinds import CURRICULA, SELECTIONS
from node.config.sections import MixtureSection
from node.distributed.ranks import Ranks
from node.distributed.sharded_learner import Settings, open_learner
from node.engines.engine import RolloutEngine, Sampling, StreamingEngine
from node.engines.registry import open_engine, open_streaming_engine
from node.evaluation.evaluator import Evaluator, heldout_tasks
from node.evaluation.forgetting import ForgettingAlarm
from node.learner.outside_filters import FILTERS
from node.policy.policy import Policy
from node.rollout.generator import Generator
from node.rollout.intake import Intake, Limits
from node.rollout.overlapping_generator import JUDGES, OverlappingGenerator
from node.rollout.source import GroupSource
from node.rollout.staleness_window import Window
from node.rollout.task_indexes import TaskIndexes
from node.rollout.unfinished_groups import Shelf
from node.run.outcome import Outcome
from node.run.rounds import Rounds, RoundSettings, Rules
from node.tasks.curriculum import EnvLevel
from node.tasks.sampler import TaskSampler
from node.tasks.scorer import Scorer
from protocol.manifest import Manifest
from protocol.rollout import Group
from swarm.accounts import Accounts
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.journal import Journal
from swarm.mixture.lead import PeersLead
from swarm.mixture.mixture import Mixture
from swarm.origin import Origin
from swarm.pool import Pool

log = logging.getLogger(__name__)

MODEL_CHARACTERS = 64


class Trainer:
    """Sampler, engine and learner of one policy, and the rounds over them.

    Args:
        author: the node's public key; task seeds follow from it.
        manifest: the swarm's.
        levels: what the verifier can serve here.
        engine: what completions come from; left out, what the config asks for.
        ranks: processes that the learner is divided over; left out, it works alone.
        secret: what others must not know of this node's choices; left out, it is drawn.

    Attributes:
        policy, engine, learner, sampler: what a checkpoint is made of.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        *,
        author: bytes,
        manifest: Manifest,
        levels: Sequence[EnvLevel],
        verifier: Scorer,
        journal: Journal,
        pool: Pool,
        clock: Clock,
        counters: Counters,
        engine: RolloutEngine | None = None,
        ranks: Ranks | None = None,
        secret: bytes = b"",
    ) -> None:
        self._config = config
        self._yields = config.engine.yields or config.schedule.over_provision > 0
        self._verifier = verifier
        self._journal = journal
        self._clock = clock
        self._pool = pool
        self._counters = counters
        self.policy = policy
        self.sampler = _sampler(config, levels)
        self._heldout = heldout_tasks(self.sampler.levels, config.schedule.eval_tasks)
        self.alarm = ForgettingAlarm(counters, self._heldout)
        self.lead = PeersLead()
        self._streaming: StreamingEngine | None = None
        if config.overlaps and engine is None:
            threads = torch.get_num_threads()
            self._streaming = open_streaming_engine(config, policy, counters, threads)
        self.engine: RolloutEngine = (
            engine or self._streaming or open_engine(config, policy, counters)
        )
        stale = self._streaming is not None and config.schedule.max_staleness > 0
        self.learner = open_learner(policy, _learning(config, decoupled=stale), ranks)
        self._sampling = Sampling(config.engine.temperature, config.engine.max_new_tokens)
        self._indexes = _indexes(journal, clock, manifest)
        self._intake = _intake(config, policy, manifest, secret, counters)
        self._overlapping: OverlappingGenerator | None = None
        self._generator = Generator(
            author=author,
            policy=policy,
            engine=self.engine,
            verifier=verifier,
            sampler=self.sampler,
            indexes=self._indexes,
            sampling=self._sampling,
            group_size=config.engine.group_size,
            counters=counters,
        )

    def rounds(
        self,
        *,
        publish: Callable[[Sequence[Group], Origin], None],
        save: Callable[[int], None],
        report: Callable[[Outcome], None],
        done: int = 0,
        rules: Rules = Rules(),  # noqa: B008 - frozen
    ) -> Rounds:
        """The loop, after ``done`` rounds."""
        config = self._config

        def share(groups: Sequence[Group]) -> None:
            publish([g for g in groups if self._indexes.shareable(g.index)], self._origin())

        return Rounds(
            source=self._source(done),
            pool=self._pool,
            accounts=Accounts(self._journal, self._clock),
            mixture=_mixture(config, rules, self.lead),
            intake=self._intake,
            policy=self.policy,
            learner=self.learner,
            engine=self.engine,
            evaluator=Evaluator(
                self.policy,
                self.engine,
                self._verifier,
                self._heldout,
                self._sampling,
                self._counters,
            ),
            alarm=self.alarm,
            publish=share,
            save=save,
            report=report,
            counters=self._counters,
            settings=RoundSettings(
                config.mixture.local,
                config.mixture.external,
                config.schedule.eval_every,
                config.schedule.checkpoint_every,
                rules,
                self._yields,
            ),
            round=done,
        )

    def close(self) -> None:
        """Keep what is begun and let go of the engine."""
        if self._overlapping:
            self._overlapping.close()
        self.engine.close()

    def _source(self, done: int) -> GroupSource:
        """Own groups, as the schedule has them written."""
        config, schedule = self._config, self._config.schedule
        if self._streaming is None:
            return self._generator
        shelf = Shelf(self._journal)
        if lost := shelf.rewind(done, self.policy.version):
            log.info("%d tokens of policies after the last checkpoint are written anew", lost)
        self._overlapping = OverlappingGenerator(
            self._generator,
            policy=self.policy,
            engine=self._streaming,
            sampling=self._sampling,
            group_size=config.engine.group_size,
            window=Window(
                schedule.max_staleness, over_provision=schedule.over_provision, version=done
            ),
            shelf=shelf,
            yields=self._yields,
            threads=ThreadPoolExecutor(JUDGES, "verifier"),
            counters=self._counters,
        )
        return self._overlapping

    def _origin(self) -> Origin:
        """What readers are told of the policy that wrote the groups of this round."""
        policy, sampling = self.policy, self._sampling
        return Origin(
            policy.version,
            public_name(policy.name),
            policy.encoding,
            sampling.temperature,
            sampling.max_new_tokens,
        )


def _sampler(config: Config, levels: Sequence[EnvLevel]) -> TaskSampler:
    tasks = config.tasks
    curriculum = CURRICULA.open(
        tasks.curriculum, tasks.curriculum_options, config.engine.group_size
    )
    return TaskSampler(levels, tasks.weights, random.Random(config.node.seed), curriculum)


def _learning(config: Config, *, decoupled: bool) -> Settings:
    return Settings(
        config.learner,
        temperature=config.engine.temperature,
        correction=config.mixture.correction,
        decoupled=decoupled,
        floor="unlikely" in config.mixture.refuse,
        correction_options=config.mixture.correction_options,
    )


def _indexes(journal: Journal, clock: Clock, manifest: Manifest) -> TaskIndexes:
    epoch, most = manifest.epoch_seconds, manifest.max_groups_per_epoch
    return TaskIndexes(journal, clock, epoch, most, random.Random())


def _intake(
    config: Config, policy: Policy, manifest: Manifest, secret: bytes, counters: Counters
) -> Intake:
    limits = Limits(
        config.engine.group_size,
        config.engine.max_new_tokens,
        [name for name in FILTERS if name in config.mixture.refuse],
    )
    extract = {spec.name: spec.extract for spec in manifest.catalogue}
    return Intake(policy, limits, extract, secret or secrets.token_bytes(16), counters)


def _mixture(config: Config, rules: Rules, lead: PeersLead) -> Mixture:
    section = config.mixture
    rule = SELECTIONS.load(section.select)
    options = SELECTIONS.options(section.select, section.select_options)
    return Mixture(section, config.node.seed, lead, rule, options, discard=rules.discard)


def public_name(name: str) -> str:
    """A model's name as peers see it: of a folder only the last part, in printable ASCII."""
    last = Path(name).name if Path(name).is_absolute() else name
    return "".join(c if " " <= c <= "~" else "?" for c in last)[:MODEL_CHARACTERS] or "model"


def open_pool(
    config: MixtureSection, journal: Journal, clock: Clock, counters: Counters, salt: bytes
) -> Pool:
    """The pool that a node's configuration asks for.

    Args:
        salt: see :class:`swarm.eviction.PoolLimits`.
    """
    return Pool(
        journal,
        config.pool_groups,
        config.max_age,
        clock,
        counters,
        max_uses=config.max_uses,
        newcomer_share=config.newcomer_share,
        salt=salt,
    )
