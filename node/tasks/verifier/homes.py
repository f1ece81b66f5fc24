"""Where trajectories that go on have their episodes."""

from __future__ import annotations

from collections import OrderedDict

from node.tasks.moves import Answered, Move, Moved
from node.tasks.verifier.turn_worker import TurnWorker
from swarm.groups import TaskRef


class Homes:
    """Remembers which worker has answered a trajectory last.

    Args:
        most: trajectories; of more the one that was answered longest ago is forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._homes: OrderedDict[int, tuple[TaskRef, TurnWorker]] = OrderedDict()

    def of(self, move: Move) -> TurnWorker | None:
        """The worker that has the episode of a trajectory, or had it; None of one that begins."""
        task, worker = self._homes.get(move.key, (None, None))
        return worker if task == move.task else None

    def answered(self, move: Move, moved: Moved, worker: TurnWorker) -> None:
        """Remember it, if the trajectory goes on."""
        self._homes.pop(move.key, None)
        if isinstance(moved, Answered) and moved.reward is None:
            self._homes[move.key] = (move.task, worker)
        while len(self._homes) > self._most:
            self._homes.popitem(last=False)
