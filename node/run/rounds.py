"""The life of a node: generate, publish, mix, update; evaluate and checkpoint now and then.

The loop owns no network and no clock. It takes what the pool holds at the moment it looks, and
fills what is missing with own groups, so it never waits for anybody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from node.engines.engine import RolloutEngine
from node.errors import NodeError
from node.evaluation.evaluator import Evaluator
from node.evaluation.forgetting import ForgettingAlarm
from node.learner.batches import TrainingGroup
from node.learner.learner import Learner
from node.learner.update_stats import UpdateStats
from node.monitor.stopwatch import Stopwatch
from node.policy.policy import Policy
from node.rollout.groups import OwnGroup
from node.rollout.intake import Intake
from node.rollout.source import GroupSource
from node.run.outcome import Outcome, earned
from protocol.rollout import Group
from swarm.accounts import Accounts
from swarm.common.counters import Counters
from swarm.journal_errors import JournalError
from swarm.mixture.mixture import Mixture
from swarm.pool import Pool
from swarm.pooled_group import PooledGroup

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_FAILURES_IN_A_ROW = 3
WIDE_GAP = 0.05
"""Nats a token, at the mean, between engine and learner."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a round does around its mixture. Nodes keep to the defaults; experiments switch single
    rules off to see what they are worth.

    Attributes:
        fill: own groups replace outside ones that the pool lacks.
        discard: groups of equal rewards are neither shared nor taken.
        keep: train on at most so many own groups, informative ones only; 0 takes all own groups.
    """

    fill: bool = True
    discard: bool = True
    keep: int = 0


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The numbers a round goes by; all counts are of groups or rounds.

    Attributes:
        yields: the engine rests while the policy learns, as on a device that both share; in between
            the learner leaves it the memory.
    """

    local: int
    external: int
    eval_every: int
    checkpoint_every: int
    rules: Rules = Rules()
    yields: bool = False


class Rounds:
    """One round takes own groups, publishes and mixes them, and updates the policy.

    Args:
        source: of own groups.
        intake: cuts outside groups to size.
        accounts: say whose groups have proved useful, and are told what each update makes of them.
        local: I, own groups a round.
        external: J, own groups that outside ones spare; what the pool lacks is generated.
        alarm: looks at every evaluation.
        publish: hands informative own groups to the network, without waiting for it.
        save: writes a checkpoint of round ``n``.
        report: receives every round's outcome.
        round: number of rounds already done.
    """

    def __init__(
        self,
        *,
        source: GroupSource,
        pool: Pool,
        accounts: Accounts,
        mixture: Mixture,
        intake: Intake,
        policy: Policy,
        learner: Learner,
        engine: RolloutEngine,
        evaluator: Evaluator,
        alarm: ForgettingAlarm,
        publish: Callable[[Sequence[Group]], None],
        save: Callable[[int], None],
        report: Callable[[Outcome], None],
        counters: Counters,
        settings: RoundSettings,
        round: int = 0,
    ) -> None:
        self._source = source
        self._pool = pool
        self._accounts = accounts
        self._mixture = mixture
        self._intake = intake
        self._policy = policy
        self.learner = learner
        self._engine = engine
        self._evaluator = evaluator
        self._publish = publish
        self._save = save
        self._report = report
        self._counters = counters
        self._settings = settings
        self._alarm = alarm
        self._watch = Stopwatch()
        self.round = round

    def run(self, limit: int, stop: threading.Event) -> None:
        """Run until ``limit`` rounds are done (0: for ever) or ``stop`` is set.

        Raises:
            NodeError: three rounds in a row failed; the cause is chained and logged.
            JournalError: what a round does can no longer be remembered.
        """
        failures = 0
        while not stop.is_set() and not (limit and self.round >= limit):
            try:
                self.step(last=self.round + 1 == limit)
                failures = 0
            except (NodeError, JournalError):
                raise
            except Exception as error:
                failures += 1
                self._counters.add("rounds_failed")
                log.exception("round %d failed: %s (%d in a row)", self.round + 1, error, failures)
                if failures == MAX_FAILURES_IN_A_ROW:
                    raise NodeError(
                        f"{failures} rounds failed in a row, the last with",
                        error,
                        "The traces are in node.log; the last checkpoint is untouched.",
                    ) from error
        if self.round % self._settings.checkpoint_every:
            self._save(self.round)

    def step(self, *, last: bool = False) -> Outcome:
        """Do one round.

        A due evaluation looks at the policy before it learns, so that the first one is the base
        policy's; in the ``last`` round it looks at the final policy instead.
        """
        number, watch = self.round + 1, self._watch
        every = self._settings.eval_every
        due = every > 0 and self.round % every == 0
        evaluation = self._evaluate() if due and not last else None
        rules = self._settings.rules
        own = self._source.generate(self._settings.local + self._missing(), watch)
        self._intake.observe(own)
        with watch.time("publish"):
            self._publish([g.group for g in own if g.informative or not rules.discard])
        trained = [g for g in own if g.informative][: rules.keep] if rules.keep else own
        with watch.time("mix"):
            informative = sum(g.informative for g in trained)
            proven = self._accounts.proven()
            external, outside = self._take(number, informative, len(trained), proven)
        with watch.time("update"):
            update = self._update(trained, external, outside)
        if last and every:
            evaluation = self._evaluate()
        self.round = number
        if number % self._settings.checkpoint_every == 0:
            with watch.time("checkpoint"):
                self._save(number)
        outcome = Outcome(
            number,
            self._policy.version,
            tuple(own),
            tuple(external),
            update,
            evaluation,
            watch.split(),
            self._mixture.wanted(informative),
            len(trained) + len(external),
            proven,
        )
        self._report(outcome)
        return outcome

    def _update(
        self,
        trained: Sequence[OwnGroup],
        external: Sequence[PooledGroup],
        outside: Sequence[TrainingGroup],
    ) -> UpdateStats:
        """Learn, and note what came of it: the peers' lead, their standing, the lineage."""
        update = self._learn([*(g.training for g in trained), *outside])
        if not update.skipped:
            self._mixture.observe(update.lead, update.groups_external)
        credited = earned(external, update.useful)
        self._accounts.prove(credited)
        if useless := sum(not useful for _, useful in credited):
            self._counters.add("outside_useless", useless)
        own, taken = [g.key for g in trained], [g.key for g in external]
        self._pool.record_update(self._policy.version, own, taken)
        return update

    def _missing(self) -> int:
        """Own groups that outside ones could spare, and do not."""
        settings = self._settings
        if not settings.rules.fill:
            return 0
        spared = self._mixture.spared(self._pool.fresh(), self._accounts.proven())
        return settings.external - spared

    def _take(
        self, number: int, informative: int, own: int, proven: frozenset[bytes]
    ) -> tuple[list[PooledGroup], list[TrainingGroup]]:
        """Choose outside groups and mark them used, durably, before anything learns from them."""
        chosen = self._mixture.choose(
            self._pool.fresh(), number, informative, own, proven, self._accounts.tried()
        )
        taken, outside = [], []
        for pooled in self._pool.consume(chosen, number):
            training = self._intake.take(pooled)
            if training is None:
                self._accounts.prove([(pooled.author, 0.0)])
                continue
            taken.append(pooled)
            outside.append(training)
        # Where the intake left less than was chosen, shares are of less.
        kept = self._mixture.within([pooled.author for pooled in taken], own, proven)
        if over := len(taken) - len(kept):
            self._counters.add("outside_over_share", over)
        return [taken[place] for place in kept], [outside[place] for place in kept]

    def _evaluate(self) -> float:
        with self._watch.time("evaluate"):
            evaluation = self._evaluator.evaluate()
        if not evaluation.unbuilt:
            self._alarm.look([sum(row) / len(row) for row in evaluation.rewards])
        return evaluation.mean

    def _learn(self, groups: list[TrainingGroup]) -> UpdateStats:
        before = self._policy.version
        if self._settings.yields:
            self._engine.rest()
        try:
            update = self._source.beside(lambda: self.learner.update(groups))
        except Exception as error:
            try:
                self._hand_over(before)
            except Exception as other:
                raise error from other
            raise
        self._hand_over(before)
        if update.refused:
            self._counters.add("steps_refused", update.refused)
        if update.unlikely:
            self._counters.add("outside_refused", update.unlikely, reason="unlikely")
        if update.halved:
            self._counters.add("micro_batch_halved", update.halved)
        if update.engine_gap > WIDE_GAP:
            self._counters.add("engine_gaps")
            log.warning(
                "the engine's log-probs are %.3f nat off the learner's at equal weights: a defect "
                "or too coarse a policy.dtype",
                update.engine_gap,
            )
        return update

    def _hand_over(self, before: int) -> None:
        """Let the engine go on, with new weights where the version is no longer ``before``.

        That is so also after an update that failed in a later step than its first.
        """
        if self._settings.yields:
            torch.cuda.empty_cache()  # the engine is in another process, and needs the room
        if self._policy.version != before:
            self._engine.update(self._policy)
