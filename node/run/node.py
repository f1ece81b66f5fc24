"""One node put together, and run until it is stopped.

:class:`Node` opens membership, policy, engine, learner and rounds; :func:`run_join` trains with it.
"""

from __future__ import annotations

import logging
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import typer
from transformers import PreTrainedModel

from node.config.config import Config, changed, set_keys
from node.config.registry import ADVANTAGES
from node.config.schema import toml_value
from node.distributed.ranks import Ranks, exit_immediately
from node.distributed.sharded_learner import follow
from node.distributed.torchrun import Launch
from node.errors import NodeError
from node.evaluation.baseline_evaluation import SECONDS, BaselineEvaluation
from node.lifecycle import Opened
from node.monitor.groups import GroupsFile
from node.monitor.live import Stages
from node.monitor.logs import teller
from node.monitor.output import PrintableFormatter
from node.monitor.sinks import open_sinks
from node.network.creation import caution
from node.network.membership import Membership
from node.network.pinned_manifest import enter
from node.policy.policy import Policy
from node.rollout.async_generator import VERIFIER_THREADS
from node.run.preflight import cautions
from node.run.recorder import Recorder, ShownGroups
from node.run.resume import RunState
from node.run.status import STOPS, RunOptions, StatusFile, announce, dashboard, stopping
from node.run.training_loop import Trainer, TrainingLoop, open_experience
from node.run.update_groups import public_name
from node.storage.run_folder import ListedPeers, RunFolder
from node.tasks.curriculum import served_levels
from node.tasks.sandbox.sandbox import sandbox_support
from node.tasks.task_set import allowed_by, misnamed, overview, summary
from node.tasks.verifier.verifier import Verifier, VerifierPool
from node.threads import choose, fastest
from protocol.manifest import Manifest
from swarm.admission import oldest_epoch
from swarm.common.clock import Clock, SystemClock
from swarm.common.counters import Counters
from swarm.common.util import Say, counted
from swarm.journal import open_or_restore
from swarm.member import Experience
from swarm.verification import VerifierError

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Node(Opened):
    """A node in its run folder, resumed where it stopped.

    Entering this context manager opens every part and joins the swarm; leaving closes them. The
    caller holds the folder's lock. ``clock`` is for task samples and the replay buffer; the network
    uses real time. ``ranks`` are processes that help the learner. ``say`` gets what the manifest
    will open, and ``stage`` each step of opening. ``baseline`` evaluates a new policy and returns
    the config keys to change for this run; None evaluates nothing. ``rounds`` is the
    :class:`node.run.training_loop.TrainingLoop`, ``groups`` some of the latest round, and ``notes``
    sentences on what opening corrected.
    """

    config: Config
    folder: RunFolder
    clock: Clock = field(default_factory=SystemClock)
    ranks: Ranks | None = None
    say: Say = log.info
    stage: Say = log.debug
    baseline: Callable[[BaselineEvaluation], Mapping[str, Any]] | None = None
    rounds: TrainingLoop = field(init=False)
    membership: Membership = field(init=False)
    policy: Policy = field(init=False)
    recorder: Recorder = field(init=False)
    groups: ShownGroups = field(init=False)

    def __post_init__(self) -> None:
        self.counters = Counters()
        self.notes: tuple[str, ...] = ()
        self._trusted = ListedPeers("trusted", self.folder, self.config.mixture.trusted)
        self._blocked = ListedPeers("blocked", self.folder)

    def _verifiers(self, manifest: Manifest) -> VerifierPool:
        allowed = allowed_by(self.config.tasks, self.config.sandbox)
        headline, *details = overview(manifest.catalogue, allowed)
        log.debug("%s", headline)
        unknown = misnamed(manifest.catalogue, allowed)
        for line in (summary(manifest.catalogue, allowed), *details, *unknown):
            self.say(line)
        self.say(f"verifier sandbox: {sandbox_support()}")
        verifiers = [
            Verifier(manifest.catalogue, allowed, outside=False, counters=self.counters)
            for _ in range(VERIFIER_THREADS if self.config.asynchronous else 1)
        ]
        return VerifierPool(verifiers)

    def _too_large(self, manifest: Manifest) -> tuple[str, ...]:
        engine = self.config.engine
        tokens = min(engine.max_new_tokens, self.policy.context_length)
        if note := caution(manifest, tokens, engine.group_size):
            self.counters.add("groups_may_not_fit")
        return (note,) if note else ()

    def _open(self, stack: ExitStack) -> None:
        config, clock, stage = self.config, self.clock, self.stage
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
        state = RunState(self.folder, journal, config.schedule, self.membership.swarm_id.hex())
        self.notes = (*notes, *self.membership.notes, *state.notes, *cautions(config))
        self.policy = state.policy(config.policy, stage)
        reference = state.reference(config, stage)
        self.notes += self._too_large(manifest)
        if config.node.threads == 0 and self.policy.device.type == "cpu":
            fastest(self.policy.probe, threads)
        stage("starting the engine")
        open_trainer = self._trainers(verifier, experience, reference)
        trainer = open_trainer(config, levels=levels)
        stack.callback(lambda: trainer.close())  # late: a baseline may replace it
        if state.round == 0:
            trainer = self._after_baseline(trainer, verifier, open_trainer)
        state.restore(trainer, experience.pool)
        self._open_rounds(trainer, state, experience)

    def _trainers(
        self, verifier: VerifierPool, experience: Experience, reference: PreTrainedModel | None
    ) -> Callable[..., Trainer]:
        return partial(
            Trainer,
            policy=self.policy,
            author=self.membership.identity.author,
            manifest=self.membership.manifest,
            verifier=verifier,
            experience=experience,
            clock=self.clock,
            counters=self.counters,
            ranks=self.ranks,
            reference=reference,
            trusted=self._trusted.authors,
            blocked=self._blocked.authors,
        )

    def _after_baseline(
        self, trainer: Trainer, verifier: VerifierPool, open_trainer: Callable[..., Trainer]
    ) -> Trainer:
        """Evaluate the policy; return the trainer, another one if that changes the config."""
        if not self.baseline:
            return trainer
        config, levels = self.config, trainer.sampler.levels
        evaluation = BaselineEvaluation(
            config, self.policy, trainer.engine, verifier, levels, self.counters
        )
        if keys := self.baseline(evaluation):
            self.config = changed(config, keys)
            trainer.close()
            trainer = open_trainer(self.config, levels=levels)
        for level, rewards in evaluation.rewards():
            trainer.sampler.observe(level, rewards)
        return trainer

    def _open_rounds(self, trainer: Trainer, state: RunState, experience: Experience) -> None:
        learner, pool = self.config.learner, experience.pool
        advantage = ADVANTAGES.open(learner.advantage, learner.advantage_options)
        self.groups = ShownGroups(self.policy, advantage, experience.refused.take)
        self.recorder = Recorder(self.membership.status, pool, self.counters, self.groups)

        def save(number: int) -> None:
            pool.forget(oldest_epoch(self.membership.manifest, self.clock.time()))
            state.save(number, trainer)

        self.rounds = trainer.rounds(
            publish=self.membership.publish,
            save=save,
            rate=state.rate,
            report=self.recorder.report,
            done=state.round,
        )


@dataclass(frozen=True, slots=True)
class BaselineDialogue:
    """Evaluates a policy, prints the results, and changes the config if the user agrees.

    ``tell`` prints and logs a line. The question is asked only at a terminal, without ``--json``.
    """

    options: RunOptions
    stages: Stages
    tell: Say

    def __call__(self, evaluation: BaselineEvaluation) -> Mapping[str, Any]:
        """Return the config keys that change, for this run and in the config's file."""
        self.stages.begin(
            f"evaluating the policy on the swarm's tasks, for at most {SECONDS:g} seconds "
            "(--no-baseline skips it)"
        )
        try:
            result = evaluation.run(SECONDS, self.stages.progress)
        except (VerifierError, NodeError) as error:
            self.tell(f"the policy could not be evaluated on this swarm's tasks: {error}")
            return {}
        for line in result.lines():
            self.tell(line)
        keys = result.settings()
        if not keys:
            return {}
        for key, value in keys.items():
            self.tell(f"  suggested: {key} = {toml_value(value)}")
        if not self._agreed():
            return {}
        if self.options.config is not None:
            try:
                set_keys(self.options.config, keys)
            except (NodeError, OSError) as error:
                self.tell(f"this run has these settings, but {error}")
            else:
                self.tell(f"written to {self.options.config}")
        return keys

    def _agreed(self) -> bool:
        if self.options.accept:
            return True
        if self.options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            self.tell("to accept it, start the node with --accept")
            return False
        self.stages.close()
        try:
            return typer.confirm("write that into the config and train with it?", default=True)
        except typer.Abort as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise NodeError("no answer", "end of input", "Type y or n, or add --accept.") from error


def run_join(config: Config, folder: RunFolder, options: RunOptions, stages: Stages) -> None:
    """Join and train, as rank 0 under torchrun; a signal ends it after the round.

    It then writes a checkpoint. Raises ConfigError if several processes cannot do what the config
    asks for, and NodeError if the node cannot start or continue.
    """
    if launch := Launch.read():
        launch.check(config)
    tell, status = teller(folder.log, err=options.json), StatusFile(folder)
    with stopping(tell, status.stop) as stop, folder.locked(), ExitStack() as stack:
        status.start()
        stack.callback(status.end)
        for note in enter(config, folder, options.swarm):
            tell(note)
        ranks = stack.enter_context(Ranks(launch)) if launch else None
        baseline = BaselineDialogue(options, stages, tell) if options.baseline else None
        node = stack.enter_context(
            Node(config, folder, ranks=ranks, say=tell, stage=stages.begin, baseline=baseline)
        )
        stages.close()
        stack.enter_context(stop.working("stopping after this round"))
        announce(node.membership, tell)
        for note in node.notes:
            tell(note)
        config = node.config
        status.run(node.membership)
        stack.callback(node.recorder.close)
        stack.enter_context(dashboard(config, folder, node.counters, status, tell))
        sinks = open_sinks(config, folder, json=options.json)
        for sink in (*sinks, GroupsFile(folder.groups, node.groups.take), status):
            node.recorder.add(sink)
        node.rounds.run(config.schedule.rounds, stop)
    tell(ended(node.rounds.round, config.schedule.rounds))
    if launch:
        exit_immediately(0)


def ended(done: int, asked: int) -> str:
    """Return the message after ``done`` of ``asked`` rounds (0: no limit)."""
    count = f"{counted(done, 'round')} {'is' if done == 1 else 'are'} done"
    if not asked or done < asked:
        return f"{count}; run the same command to resume"
    if done > asked:
        count += f", of the {asked} asked for"
    return f"{count}; continue with a larger --rounds, or with --rounds 0 until you stop it"


def help_learn(launch: Launch) -> None:
    """Run a rank other than 0 until rank 0 ends; a signal stops only rank 0."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(f"rank {launch.rank}: %(message)s"))
    logging.basicConfig(handlers=[handler])
    with Ranks(launch) as ranks:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        follow(ranks)
    exit_immediately(0)
