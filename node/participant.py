"""One node put together: membership, policy, engine, learner, and the rounds over them.

The parts open in an order in which a failure costs least, and close in the opposite one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from node.config import Config
from node.draws import Draws
from node.engines.engine import Sampling
from node.engines.transformers_engine import TransformersEngine
from node.evaluation import Evaluator, heldout_tasks
from node.generation import Generator
from node.learner import Learner, LearnerConfig
from node.membership import Membership
from node.policy import Policy, PolicyConfig
from node.progress import Progress
from node.recorder import Recorder
from node.rounds import Rounds, RoundSettings
from node.run_folder import RunFolder
from node.tasks.curriculum import TaskSampler, served_levels
from node.tasks.verifier import Verifier
from node.threads import choose
from protocol.rollout import Group
from swarm.clock import SystemClock
from swarm.counters import Counters
from swarm.journal import open_or_restore
from swarm.mixture import Mixture, MixtureConfig
from swarm.outbox import Origin
from swarm.pool import Pool

log = logging.getLogger(__name__)


class Participant:
    """A node in its run folder, resumed where it stopped.

    A context manager: entering opens every part and joins the swarm, leaving closes them. The
    caller holds the run folder's lock for as long.

    Attributes:
        rounds: the loop; :meth:`node.rounds.Rounds.step` does one round.
        membership: this node's place in the swarm.
        policy: what is trained.
        recorder: takes further sinks for the rounds' records.
        notes: what had to be put right on opening, one sentence each.
    """

    rounds: Rounds
    membership: Membership
    policy: Policy
    recorder: Recorder

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.folder = folder
        self.counters = Counters()
        self.notes: tuple[str, ...] = ()
        self._stack = ExitStack()

    def __enter__(self) -> Participant:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _open(self, stack: ExitStack) -> None:
        config = self.config
        choose(config.node.threads)
        journal, notes = open_or_restore(self.folder.journal, SystemClock())
        stack.callback(journal.close)
        pool = Pool(
            journal,
            config.mixture.pool_groups,
            config.mixture.max_age,
            SystemClock(),
            self.counters,
        )
        self.membership = stack.enter_context(
            Membership(config, self.folder, journal, pool, self.counters)
        )
        manifest = self.membership.manifest
        verifier = stack.enter_context(
            Verifier(manifest.catalogue, config.tasks.files, outside=False, counters=self.counters)
        )
        levels = served_levels(manifest.catalogue, verifier.start())
        sampler = TaskSampler(levels, config.tasks.weights, random.Random(config.node.seed))
        progress = Progress(self.folder, journal)
        self.notes = (*notes, *progress.notes)
        self.policy = policy = progress.policy(PolicyConfig(**dict(config.policy)))
        engine = TransformersEngine(policy, seed=config.node.seed)
        stack.callback(engine.close)
        learner = Learner(
            policy,
            learner_config(config),
            temperature=config.engine.temperature,
            correction=config.mixture.correction,
        )
        progress.restore(learner, engine, sampler, pool)
        sampling = Sampling(config.engine.temperature, config.engine.max_new_tokens)
        draws = Draws(
            journal,
            SystemClock(),
            manifest.epoch_seconds,
            manifest.max_groups_per_epoch,
            random.Random(),
        )
        self.recorder = Recorder(
            config.mixture.external, self.membership.status, pool, self.counters
        )

        def publish(groups: Sequence[Group]) -> None:
            origin = Origin(
                policy.version,
                policy.name,
                policy.encoding,
                sampling.temperature,
                sampling.max_new_tokens,
            )
            shared = [group for group in groups if draws.shareable(group.index)]
            self.membership.publish(shared, origin)

        self.rounds = Rounds(
            generator=Generator(
                author=self.membership.identity.author,
                policy=policy,
                engine=engine,
                verifier=verifier,
                sampler=sampler,
                draws=draws,
                sampling=sampling,
                group_size=config.engine.group_size,
                counters=self.counters,
            ),
            pool=pool,
            mixture=Mixture(mixture_config(config), config.node.seed),
            policy=policy,
            learner=learner,
            engine=engine,
            evaluator=Evaluator(
                policy,
                engine,
                verifier,
                heldout_tasks(sampler.levels, config.schedule.eval_tasks),
                sampling,
            ),
            publish=publish,
            save=lambda number: progress.save(number, policy, learner, engine, sampler),
            report=self.recorder.report,
            counters=self.counters,
            settings=round_settings(config),
            round=progress.round,
        )


def learner_config(config: Config) -> LearnerConfig:
    """The learner's part of a config."""
    return LearnerConfig(**dict(config.learner))


def mixture_config(config: Config) -> MixtureConfig:
    """The mixture's part of a config."""
    mixture = config.mixture
    return MixtureConfig(
        mixture.local, mixture.external, mixture.select, mixture.correction, mixture.max_age
    )


def round_settings(config: Config) -> RoundSettings:
    """The rounds' part of a config."""
    return RoundSettings(
        config.mixture.local,
        config.mixture.external,
        config.schedule.eval_every,
        config.schedule.checkpoint_every,
    )
