"""A turn that the node has a worker take, and what it makes of the answer."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from node.concurrency.channel import packed
from node.tasks.moves import Answered, Move, Moved
from node.tasks.verifier.dialogue import nonsense, refusal, wire

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
