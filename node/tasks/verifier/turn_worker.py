"""One worker in which turns are taken, many of them under way at a time, as the node sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from node.concurrency.channel import ChannelError, Unread, packed
from node.tasks.scorer import Answered, Move, Moved
from node.tasks.verifier.dialogue import nonsense, refusal, wire
from node.tasks.verifier.worker_process import WorkerDied, WorkerProcess

MOST_LOSSES = 3
"""Workers that may be lost with a turn though they were at none."""


@dataclass(slots=True, eq=False)
class Turn:
    """One that was asked for.

    Attributes:
        outcome: what comes of it; never cancelled, and set once.
        begun: by the node's clock, when the worker that has it was first at it; None before.
        losses: workers that were lost with it, and no turn known to be to blame.
    """

    move: Move
    outcome: Future[Moved] = field(default_factory=Future)
    begun: float | None = None
    losses: int = 0

    def __post_init__(self) -> None:
        self.outcome.set_running_or_notify_cancel()

    def message(self, number: int, seconds: float) -> bytes:
        """As a worker reads it.

        Args:
            number: names it to the worker.
            seconds: that its environment may be waited for.

        Raises:
            ValueError: its actions are longer than any message.
        """
        move = self.move
        request = {
            "turn": number,
            "key": move.key,
            "task": wire(move.task),
            "actions": list(move.actions),
            "final": move.final,
            "seconds": seconds,
        }
        return packed(request)

    def settle(self, moved: Moved) -> None:
        """Set the outcome, unless another worker was quicker."""
        if not self.outcome.done():
            self.outcome.set_result(moved)


def heard(reply: dict[str, Any], seconds: float) -> Moved:
    """What a worker's reply makes of a turn that took so long.

    Raises:
        WorkerDied: it speaks nonsense.
    """
    return refusal(reply, seconds, played=True) or _answered(reply)


def _answered(reply: dict[str, Any]) -> Answered:
    observation, over, reward = (reply.get(name) for name in ("observation", "over", "reward"))
    if not isinstance(observation, str) or not isinstance(over, bool):
        raise nonsense("observation is malformed")
    if reward is not None and not (isinstance(reward, float) and 0.0 <= reward <= 1.0):
        raise nonsense("reward is no number in [0, 1]")
    return Answered(observation, over, reward)


STUCK_SECONDS = 1.0
"""A worker that owes an answer and says nothing for so long holds up whoever waits there."""
MOST_TURNS = 256
"""That a worker has at a time."""


class TurnWorker(asyncio.Protocol):
    """Belongs to the thread of its event loop.

    Args:
        wall_seconds: that a turn may take.
        answered: told of each turn that was answered.
        rested: told each time that everything which has come is heard.
        ended: told why the worker cannot be asked any more; with None, it has gone by itself.

    Attributes:
        process: whose channel this is.
        turns: that it has, by the numbers that they have there, the first asked first.
        stuck: whether it holds up who waits there; until it is heard again.
    """

    def __init__(
        self,
        process: WorkerProcess,
        wall_seconds: float,
        *,
        answered: Callable[[TurnWorker, Turn, Moved], None],
        rested: Callable[[], None],
        ended: Callable[[TurnWorker, WorkerDied | None], None],
    ) -> None:
        self.process = process
        self.turns: dict[int, Turn] = {}
        self.stuck = False
        self._wall_seconds = wall_seconds
        self._answered = answered
        self._rested = rested
        self._ended = ended
        self._unread = Unread()
        self._count = 0
        self._at: int | None = None
        self._since = self._heard = self._moved_on = time.monotonic()
        self._transport: asyncio.Transport | None = None

    @property
    def connected(self) -> bool:
        """Whether anything can still be heard of it."""
        return self._transport is not None

    @property
    def open(self) -> bool:
        """Whether it can be given one more turn."""
        return not self.stuck and len(self.turns) < MOST_TURNS

    @property
    def at(self) -> Turn | None:
        """The turn that it is at, unless it is at none or at one that was taken from it."""
        return None if self._at is None else self.turns.get(self._at)

    def take(self, turn: Turn) -> None:
        """Have it take a turn.

        Raises:
            ValueError: the turn cannot be sent.
        """
        message = turn.message(self._count, self._wall_seconds)
        now = time.monotonic()
        if not self._owes:
            self._heard = now
        if not self.turns:
            self._moved_on = now
        turn.begun = None
        self.turns[self._count] = turn
        self._count += 1
        self._write(message)

    def drop(self, numbers: Sequence[int]) -> list[Turn]:
        """Take turns from it; what it still says of them is not listened to."""
        self._write(packed({"drop": list(numbers)}))
        return [self.turns.pop(number) for number in numbers]

    def silent(self, now: float) -> bool:
        """Whether it owes an answer and has said nothing for a while."""
        return self._owes and now - self._heard > STUCK_SECONDS

    def full(self, now: float) -> bool:
        """Whether it has as many turns as it may have, and has ended none for a while."""
        return len(self.turns) >= MOST_TURNS and now - self._moved_on > STUCK_SECONDS

    def overdue(self, now: float) -> bool:
        """Whether a turn has taken longer than it may.

        A worker ends those that wait by itself, and is given a moment for that.
        """
        if self._at is not None and now - self._since > self._wall_seconds:
            return True
        most = self._wall_seconds + STUCK_SECONDS
        if self._at is not None:
            most += self._wall_seconds
        begun = [turn.begun for turn in self.turns.values() if turn.begun is not None]
        if begun and now - min(begun) > most:
            return True
        return (bool(self.turns) or self.stuck) and now - self._moved_on > most

    def late(self) -> Turn | None:
        """The turn that is to blame where one took too long, if there is one."""
        if self._at is not None:
            return self.at
        begun = [turn for turn in self.turns.values() if turn.begun is not None]
        return min(begun, key=lambda turn: turn.begun or 0.0, default=self._first())

    def leave(self) -> None:
        """Close the channel; nothing is heard any more."""
        transport, self._transport = self._transport, None
        if transport:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._unread.add(data)
        try:
            while self._transport and not self._unread.missing():
                self._hear(self._unread.take())
        except ChannelError as error:
            self._ended(self, nonsense(f"message is malformed: {error}"))
        except WorkerDied as death:
            self._ended(self, death)
        else:
            self._rested()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        if self._transport:
            self._transport = None
            self._ended(self, None)

    @property
    def _owes(self) -> bool:
        """Whether it has to say something soon: it is at a turn, or has one to begin."""
        return self._at is not None or any(turn.begun is None for turn in self.turns.values())

    def _first(self) -> Turn | None:
        return next(iter(self.turns.values()), None)

    def _write(self, message: bytes) -> None:
        if self._transport:
            self._transport.write(message)

    def _hear(self, message: dict[str, Any]) -> None:
        self._heard, self.stuck = time.monotonic(), False
        if "turn" in message:
            self._take_answer(self._known(message["turn"]), message)
        else:
            at = message.get("at")
            self._attend(None if at is None else self._known(at))

    def _known(self, number: object) -> int:
        if not isinstance(number, int) or not 0 <= number < self._count:
            raise nonsense("answer is to a turn that was not asked about")
        return number

    def _take_answer(self, number: int, message: dict[str, Any]) -> None:
        # Whose answer is nonsense is to blame for it.
        self._at = number
        if turn := self.turns.get(number):
            moved = heard(message, self._heard - (turn.begun or self._heard))
            del self.turns[number]
            self._moved_on = self._heard
            self._answered(self, turn, moved)
        self._at = None

    def _attend(self, number: int | None) -> None:
        self._at, self._since = number, self._heard
        if (turn := self.at) and turn.begun is None:
            turn.begun = self._moved_on = self._heard
