"""The training side of a node: loop and trainer, without network or files."""

from __future__ import annotations

import logging
import random
import secrets
import threading
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

from transformers import PreTrainedModel

from node.config.config import Config
from node.config.learning import MixtureSection
from node.config.sections import ScheduleSection
from node.distributed.ranks import Ranks
from node.engines.engine import RolloutEngine, Sampling
from node.errors import NodeError
from node.evaluation.evaluator import Evaluator, ForgettingAlarm, heldout_tasks
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.rollout.async_generator import VERIFIER_THREADS, AsyncRolloutGenerator, StalenessWindow
from node.rollout.generator import Generator, TaskIndexes
from node.rollout.group_writer import UnfinishedGroups
from node.rollout.groups import GroupSource
from node.run.update_groups import (
    ExternalGroups,
    Outcome,
    Rules,
    TrainedPolicy,
    open_intake,
    open_mixture,
    open_sampler,
    shareable,
    unread,
)
from node.tasks.curriculum import EnvLevels
from node.tasks.scorer import Scorer
from node.trajectories.trajectory import TurnLimits
from protocol.manifest import Manifest
from protocol.rollout import Group
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.groups import Origin
from swarm.journal import Journal, JournalError
from swarm.member import Experience
from swarm.peer_advantage import PeerAdvantage
from swarm.pool import Pool

log = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3
tell_first = partial(log.info, "first round: %s")  # it may take long, and shows no figures before


@dataclass(kw_only=True, eq=False)
class TrainingLoop:
    """The loop of rounds: generate, publish, mix with peer groups, update the policy.

    ``source`` gives local groups and ``external`` peer groups. ``evaluate`` scores held-out tasks,
    ``publish`` shares informative local groups without waiting. ``save`` writes a checkpoint of
    round ``n``; ``rate`` takes its held-out reward and returns whether to save it. ``local`` is I,
    local groups per round; ``round`` counts those done.
    """

    source: GroupSource
    external: ExternalGroups
    trained: TrainedPolicy
    evaluate: Callable[[], float]
    publish: Callable[[Sequence[Group]], None]
    save: Callable[[int], None]
    rate: Callable[[int, float], bool]
    report: Callable[[Outcome], None]
    counters: Counters
    local: int
    schedule: ScheduleSection
    rules: Rules = Rules()  # noqa: RUF009 - frozen
    round: int = 0
    _watch: Stopwatch = field(default_factory=partial(Stopwatch, tell_first), init=False)
    _unsaved: bool = field(default=False, init=False)  # a checkpoint failed, so it is due again

    def run(self, limit: int, stop: threading.Event) -> None:
        """Run until ``limit`` rounds are done (0: no limit) or ``stop`` is set.

        Raises NodeError if three rounds in a row failed; the cause is chained and logged. Raises
        JournalError if the journal can no longer record what a round does. The rounds before an
        error are saved if possible.
        """
        try:
            self._run(limit, stop)
        except Exception:
            if self._due() and not self._unsaved:
                try:
                    self.save(self.round)
                except Exception as error:
                    log.exception("saving round %d failed: %s", self.round, error)
            raise
        if self._due():
            self.save(self.round)

    def _due(self) -> bool:
        """Return whether rounds are done that no checkpoint holds."""
        return self._unsaved or self.round % self.schedule.checkpoint_every > 0

    def _run(self, limit: int, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set() and not (limit and self.round >= limit):
            try:
                self.step(last=self.round + 1 == limit)
                failures = 0
            except (NodeError, JournalError):
                raise
            except Exception as error:
                failures += 1
                self.counters.add("rounds_failed")
                log.exception("round %d failed: %s (%d in a row)", self.round + 1, error, failures)
                if failures == MAX_FAILURES_IN_A_ROW:
                    problem = f"{failures} rounds failed in a row, the last with"
                    remedy = "The stack traces are in node.log; a restart resumes the run."
                    raise NodeError(problem, error, remedy) from error

    def step(self, *, last: bool = False) -> Outcome:
        """Do one round; evaluate, if due, before the update, or after it if ``last``."""
        number, watch = self.round + 1, self._watch
        due = self.round % self.schedule.eval_every == 0
        evaluation = self._evaluate(self.round) if due and not last else None
        new_groups = self.source.generate(self.local + self.external.missing(), watch)
        with watch.time("publish"):
            self.publish(self.rules.shared(new_groups))
        local_groups = self.rules.trained(new_groups)
        with watch.time("mix"):
            peer_groups = self.external.take(number, new_groups, local_groups)
        with watch.time("update"):
            groups = [*(each.training for each in local_groups), *peer_groups.training]
            update = self.trained.learn(groups, self.source)
            self.external.credit(local_groups, peer_groups, update, self.trained.policy.version)
        if last:
            evaluation = self._evaluate(number)
        self.round = number
        seconds = watch.split()
        if self.rules.costs:
            self.external.measure(seconds, local_groups, peer_groups, update)
        costs = self.external.advantage.costs
        outcome = Outcome(
            round=number,
            policy_step=self.trained.policy.version,
            local=tuple(new_groups),
            external=peer_groups.groups,
            update=update,
            evaluation=evaluation,
            seconds=seconds,
            external_wanted=peer_groups.wanted,
            trained=len(groups),
            proven=peer_groups.proven,
            peer_advantage=peer_groups.peer_advantage,
            cost_local=costs[0],
            cost_external=costs[1],
            dropped=peer_groups.dropped,
        )
        # Before the checkpoint: a round killed in between is done and reported again, not lost.
        self.report(outcome)
        if number % self.schedule.checkpoint_every == 0 or self._unsaved:
            self._checkpoint(number)
        return outcome

    def _evaluate(self, number: int) -> float:
        with self._watch.time("evaluate"):
            reward = self.evaluate()
        if self.rate(number, reward):
            self._checkpoint(number)
        return reward

    def _checkpoint(self, number: int) -> None:
        self._unsaved = True
        with self._watch.time("checkpoint"):
            self.save(number)
        self._unsaved = False


class Trainer:
    """A policy in training, the groups that it learns from, and the rounds over them.

    Task seeds follow from ``author``, a public key. ``secret`` hides choices from peers; random if
    empty. The verifier can serve ``levels``. Without ``engine``, the config's opens. ``ranks`` are
    processes that share the learner; None for none. ``reference`` is the model that the node began
    with; None if ``policy`` is that. ``trusted`` and ``blocked`` are as in
    :class:`ExternalGroups`.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        *,
        author: bytes,
        manifest: Manifest,
        levels: EnvLevels,
        verifier: Scorer,
        experience: Experience,
        clock: Clock,
        counters: Counters,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        engine: RolloutEngine | None = None,
        ranks: Ranks | None = None,
        reference: PreTrainedModel | None = None,
        secret: bytes = b"",
        trusted: Callable[[], Set[bytes]] = frozenset,
        blocked: Callable[[], Set[bytes]] = frozenset,
    ) -> None:
        self._config, self._rules, self._counters = config, rules, counters
        self._journal = experience.journal
        self.sampler = open_sampler(config, levels)
        heldout = heldout_tasks(self.sampler.levels, config.schedule.eval_tasks)
        self.alarm = ForgettingAlarm(counters, heldout)
        self.peer_advantage = PeerAdvantage()
        self._trained = trained = TrainedPolicy(config, policy, counters, engine, ranks, reference)
        self.policy, self.engine, self.learner = policy, trained.engine, trained.learner
        self._generator = generator = self._open_generator(author, manifest, verifier, clock)
        self._source: GroupSource = generator
        # The frequency of evaluations must not change what is trained on.
        digest = sha256(f"evaluation/{config.node.seed}".encode()).digest()
        drawn = replace(generator.sampling, seed=int.from_bytes(digest[:7]))
        self._evaluator = Evaluator(
            policy, self.engine, verifier, heldout, drawn, counters, generator.limits
        )
        intake = open_intake(config, policy, secret or secrets.token_bytes(16), counters)
        self._external = ExternalGroups(
            experience,
            open_mixture(config, rules, self.peer_advantage),
            self.peer_advantage,
            intake,
            counters,
            replaced=config.mixture.external if rules.fill else 0,
            trusted=trusted,
            blocked=blocked,
            hidden=lambda: verifier.hidden,
            unread=unread(policy, verifier),
        )

    def _open_generator(
        self, author: bytes, manifest: Manifest, verifier: Scorer, clock: Clock
    ) -> Generator:
        engine, groups = self._config.engine, manifest.max_groups_per_epoch
        epoch, rng = manifest.epoch_seconds, random.Random()
        return Generator(
            author=author,
            policy=self.policy,
            engine=self.engine,
            verifier=verifier,
            sampler=self.sampler,
            indexes=TaskIndexes(self._journal, clock, epoch, groups, rng),
            sampling=Sampling(engine.temperature, engine.max_new_tokens),
            group_size=engine.group_size,
            counters=self._counters,
            limits=TurnLimits.of(engine),
        )

    def rounds(
        self,
        *,
        publish: Callable[[Sequence[Group], Origin], None],
        save: Callable[[int], None],
        report: Callable[[Outcome], None],
        rate: Callable[[int, float], bool],
        done: int = 0,
    ) -> TrainingLoop:
        """Build the loop, after ``done`` rounds."""
        publish(*shareable(self._generator, ()))  # peers see at once which step is resumed
        if self._trained.streaming is not None:
            self._source = self._async_source(done)
        return TrainingLoop(
            source=self._source,
            external=self._external,
            trained=self._trained,
            evaluate=self._evaluate,
            publish=lambda groups: publish(*shareable(self._generator, groups)),
            save=save,
            rate=rate,
            report=report,
            counters=self._counters,
            local=self._config.mixture.local,
            schedule=self._config.schedule,
            rules=self._rules,
            round=done,
        )

    def _async_source(self, done: int) -> GroupSource:
        """Open the source of local groups for the rounds after ``done``."""
        schedule, unfinished = self._config.schedule, UnfinishedGroups(self._journal)
        if num_tokens := unfinished.rewind(done, self.policy.version):
            tokens = counted(num_tokens, "token")
            log.info("%s of policies after the last checkpoint will be generated again", tokens)
        window = StalenessWindow(
            schedule.max_staleness, oversample=schedule.oversample, version=done
        )
        return AsyncRolloutGenerator(
            self._generator,
            window=window,
            unfinished=unfinished,
            sleep_mode=self._trained.sleep_mode,
            threads=ThreadPoolExecutor(VERIFIER_THREADS, "verifier"),
        )

    def _evaluate(self) -> float:
        evaluation = self._evaluator.evaluate()
        self.alarm.look(evaluation.means, self.policy.version)
        return evaluation.mean

    def close(self) -> None:
        self._source.close()
        self.engine.close()


def open_experience(
    config: MixtureSection, journal: Journal, clock: Clock, counters: Counters, salt: bytes
) -> Experience:
    """Open what the config asks for; ``salt`` as in :class:`swarm.pool.PoolLimits`."""
    pool = Pool(
        journal,
        config.pool_groups,
        config.max_age,
        clock,
        counters,
        max_uses=config.max_uses,
        unproven_share=config.unproven_share,
        salt=salt,
    )
    return Experience.around(pool)
