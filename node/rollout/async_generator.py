"""Own groups written by an engine that works beside its owner."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from node.concurrency.threads import WorkThread
from node.engines.engine import RolloutEngine
from node.errors import NodeError
from node.learner.batches import TrainingGroup
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.rollout.generator import MANY_UNBUILT, Generator
from node.rollout.group_writer import GroupWriter, RunningGroup, UnfinishedGroups
from node.rollout.groups import OwnGroup
from swarm.common.counters import Counters
from swarm.journal import JournalError


@dataclass(slots=True)
class _Slot:
    """One group; ``version`` counts the updates done when it was begun."""

    version: int
    settled: bool = False


class StalenessWindow:
    """A pure state machine over the numbers of groups: neither clock nor threads.

    Groups go by tickets, which rise. A group is running until it is settled: complete and scored,
    or lost. A lost group keeps its place in an update, so that tasks that cannot be used slow the
    node down instead of being drawn without end.

    Args:
        max_staleness: most updates between the begin of a group and the update that takes it; 0
            begins and takes each update's groups in turn.
        over_provision: at most ``1 + over_provision`` times an update's groups run at a time; 0
            lets as many run as their age allows.
        version: updates done before.
    """

    def __init__(
        self, max_staleness: int, *, over_provision: float = 0.0, version: int = 0
    ) -> None:
        self._max_staleness = max_staleness
        self._over_provision = over_provision
        self._sizes: deque[int] = deque()
        self._slots: dict[int, _Slot] = {}
        self._next = 0
        self.version = version

    def plan(self, size: int) -> None:
        """Plan the last update of the window, and any before it that have no size yet."""
        while len(self._sizes) <= self._max_staleness:
            self._sizes.append(size)

    @property
    def size(self) -> int:
        """Groups that the next update takes."""
        return self._sizes[0]

    @property
    def capacity(self) -> int:
        """Groups that may be begun now."""
        free = sum(self._sizes) - len(self._slots)
        if self._over_provision and self._sizes:
            most = math.ceil((1 + self._over_provision) * self.size)
            free = min(free, most - len(self.running))
        return max(0, free)

    @property
    def complete(self) -> bool:
        """Whether the next update can take its groups."""
        next_ones = set(self._oldest_settled())
        if len(next_ones) < self.size:
            return False
        left = [slot for ticket, slot in self._slots.items() if ticket not in next_ones]
        later = islice(self._sizes, 1, None)
        room = 0
        for version, size in enumerate(later, self.version - self._max_staleness):
            due = [slot for slot in left if slot.version <= version]
            # More than fit and all of them settled, as after a restart: there is no use in waiting.
            if len(due) > room and not all(slot.settled for slot in due):
                return False
            room += size
        return True

    @property
    def running(self) -> list[int]:
        """Groups that are not settled, the oldest first."""
        return [ticket for ticket, slot in self._slots.items() if not slot.settled]

    def begin(self) -> int:
        """The ticket of a new group."""
        ticket = self._next
        self.resume(ticket, self.version)
        return ticket

    def resume(self, ticket: int, version: int) -> None:
        """Go on with a group of an earlier run, begun at ``version``; the oldest ones first."""
        self._slots[ticket] = _Slot(version)
        self._next = ticket + 1

    def settle(self, ticket: int) -> None:
        """The group is complete and scored, or lost."""
        self._slots[ticket].settled = True

    def take(self) -> list[int]:
        """The groups of the next update, the oldest settled ones; the update counts as done."""
        taken = self._oldest_settled()
        self._sizes.popleft()
        for ticket in taken:
            del self._slots[ticket]
        self.version += 1
        return taken

    def expire(self) -> list[int]:
        """Let go of groups that are too old for the next update.

        There are none but after a restart with fewer groups an update or a tighter bound.
        """
        oldest = self.version - self._max_staleness
        stale = [ticket for ticket, slot in self._slots.items() if slot.version < oldest]
        for ticket in stale:
            del self._slots[ticket]
        return stale

    def _oldest_settled(self) -> list[int]:
        settled = [ticket for ticket, slot in self._slots.items() if slot.settled]
        return settled[: self.size]


class PromptRequests:
    """Groups whose question is not known yet.

    Args:
        tasks: builds questions.
        window: tells how many groups an update has.
        threads: wait for the verifier.
        listen: told of everything that is waited for.
    """

    def __init__(
        self,
        tasks: Generator,
        policy: Policy,
        window: StalenessWindow,
        threads: Executor,
        listen: Callable[[Future[Any]], None],
    ) -> None:
        self._tasks = tasks
        self._policy = policy
        self._window = window
        self._threads = threads
        self._listen = listen
        self._new: list[RunningGroup] = []
        self._asked: list[tuple[list[RunningGroup], Future[list[str | None]]]] = []
        self._unbuilt = 0

    def add(self, group: RunningGroup) -> None:
        """Have a group's question built next."""
        self._new.append(group)

    def drop(self, groups: Iterable[RunningGroup]) -> None:
        """Do not ask for these any more."""
        gone = {group.ticket for group in groups}
        self._new = [group for group in self._new if group.ticket not in gone]

    def ask(self) -> None:
        """Hand all that is new to the verifier."""
        if self._new:
            asked = self._threads.submit(self._tasks.prompts, [group.task for group in self._new])
            self._listen(asked)
            self._asked.append((self._new, asked))
            self._new = []

    def answered(self) -> Iterator[tuple[RunningGroup, bool]]:
        """Groups whose question has come in, and whether it can be answered.

        Raises:
            NodeError: no prompt has fitted the policy's context for long, or no task can be built.
        """
        for groups, asked in [pair for pair in self._asked if pair[1].done()]:
            self._asked.remove((groups, asked))
            if asked.exception():
                self._new += groups
            for group, prompt in zip(groups, asked.result(), strict=True):
                yield group, self._takes(group, prompt)
            if self._unbuilt >= max(self._window.size, MANY_UNBUILT):
                raise NodeError(
                    "no task can be built any more",
                    f"{self._unbuilt} in a row",
                    "The log says why: mend the family, or leave it out with tasks.weights.",
                )

    def _takes(self, group: RunningGroup, prompt: str | None) -> bool:
        if prompt is None:
            self._unbuilt += 1
            return False
        self._unbuilt = 0
        group.prompt_ids = self._policy.encode_prompt(prompt)
        (fits,) = self._tasks.room.fits([group.prompt_ids])
        return fits


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
    are begun as :class:`node.rollout.async_generator.StalenessWindow` allows and kept on the disk
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
