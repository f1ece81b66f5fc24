"""Several verifiers as one, for callers on several threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from queue import LifoQueue

from node.lifecycle import Opened
from node.tasks.moves import Move, Moved
from node.tasks.verifier.verifier import Verifier
from swarm.groups import TaskRef
from swarm.verification import Answer, Asked, Judged, Verdict


class VerifierPool(Opened):
    """Hands each request to a verifier that is free, or to the first that becomes so.

    So a text that keeps a worker busy holds up that worker alone. With as many callers at a time
    as there are verifiers, nobody waits. The one used last is used next, so that those which are
    never needed start no process.

    Args:
        verifiers: opened and closed with the pool.
    """

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        self._verifiers = verifiers
        self._free: LifoQueue[Verifier] = LifoQueue()

    def start(self) -> tuple[str, ...]:
        """Names of the envs that are served; see :meth:`Verifier.start`."""
        with self._one() as verifier:
            return verifier.start()

    def judge(
        self,
        task: TaskRef,
        texts: Sequence[Answer],
        *,
        seconds: float | None = None,
    ) -> Verdict:
        """See :meth:`node.tasks.verifier.verifier.Verifier.judge`."""
        with self._one() as verifier:
            return verifier.judge(task, texts, seconds=seconds)

    def judge_some(
        self,
        asked: Sequence[Asked],
        *,
        seconds: float | None = None,
    ) -> Sequence[Judged]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.judge_some`."""
        with self._one() as verifier:
            return verifier.judge_some(asked, seconds=seconds)

    @property
    def environments(self) -> frozenset[str]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.environments`."""
        return self._verifiers[0].environments

    @property
    def unrepeatable(self) -> frozenset[str]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.unrepeatable`."""
        return frozenset[str]().union(*(each.unrepeatable for each in self._verifiers))

    @property
    def waiting(self) -> frozenset[str]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.waiting`."""
        return frozenset[str]().union(*(each.waiting for each in self._verifiers))

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        """See :meth:`Verifier.play_each`; one has the episodes of all."""
        return self._verifiers[0].play_each(moves)

    def play(self, moves: Sequence[Move]) -> list[Moved]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.play`."""
        return self._verifiers[0].play(moves)

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        """See :meth:`node.tasks.verifier.verifier.Verifier.prompts`."""
        with self._one() as verifier:
            return verifier.prompts(tasks)

    def _open(self, stack: ExitStack) -> None:
        for verifier in self._verifiers:
            self._free.put(stack.enter_context(verifier))

    @contextmanager
    def _one(self) -> Iterator[Verifier]:
        verifier = self._free.get()
        try:
            yield verifier
        finally:
            self._free.put(verifier)
