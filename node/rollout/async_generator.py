"""Asynchronous generation of local groups with bounded staleness."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any, TypeVar

from node.errors import NodeError
from node.learner.batches import TrainingGroup
from node.monitor.record import Stopwatch
from node.rollout.generator import MANY_UNBUILT, Generator
from node.rollout.group_writer import GroupWriter, RunningGroup, UnfinishedGroups
from node.rollout.groups import LocalGroup
from node.threads import WorkThread
from swarm.journal import JournalError

log = logging.getLogger(__name__)

T = TypeVar("T")

FATAL = (NodeError, JournalError)  # These errors end the run in any case.
LOOK_SECONDS = 1.0  # Maximum wait between polls; any event interrupts it.
VERIFIER_THREADS = 2  # A task that is slow to score blocks only one of them.


@dataclass(slots=True)
class _Slot:
    version: int
    settled: bool = False


class StalenessWindow:
    """State machine over groups, named by tickets, without clock or threads.

    A group runs until it is settled: complete and scored, or lost. A lost group keeps its place in
    an update, so unusable tasks slow the node down instead of being sampled without end.
    ``max_staleness`` limits the updates from a group's start to the one that takes it; 0: in turn.
    At most ``1 + oversample`` times an update's groups run; 0: no limit.
    """

    def __init__(self, max_staleness: int, *, oversample: float = 0.0, version: int = 0) -> None:
        self._max_staleness = max_staleness
        self._oversample = oversample
        self._sizes: deque[int] = deque()
        self._slots: dict[int, _Slot] = {}
        self._next = 0
        self.version = version

    def plan(self, size: int) -> None:
        """Plan the last update of the window, and any earlier one without a size."""
        while len(self._sizes) <= self._max_staleness:
            self._sizes.append(size)

    @property
    def size(self) -> int:
        """Groups that the next update takes."""
        return self._sizes[0]

    @property
    def capacity(self) -> int:
        """Groups that may start now."""
        free = sum(self._sizes) - len(self._slots)
        if self._oversample and self._sizes:
            limit = math.ceil((1 + self._oversample) * self.size)
            free = min(free, limit - len(self.running))
        return max(0, free)

    @property
    def complete(self) -> bool:
        """Whether the next update can take its groups.

        It waits for a group if, without it, more groups would become too old than the updates
        until then take.
        """
        tickets = set(self._oldest_settled())
        if len(tickets) < self.size:
            return False
        remaining = [slot for ticket, slot in self._slots.items() if ticket not in tickets]
        room = 0  # groups that the updates after this one take, as long as none is too old
        sizes = islice(self._sizes, 1, None)
        for oldest, size in enumerate(sizes, self.version - self._max_staleness):
            due_slots = [slot for slot in remaining if slot.version <= oldest]
            # If more than fit are all settled, as after a restart, waiting does not help.
            if len(due_slots) > room and not all(slot.settled for slot in due_slots):
                return False
            room += size
        return True

    @property
    def running(self) -> list[int]:
        """Groups that are not settled, the oldest first."""
        return [ticket for ticket, slot in self._slots.items() if not slot.settled]

    def begin(self) -> int:
        ticket = self._next
        self.resume(ticket, self.version)
        return ticket

    def resume(self, ticket: int, version: int) -> None:
        """Resume a group of an earlier run, started at ``version``; the oldest first."""
        self._slots[ticket] = _Slot(version)
        self._next = ticket + 1

    def settle(self, ticket: int) -> None:
        """Mark the group as complete and scored, or lost."""
        self._slots[ticket].settled = True

    def take(self) -> list[int]:
        """Return the oldest settled groups for the next update, which counts as done."""
        tickets = self._oldest_settled()
        self._sizes.popleft()
        for ticket in tickets:
            del self._slots[ticket]
        self.version += 1
        return tickets

    def expire(self) -> list[int]:
        """Drop and return groups too old for the next update, after a change of limits."""
        oldest = self.version - self._max_staleness
        tickets = [ticket for ticket, slot in self._slots.items() if slot.version < oldest]
        for ticket in tickets:
            del self._slots[ticket]
        return tickets

    def _oldest_settled(self) -> list[int]:
        return [ticket for ticket, slot in self._slots.items() if slot.settled][: self.size]


@dataclass(eq=False)
class PromptRequests:
    """Requests for the prompts of groups; ``listen`` is called with every future."""

    generator: Generator
    window: StalenessWindow
    threads: Executor
    listen: Callable[[Future[Any]], None]

    def __post_init__(self) -> None:
        self._unsent: list[RunningGroup] = []
        self._sent: list[tuple[list[RunningGroup], Future[list[str | None]]]] = []
        self._unbuilt = 0  # tasks in a row that could not be built

    def add(self, group: RunningGroup) -> None:
        self._unsent.append(group)

    def drop(self, groups: Iterable[RunningGroup]) -> None:
        tickets = {group.ticket for group in groups}
        self._unsent = [group for group in self._unsent if group.ticket not in tickets]

    def send(self) -> None:
        """Request the prompts of all added groups from the verifier."""
        if self._unsent:
            tasks = [group.task for group in self._unsent]
            prompts = self.threads.submit(self.generator.prompts, tasks)
            self.listen(prompts)
            self._sent.append((self._unsent, prompts))
            self._unsent = []

    def answered(self) -> Iterator[tuple[RunningGroup, bool]]:
        """Yield groups with prompts and whether each is answerable, or raise NodeError.

        An error of the verifier is raised, and its groups are requested again.
        """
        for groups, prompts in [pair for pair in self._sent if pair[1].done()]:
            self._sent.remove((groups, prompts))
            if prompts.exception():
                self._unsent += groups
            for group, prompt in zip(groups, prompts.result(), strict=True):
                yield group, self._encode(group, prompt)
            if self._unbuilt >= max(self.window.size, MANY_UNBUILT):
                raise NodeError(
                    "no task can be generated",
                    f"{self._unbuilt} in a row",
                    "See the log for the reason: repair the family, or exclude it with "
                    "tasks.weights.",
                )

    def _encode(self, group: RunningGroup, prompt: str | None) -> bool:
        """Encode the group's prompt; return whether it exists and leaves room."""
        if prompt is None:
            self._unbuilt += 1
            return False
        self._unbuilt = 0
        group.prompt_ids = self.generator.policy.encode_prompt(prompt)
        (has_room,) = self.generator.room.fits([group.prompt_ids])
        return has_room


@dataclass(eq=False)
class AsyncRolloutGenerator:
    """Source of scored groups that works while the policy learns from earlier ones.

    All work runs on the caller's thread, in :meth:`generate` and :meth:`beside`, except that of the
    verifier (``threads``, shut down on closing) and of the engine (a process). Groups start as
    :class:`StalenessWindow` allows and stay on disk until they are taken.

    With ``sleep_mode`` the engine sleeps while the policy learns, as on a shared device. It then
    continues unfinished completions first, as partial rollouts in APRIL (arXiv 2509.18521). Counts
    ``own_groups_filtered{reason=stale|task_gone}`` and ``generation_errors``.
    """

    generator: Generator
    _: KW_ONLY
    window: StalenessWindow
    unfinished: UnfinishedGroups
    sleep_mode: bool
    threads: Executor

    def __post_init__(self) -> None:
        gen = self.generator
        settings = gen.verifier, gen.limits, gen.sampling, self.unfinished, gen.group_size
        self._writer = GroupWriter(gen.policy, gen.engine, *settings)
        self._learner = WorkThread("learner")
        self._groups: dict[int, RunningGroup] = {}  # by ticket, until an update takes them
        self._prompts = PromptRequests(gen, self.window, self.threads, self._nudge_after)
        self._scores: dict[int, Future[LocalGroup | None]] = {}  # requested, by ticket
        self._restore()

    def generate(self, count: int, watch: Stopwatch) -> list[LocalGroup]:
        """Return the next update's groups once complete, durably marked as used.

        ``count`` is for the last update in the window. Raises NodeError: too many unusable tasks.
        """
        self.window.plan(count)
        if tickets := self.window.expire():  # after a change of limits
            self._drop(tickets, "stale")
            self._prompts.drop([self._groups.pop(ticket) for ticket in tickets])
        self._writer.resume()
        with watch.time("wait"):
            self._start_groups()
            self._advance(0.0)
            while not self.window.complete:
                self._advance(LOOK_SECONDS)
                self._start_groups()
            if self.sleep_mode:
                self._writer.pause()
        batch = [self._groups.pop(ticket) for ticket in self.window.take()]
        self.unfinished.take([group.ticket for group in batch], self.generator.policy.version)
        groups = [group.scored for group in batch if group.scored]
        self.generator.observe(groups)
        return groups

    def beside(self, work: Callable[[], T]) -> T:
        """Do ``work`` on the learner's thread while started groups continue.

        An error of generation is logged and counted, and occurs again in the next :meth:`generate`.
        If both fail, the error that ends the run is raised from the other one, which is logged.
        """
        result = self._learner.submit(work)
        self._nudge_after(result)
        try:
            while not result.done():
                self._advance(LOOK_SECONDS)
        except Exception as error:
            # Whatever failed, wait: nothing else may write the weights during this work.
            failure = result.exception()
            if failure is None and not isinstance(error, FATAL):
                self.generator.counters.add("generation_errors")
                log.exception("generation failed during an update: %s", error)
                return result.result()
            if not isinstance(failure, Exception):
                raise
            first, other = (failure, error) if isinstance(failure, FATAL) else (error, failure)
            log.error("both generation and the update failed: %s", other, exc_info=other)
            raise first from other
        return result.result()

    def newest(self) -> Sequence[TrainingGroup]:
        """Return the latest completions, each as its own group without its reward."""
        return self._writer.newest()

    def close(self) -> None:
        """Pause the engine and keep what is generated of every group."""
        self._writer.pause()
        self._learner.close()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _restore(self) -> None:
        for group in self.unfinished.groups():
            if (group.task.ref.env, group.task.ref.level) in self.generator.levels:
                self.window.resume(group.ticket, group.version)
                self._add([group])
            else:
                self._drop([group.ticket], "task_gone")

    def _drop(self, tickets: Sequence[int], reason: str) -> None:
        self.unfinished.drop(tickets)
        self.generator.counters.add("own_groups_filtered", len(tickets), reason=reason)
        log.warning("dropped %d local groups of an earlier run (%s)", len(tickets), reason)

    def _add(self, groups: Iterable[RunningGroup]) -> None:
        for group in groups:
            self._groups[group.ticket] = group
            self._prompts.add(group)

    def _start_groups(self) -> None:
        """Start as many groups as the window allows."""
        if not (count := self.window.capacity):
            return
        version = self.window.version
        new = [(self.window.begin(), task) for task in self.generator.next_tasks(count)]
        self.unfinished.begin(new, version)
        self._add(RunningGroup(ticket, task, version) for ticket, task in new)

    def _advance(self, seconds: float) -> None:
        """Move each group as far as possible: prompt, completions, scores.

        Waits up to ``seconds`` for the engine, or until a future is done.
        """
        self._prompts.send()
        for group, answerable in self._prompts.answered():
            if answerable:
                self._writer.add(group)
            else:
                self._drop_unusable(group)
        for group in self._writer.poll(seconds):
            self._request_score(group)
        self._take_scores()

    def _request_score(self, group: RunningGroup) -> None:
        task, ids, rollouts = group.task, group.prompt_ids, [c.so_far for c in group.completions]
        score = self.threads.submit(self.generator.score, task, ids, rollouts)
        self._nudge_after(score)
        self._scores[group.ticket] = score

    def _take_scores(self) -> None:
        """Settle scored groups; raise the verifier's error, and request that group again."""
        for ticket in [ticket for ticket, score in self._scores.items() if score.done()]:
            score, group = self._scores.pop(ticket), self._groups[ticket]
            if score.exception():
                self._request_score(group)
            group.scored = score.result()
            if group.scored:
                self.window.settle(ticket)
            else:
                self._drop_unusable(group)

    def _drop_unusable(self, group: RunningGroup) -> None:
        self.unfinished.drop([group.ticket])
        self.window.settle(group.ticket)

    def _nudge_after(self, work: Future[Any]) -> None:
        """End the engine's poll when ``work`` is done."""
        work.add_done_callback(lambda _: self.generator.engine.nudge())
