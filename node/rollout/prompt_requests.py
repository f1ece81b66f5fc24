"""Questions on their way from a task to token ids, built by the verifier while others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from node.errors import NodeError
from node.policy.policy import Policy
from node.rollout.generator import MANY_UNBUILT, Generator
from node.rollout.running_group import RunningGroup
from node.rollout.staleness_window import StalenessWindow


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
