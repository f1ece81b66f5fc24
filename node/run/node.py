"""One node put together: membership, policy, engine, learner and rounds."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from node.config.config import Config, changed
from node.config.registry import ADVANTAGES
from node.distributed.ranks import Ranks
from node.evaluation.baseline import BaselineTrial
from node.lifecycle import Opened
from node.network.creation import caution
from node.network.membership import Membership
from node.policy.policy import Policy
from node.rollout.async_generator import JUDGES
from node.run.preflight import cautions
from node.run.recorder import Recorder, ShownGroups
from node.run.resume import RunState
from node.run.training_loop import Trainer, TrainingLoop, open_experience
from node.run.update_groups import public_name
from node.storage.run_folder import BlockedPeers, RunFolder, TrustedPeers
from node.tasks.curriculum import EnvLevel, served_levels
from node.tasks.sandbox.sandbox import sandbox_support
from node.tasks.task_set import allowed_by, overview
from node.tasks.verifier.verifier import Verifier, VerifierPool
from node.threads import choose, fastest
from protocol.manifest import Manifest
from swarm.admission import oldest_epoch
from swarm.common.clock import Clock, SystemClock
from swarm.common.counters import Counters
from swarm.journal import open_or_restore
from swarm.member import Experience

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Node(Opened):
    """A node in its run folder, resumed where it stopped.

    Entering this context manager opens every part and joins the swarm; leaving closes them. The
    caller holds the folder's lock. ``clock`` is for task samples and the replay buffer; the network
    uses real time. ``ranks`` are processes that help the learner. ``say`` gets what the manifest
    will open, and ``stage`` each step of opening. ``baseline`` tries a new policy and returns the
    config keys to change for this run; None tries nothing. ``rounds`` is the
    :class:`node.run.training_loop.TrainingLoop`, ``groups`` some of the latest round, and ``notes``
    sentences on what opening corrected.
    """

    config: Config
    folder: RunFolder
    clock: Clock | None = None
    ranks: Ranks | None = None
    say: Callable[[str], None] = log.info
    stage: Callable[[str], None] = log.debug
    baseline: Callable[[BaselineTrial], Mapping[str, Any]] | None = None
    rounds: TrainingLoop = field(init=False)
    membership: Membership = field(init=False)
    policy: Policy = field(init=False)
    recorder: Recorder = field(init=False)
    groups: ShownGroups = field(init=False)

    def __post_init__(self) -> None:
        self._clock = self.clock or SystemClock()
        self.counters = Counters()
        self.notes: tuple[str, ...] = ()
        self._trusted = TrustedPeers(self.config.mixture.trusted, self.folder)
        self._blocked = BlockedPeers((), self.folder)

    def _verifiers(self, manifest: Manifest) -> VerifierPool:
        allowed = allowed_by(self.config.tasks, self.config.sandbox)
        for line in overview(manifest.catalogue, allowed):
            self.say(line)
        self.say(f"verifier sandbox: {sandbox_support()}")
        count = JUDGES if self.config.asynchronous else 1
        verifiers = [
            Verifier(manifest.catalogue, allowed, outside=False, counters=self.counters)
            for _ in range(count)
        ]
        return VerifierPool(verifiers)

    def _too_large(self, manifest: Manifest) -> tuple[str, ...]:
        engine = self.config.engine
        tokens = min(engine.max_new_tokens, self.policy.context_length)
        note = caution(manifest, tokens, engine.group_size)
        if not note:
            return ()
        self.counters.add("groups_may_not_fit")
        return (note,)

    def _open(self, stack: ExitStack) -> None:
        config, clock, stage = self.config, self._clock, self.stage
        self._trusted.authors()  # an unusable file ends the start, not a round
        blocked = self._blocked.authors()
        stage("opening the journal")
        threads = choose(config.node.threads, share=2 if config.asynchronous else 1)
        journal, notes = open_or_restore(self.folder.journal, clock)
        stack.callback(journal.close)
        salt = secrets.token_bytes(16)
        experience = open_experience(config.mixture, journal, clock, self.counters, salt)
        experience.accounts.blocked = blocked
        stage("joining the swarm")
        name = public_name(config.policy.model)
        self.membership = stack.enter_context(
            Membership(config, self.folder, experience, self.counters, model=name)
        )
        manifest = self.membership.manifest
        stage("opening the swarm's tasks")
        verifier = stack.enter_context(self._verifiers(manifest))
        levels = served_levels(manifest.catalogue, verifier.start())
        stage(f"loading {config.policy.model}")
        progress = RunState(self.folder, journal, config.schedule, self.membership.swarm_id.hex())
        self.notes = (*notes, *self.membership.notes, *progress.notes, *cautions(config))
        self.policy = progress.policy(config.policy, stage)
        self._reference = progress.reference(config, stage)
        self.notes += self._too_large(manifest)
        if config.node.threads == 0 and self.policy.device.type == "cpu":
            fastest(self.policy.probe, threads)
        stage("starting the engine")
        trainer = self._trainer(levels, verifier, experience)
        stack.callback(lambda: trainer.close())  # the one that is there then
        if progress.round == 0 and self.baseline:
            trial = self._tried(trainer, verifier)
            if keys := self.baseline(trial):
                self.config = changed(self.config, keys)
                trainer.close()
                trainer = self._trainer(levels, verifier, experience)
            for level, rewards in trial.rewards():
                trainer.sampler.observe(level, rewards)
        progress.restore(trainer, experience.pool)
        self._open_rounds(trainer, progress, experience)

    def _trainer(
        self, levels: Sequence[EnvLevel], verifier: VerifierPool, experience: Experience
    ) -> Trainer:
        return Trainer(
            self.config,
            self.policy,
            author=self.membership.identity.author,
            manifest=self.membership.manifest,
            levels=levels,
            verifier=verifier,
            experience=experience,
            clock=self._clock,
            counters=self.counters,
            ranks=self.ranks,
            reference=self._reference,
            trusted=self._trusted.authors,
            blocked=self._blocked.authors,
        )

    def _tried(self, trainer: Trainer, verifier: VerifierPool) -> BaselineTrial:
        levels = trainer.sampler.levels
        engine, counters = trainer.engine, self.counters
        return BaselineTrial(self.config, self.policy, engine, verifier, levels, counters)

    def _open_rounds(self, trainer: Trainer, progress: RunState, experience: Experience) -> None:
        learner, pool = self.config.learner, experience.pool
        advantage = ADVANTAGES.open(learner.advantage, learner.advantage_options)
        self.groups = ShownGroups(self.policy, advantage, experience.refused.take)
        self.recorder = Recorder(self.membership.status, pool, self.counters, self.groups)

        def save(number: int) -> None:
            pool.forget(oldest_epoch(self.membership.manifest, self._clock.time()))
            progress.save(number, trainer)

        self.rounds = trainer.rounds(
            publish=self.membership.publish,
            save=save,
            rate=progress.rate,
            report=self.recorder.report,
            done=progress.round,
        )
