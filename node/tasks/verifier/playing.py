"""Turns that the node has a worker take in its environments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from node.tasks.moves import Answered, Move, Moved
from node.tasks.verifier.dialogue import refusal, wire
from node.tasks.verifier.worker_process import WorkerDied, WorkerProcess


def moved(
    worker: WorkerProcess, moves: Sequence[Move], each: float
) -> Iterator[tuple[Move, Moved]]:
    """What a worker makes of some turns, as it answers for them.

    The caller ends the worker unless it takes the answers to the last one.

    Args:
        each: seconds that an answer may take.

    Raises:
        WorkerDied: over one of those that were not answered.
    """
    left = {move.key: move for move in moves}
    asked = [(move.key, wire(move.task), list(move.actions), move.final) for move in moves]
    worker.tell({"moves": asked, "seconds": each / 2}, each)
    while left:
        began = time.monotonic()
        reply = worker.hear(each)
        move = left.pop(_key(reply), None)
        if move is None:
            raise _nonsense("answer is to a turn that was not asked about")
        yield move, refusal(reply, time.monotonic() - began, played=True) or _answered(reply)


def _key(reply: dict[str, Any]) -> int:
    key = reply.get("key")
    return key if type(key) is int else -1


def _answered(reply: dict[str, Any]) -> Answered:
    observation, over, reward = (reply.get(name) for name in ("observation", "over", "reward"))
    if not isinstance(observation, str) or not isinstance(over, bool):
        raise _nonsense("observation is malformed")
    if reward is not None and not (isinstance(reward, float) and 0.0 <= reward <= 1.0):
        raise _nonsense("reward is no number in [0, 1]")
    return Answered(observation, over, reward)


def _nonsense(what: str) -> WorkerDied:
    return WorkerDied(f"the worker's {what}", ran_out_of_time=False)
