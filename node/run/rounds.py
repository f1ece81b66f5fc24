"""The life of a node: generate, publish, mix, update; evaluate and checkpoint now and then.

The loop owns no network and no clock. It takes what the pool holds at the moment it looks, and
fills what is missing with own groups, so it never waits for anybody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from node.config.running import ScheduleSection
from node.errors import NodeError
from node.learner.batches import TrainingGroup
from node.monitor.stopwatch import Stopwatch
from node.rollout.groups import GroupSource
from node.rollout.replay import SemiOnline
from node.run.external_groups import ExternalGroups
from node.run.outcome import Outcome
from node.run.rules import Rules
from node.run.trained_policy import TrainedPolicy
from protocol.rollout import Group
from swarm.common.counters import Counters
from swarm.groups import PooledGroup
from swarm.journal import JournalError

log = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3


class Rounds:
    """One round takes own groups, publishes and mixes them, and updates the policy.

    Args:
        source: of own groups.
        external: groups that the update takes beside them.
        semi_online: own trajectories along those of external groups; left out, there are none.
        trained: learns from both.
        evaluate: scores the policy on held-out tasks.
        publish: hands informative own groups to the network, without waiting for it.
        save: writes a checkpoint of round ``n``.
        rate: told the held-out reward of the policy after round ``n``; whether to save that one.
        report: receives every round's outcome.
        local: I, own groups a round.
        round: number of rounds already done.
    """

    def __init__(
        self,
        *,
        source: GroupSource,
        external: ExternalGroups,
        trained: TrainedPolicy,
        evaluate: Callable[[], float],
        publish: Callable[[Sequence[Group]], None],
        save: Callable[[int], None],
        rate: Callable[[int, float], bool],
        report: Callable[[Outcome], None],
        counters: Counters,
        local: int,
        schedule: ScheduleSection,
        semi_online: SemiOnline | None = None,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        round: int = 0,
    ) -> None:
        self._source = source
        self._external = external
        self._semi_online = semi_online
        self._trained = trained
        self._heldout = evaluate
        self._publish = publish
        self._save = save
        self._rate = rate
        self._report = report
        self._counters = counters
        self._local = local
        self._schedule = schedule
        self._rules = rules
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
        if self.round % self._schedule.checkpoint_every:
            self._save(self.round)

    def step(self, *, last: bool = False) -> Outcome:
        """Do one round.

        A due evaluation looks at the policy before it learns, so that the first one is the base
        policy's; in the ``last`` round it looks at the final policy instead.
        """
        number, watch = self.round + 1, self._watch
        due = self.round % self._schedule.eval_every == 0
        evaluation = self._evaluate(self.round) if due and not last else None
        written = self._source.generate(self._local + self._external.missing(), watch)
        with watch.time("publish"):
            self._publish(self._rules.shared(written))
        own = self._rules.trained(written)
        with watch.time("mix"):
            taken = self._external.take(number, written, own)
        with watch.time("generate"):
            scripted = self._scripted(taken.groups)
        with watch.time("update"):
            groups = [*taken.own, *taken.training, *scripted]
            update = self._trained.learn(groups, self._source)
            self._external.credit(own, taken, update, self._trained.policy.version)
        if last:
            evaluation = self._evaluate(number)
        self.round = number
        outcome = Outcome(
            number,
            self._trained.policy.version,
            tuple(written),
            taken.groups,
            # Scripted groups come last, and nobody is shown them.
            replace(update, entropies=update.entropies[: len(taken.own)]),
            evaluation,
            watch.split(),
            taken.wanted,
            len(groups),
            taken.proven,
            taken.lead,
            taken.emptied,
            sum(sum(done.trained) for group in scripted for done in group.completions),
        )
        # Before the checkpoint: what is killed in between is done and told again, not lost.
        self._report(outcome)
        if number % self._schedule.checkpoint_every == 0:
            self._checkpoint(number)
        return outcome

    def _scripted(self, taken: Sequence[PooledGroup]) -> Sequence[TrainingGroup]:
        """Own trajectories along the best of external groups."""
        if self._semi_online is None:
            return ()
        self._semi_online.observe(taken)
        return self._semi_online.generate()

    def _evaluate(self, number: int) -> float:
        """Score the policy after round ``number``."""
        with self._watch.time("evaluate"):
            reward = self._heldout()
        if self._rate(number, reward):
            self._checkpoint(number)
        return reward

    def _checkpoint(self, number: int) -> None:
        with self._watch.time("checkpoint"):
            self._save(number)
