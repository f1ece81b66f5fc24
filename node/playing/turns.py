"""Turns of trajectories on their way through environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

from node.playing.limits import TurnLimits
from node.playing.open_trajectory import OpenTrajectory
from node.playing.played import Played
from node.policy.policy import Policy
from node.tasks.scorer import Answered, Move, Moved, Scorer
from protocol.rollout import Finish
from swarm.verification import JudgeRefused


@dataclass(frozen=True, slots=True)
class _Asked:
    trajectory: OpenTrajectory
    move: Move
    answer: Future[Moved]


class Turns:
    """Has environments answer the last turns of trajectories, each as soon as it can.

    Args:
        policy: reads the observations.
        scorer: plays the environments.
        nudge: called, from any thread, when there is something :meth:`answered`.
    """

    def __init__(
        self, policy: Policy, scorer: Scorer, limits: TurnLimits, nudge: Callable[[], None]
    ) -> None:
        self._policy = policy
        self._scorer = scorer
        self._limits = limits
        self._nudge = nudge
        self._asked: list[_Asked] = []

    def ask(self, trajectories: Sequence[OpenTrajectory]) -> None:
        """Hand on the last turn of each."""
        self._begin(trajectories, [each.move(self._limits) for each in trajectories])

    def answered(self, patience: float = 0.0) -> list[OpenTrajectory]:
        """Those that are over, and those that go on, in the order in which they were asked.

        Args:
            patience: seconds to wait for environments that never wait themselves, so that what is
                written next does not depend on how quick a process is.
        """
        ready = []
        while done := self._done(patience):
            # There was room for another turn, but not behind what these were answered.
            cut = []
            for each in done:
                if self._take(each.trajectory, each.answer.result()):
                    ready.append(each.trajectory)
                else:
                    cut.append(each)
            if not cut:
                break
            moves = [replace(each.move, final=True) for each in cut]
            self._begin([each.trajectory for each in cut], moves)
        return ready

    def _begin(self, trajectories: Sequence[OpenTrajectory], moves: Sequence[Move]) -> None:
        answers = self._scorer.play_each(moves)
        self._asked += map(_Asked, trajectories, moves, answers)
        for answer in answers:
            answer.add_done_callback(lambda _: self._nudge())

    def _done(self, patience: float) -> list[_Asked]:
        if patience:
            waiting = self._scorer.waiting
            wait([x.answer for x in self._asked if x.move.task.env not in waiting], patience)
        done, left = list[_Asked](), list[_Asked]()
        for each in self._asked:
            (done if each.answer.done() else left).append(each)
        self._asked = left
        return done

    def _take(self, each: OpenTrajectory, moved: Moved) -> bool:
        """Go on behind an answer, or end; False where it cannot go on and has no reward yet."""
        if isinstance(moved, JudgeRefused):
            each.end(replace(each.so_far, lost=moved))
        elif moved.reward is not None:
            each.end(_ended(each.so_far, moved))
        else:
            observed = self._policy.encode_observation(moved.observation)
            if len(each.ids) + len(observed) >= self._policy.context_length:
                return False
            each.read(moved.observation, observed)
        return True


def _ended(played: Played, moved: Answered) -> Played:
    whole = moved.over and played.finish is Finish.STOP
    return replace(played, reward=moved.reward, finish=Finish.STOP if whole else Finish.LENGTH)
