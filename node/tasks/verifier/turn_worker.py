"""One worker that takes many environment turns concurrently, as the node sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from node.tasks.scorer import Answered, Move, Moved
from node.tasks.verifier.dialogue import nonsense, refusal, wire
from node.tasks.verifier.worker_process import WorkerDied, WorkerProcess
from swarm.common.child_process import ChannelError, Unread, packed

MOST_LOSSES = 3  # Lost workers without a known culprit, after which a turn is blamed.


@dataclass(slots=True, eq=False)
class PendingTurn:
    """A requested turn; its ``outcome`` is never cancelled, and set once.

    ``begun`` is when its worker first ran it; ``losses`` counts workers lost with it without a
    culprit.
    """

    move: Move
    outcome: Future[Moved] = field(default_factory=Future)
    begun: float | None = None
    losses: int = 0

    def __post_init__(self) -> None:
        self.outcome.set_running_or_notify_cancel()

    def message(self, number: int, seconds: float) -> bytes:
        """Encode the turn; raise ``ValueError`` if its actions are too long."""
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
        if not self.outcome.done():
            self.outcome.set_result(moved)


def decoded(reply: dict[str, Any], seconds: float) -> Moved:
    """Decode a worker's reply to a turn; raise ``WorkerDied`` if malformed."""
    if refused := refusal(reply, seconds, played=True):
        return refused
    observation, over, reward = (reply.get(name) for name in ("observation", "over", "reward"))
    if not isinstance(observation, str) or not isinstance(over, bool):
        raise nonsense("observation is malformed")
    if reward is not None and not (isinstance(reward, float) and 0.0 <= reward <= 1.0):
        raise nonsense("reward is no number in [0, 1]")
    return Answered(observation, over, reward)


STUCK_SECONDS = 1.0  # A worker that owes a reply and is silent for this long is stuck.
MOST_TURNS = 256  # Per worker at a time.


@dataclass(eq=False)
class TurnWorker(asyncio.Protocol):
    """Connection to one worker; belongs to the thread of its event loop.

    ``answered`` is called for each answered turn, ``rested`` when all received messages are
    processed, ``ended`` when the worker is unusable, with None if it ended by itself. ``turns`` are
    the pending turns by the worker's numbers, oldest first. ``stuck``: the worker delays its turns;
    reset when it sends a message.
    """

    process: WorkerProcess
    wall_seconds: float
    answered: Callable[[TurnWorker, PendingTurn, Moved], None]
    rested: Callable[[], None]
    ended: Callable[[TurnWorker, WorkerDied | None], None]

    def __post_init__(self) -> None:
        self.turns: dict[int, PendingTurn] = {}
        self.stuck = False
        self._unread = Unread()
        self._count = 0
        self._at: int | None = None
        self._since = self._last_message = self._moved_on = time.monotonic()
        self._transport: asyncio.Transport | None = None

    @property
    def connected(self) -> bool:
        return self._transport is not None

    @property
    def open(self) -> bool:
        return not self.stuck and len(self.turns) < MOST_TURNS

    @property
    def at(self) -> PendingTurn | None:
        """The turn that it runs; None if there is none or it was withdrawn."""
        return None if self._at is None else self.turns.get(self._at)

    def take(self, turn: PendingTurn) -> None:
        """Send it a turn; raise ``ValueError`` if the turn cannot be encoded."""
        message = turn.message(self._count, self.wall_seconds)
        now = time.monotonic()
        if not self._owes:
            self._last_message = now
        if not self.turns:
            self._moved_on = now
        turn.begun = None
        self.turns[self._count] = turn
        self._count += 1
        self._write(message)

    def drop(self, numbers: Sequence[int]) -> list[PendingTurn]:
        """Withdraw turns; later messages about them are ignored."""
        self._write(packed({"drop": list(numbers)}))
        return [self.turns.pop(number) for number in numbers]

    def silent(self, now: float) -> bool:
        """Return whether it owes a message and has been silent for a while."""
        return self._owes and now - self._last_message > STUCK_SECONDS

    def full(self, now: float) -> bool:
        """Return whether it has the maximum of turns and made no recent progress."""
        return len(self.turns) >= MOST_TURNS and now - self._moved_on > STUCK_SECONDS

    def overdue(self, now: float) -> bool:
        """Return whether a turn exceeded its time, with a grace period for waiting turns."""
        if self._at is not None and now - self._since > self.wall_seconds:
            return True
        most = self.wall_seconds + STUCK_SECONDS
        if self._at is not None:
            most += self.wall_seconds
        begun = [turn.begun for turn in self.turns.values() if turn.begun is not None]
        if begun and now - min(begun) > most:
            return True
        return (bool(self.turns) or self.stuck) and now - self._moved_on > most

    def late(self) -> PendingTurn | None:
        """Return the turn to blame for an overdue worker, if any."""
        if self._at is not None:
            return self.at
        begun = [turn for turn in self.turns.values() if turn.begun is not None]
        first = next(iter(self.turns.values()), None)
        return min(begun, key=lambda turn: turn.begun or 0.0, default=first)

    def leave(self) -> None:
        """Close the channel; later messages are ignored."""
        transport, self._transport = self._transport, None
        if transport:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread.add(data)
        try:
            while self._transport and not self._unread.missing():
                self._handle(self._unread.take_map())
        except ChannelError as error:
            self.ended(self, nonsense(f"message is malformed: {error}"))
        except WorkerDied as death:
            self.ended(self, death)
        else:
            self.rested()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport:
            self._transport = None
            self.ended(self, None)

    @property
    def _owes(self) -> bool:
        """Whether a message is due soon: it runs a turn or has one to begin."""
        return self._at is not None or any(turn.begun is None for turn in self.turns.values())

    def _write(self, message: bytes) -> None:
        if self._transport:
            self._transport.write(message)

    def _handle(self, message: dict[str, Any]) -> None:
        self._last_message, self.stuck = time.monotonic(), False
        if "turn" in message:
            self._take_answer(self._known(message["turn"]), message)
        else:
            at = message.get("at")
            self._at, self._since = None if at is None else self._known(at), self._last_message
            if (turn := self.at) and turn.begun is None:
                turn.begun = self._moved_on = self._last_message

    def _known(self, number: object) -> int:
        if not isinstance(number, int) or not 0 <= number < self._count:
            raise nonsense("answer is to a turn that was not asked about")
        return number

    def _take_answer(self, number: int, message: dict[str, Any]) -> None:
        # A malformed reply is its own turn's fault.
        self._at = number
        if turn := self.turns.get(number):
            moved = decoded(message, self._last_message - (turn.begun or self._last_message))
            del self.turns[number]
            self._moved_on = self._last_message
            self.answered(self, turn, moved)
        self._at = None
