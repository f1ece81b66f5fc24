"""Own groups written by an engine that works beside its owner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from node.concurrency.work_thread import WorkThread
from node.engines.engine import RolloutEngine
from node.errors import NodeError
from node.learner.batches import TrainingGroup
from node.monitor.stopwatch import Stopwatch
from node.policy.policy import Policy
from node.rollout.generator import Generator
from node.rollout.group_writer import GroupWriter
from node.rollout.groups import OwnGroup
from node.rollout.prompt_requests import PromptRequests
from node.rollout.running_group import RunningGroup
from node.rollout.staleness_window import StalenessWindow
from node.rollout.unfinished_groups import UnfinishedGroups
from swarm.common.counters import Counters
from swarm.journal import JournalError

log = logging.getLogger(__name__)

T = TypeVar("T")

FATAL = (NodeError, JournalError)
"""They end the run, whatever else goes well."""
LOOK_SECONDS = 1.0
"""Between two looks where nothing happens: whatever does happen interrupts the wait."""
JUDGES = 2
"""A task that is slow to score holds one of them up and nobody else."""


class OverlappingGenerator:
    """Turns tasks into scored groups while the policy learns from those before.

    All of it happens on the caller's thread, in :meth:`generate` and :meth:`beside`, but for the
    verifier's work, which has threads of its own, and the engine's, which has a process. Groups
    are begun as :class:`node.rollout.staleness_window.StalenessWindow` allows and kept on the disk
    until they are taken; those that a stop or a crash interrupted are gone on with.

    Args:
        tasks: chooses, asks and scores.
        policy: whose engine it is.
        engine: has a process of its own.
        writer: has groups written by it.
        window: which groups may run, as the last run left it.
        unfinished: where they are kept.
        sleep_mode: whether the engine stands still while the policy learns, as on a device that
            both share. What it has not finished is gone on with first, as partial rollouts in APRIL
            (arXiv 2509.18521).
        threads: wait for the verifier; shut down on closing.
        counters: ``own_groups_filtered{reason=stale|task_gone}``, ``generation_errors``.
    """

    def __init__(
        self,
        tasks: Generator,
        *,
        policy: Policy,
        engine: RolloutEngine,
        writer: GroupWriter,
        group_size: int,
        window: StalenessWindow,
        unfinished: UnfinishedGroups,
        sleep_mode: bool,
        threads: Executor,
        counters: Counters,
    ) -> None:
        self._tasks = tasks
        self._policy = policy
        self._engine = engine
        self._writer = writer
        self._group_size = group_size
        self._window = window
        self._unfinished = unfinished
        self._sleep_mode = sleep_mode
        self._counters = counters
        self._threads = threads
        self._learner = WorkThread("learner")
        self._groups: dict[int, RunningGroup] = {}
        self._asking = PromptRequests(tasks, policy, window, threads, self._listen)
        self._judged: dict[int, Future[OwnGroup | None]] = {}
        self._restore()

    def generate(self, count: int, watch: Stopwatch) -> list[OwnGroup]:
        """The next update's groups, once they are complete; marked as used, durably.

        Args:
            count: groups in the last update that may be begun for now; the one taken was sized
                when it was that.

        Raises:
            NodeError: no prompt has fitted the policy's context for long, or no task can be built.
        """
        self._window.plan(count)
        self._expire()
        self._writer.go_on()
        with watch.time("wait"):
            self._admit()
            self._look(0.0)
            while not self._window.complete:
                self._look(LOOK_SECONDS)
                self._admit()
            if self._sleep_mode:
                self._writer.halt()
        taken = [self._groups.pop(ticket) for ticket in self._window.take()]
        self._unfinished.take([group.ticket for group in taken], self._policy.version)
        groups = [group.scored for group in taken if group.scored]
        self._tasks.observe(groups)
        return groups

    def beside(self, work: Callable[[], T]) -> T:
        """Do ``work`` on the learner's thread, and go on with what was begun meanwhile.

        Work that is done counts: what fails beside it is logged, counted, and met again when the
        next groups are asked for. Where both fail, the error that ends the run is raised from the
        other one, which is logged.
        """
        result = self._learner.submit(work)
        self._listen(result)
        try:
            while not result.done():
                self._look(LOOK_SECONDS)
        except Exception as error:
            # Nobody else may write the weights as long as this work does.
            failed = result.exception()
            if failed is None and not isinstance(error, FATAL):
                self._counters.add("generation_errors")
                log.exception("generation failed beside an update: %s", error)
                return result.result()
            if not isinstance(failed, Exception):
                raise
            first, other = (failed, error) if isinstance(failed, FATAL) else (error, failed)
            log.error("both generation and the update failed: %s", other, exc_info=other)
            raise first from other
        return result.result()

    def newest(self) -> Sequence[TrainingGroup]:
        """Completions that have come in last, each as a group by itself, without its reward."""
        return self._writer.newest()

    def close(self) -> None:
        """Keep what is written of every group; the engine is left quiet."""
        self._writer.halt()
        self._learner.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _restore(self) -> None:
        """Go on with what an earlier run left, of tasks that are still practised."""
        for kept in self._unfinished.groups():
            if (kept.task.ref.env, kept.task.ref.level) in self._tasks.levels:
                self._window.resume(kept.ticket, kept.version)
                self._add([RunningGroup.of(kept, self._group_size)])
            else:
                self._filter([kept.ticket], "task_gone")

    def _filter(self, tickets: Sequence[int], reason: str) -> None:
        self._unfinished.drop(tickets)
        self._counters.add("own_groups_filtered", len(tickets), reason=reason)
        log.warning("%d own groups of an earlier run are dropped (%s)", len(tickets), reason)

    def _add(self, groups: Iterable[RunningGroup]) -> None:
        for group in groups:
            self._groups[group.ticket] = group
            self._asking.add(group)

    def _admit(self) -> None:
        """Begin as many groups as may be."""
        if not (count := self._window.capacity):
            return
        version = self._window.version
        new = [(self._window.begin(), task) for task in self._tasks.next_tasks(count)]
        self._unfinished.begin(new, version)
        self._add(RunningGroup(ticket, task, self._group_size) for ticket, task in new)

    def _expire(self) -> None:
        if stale := self._window.expire():
            self._filter(stale, "stale")
            self._asking.drop([self._groups.pop(ticket) for ticket in stale])

    def _look(self, seconds: float) -> None:
        """Take what has come in and hand on what follows from it; waits for the engine only."""
        self._asking.ask()
        for group, answerable in self._asking.answered():
            (self._writer.add if answerable else self._lose)(group)
        for group in self._writer.look(seconds):
            self._judge(group)
        self._settle()

    def _judge(self, group: RunningGroup) -> None:
        written = [each.so_far for each in group.completions]
        verdict = self._threads.submit(self._tasks.score, group.task, group.prompt_ids, written)
        self._listen(verdict)
        self._judged[group.ticket] = verdict

    def _settle(self) -> None:
        for ticket in [ticket for ticket, verdict in self._judged.items() if verdict.done()]:
            verdict, group = self._judged.pop(ticket), self._groups[ticket]
            if verdict.exception():
                self._judge(group)
            group.scored = verdict.result()
            if group.scored:
                self._window.settle(ticket)
            else:
                self._lose(group)

    def _lose(self, group: RunningGroup) -> None:
        """Give a group up, for a reason that was counted; its place in the update stays empty."""
        self._unfinished.drop([group.ticket])
        self._window.settle(group.ticket)

    def _listen(self, work: Future[Any]) -> None:
        """Look as soon as this is done."""
        work.add_done_callback(lambda _: self._engine.nudge())
