"""Turns of trajectories in environments, concurrent or one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

from node.policy.policy import Policy
from node.tasks.scorer import Answered, Move, Moved, Scorer
from node.trajectories.trajectory import OpenTrajectory, Trajectory, TurnLimits
from protocol.rollout import Finish
from swarm.groups import TaskRef
from swarm.verification import JudgeRefused


@dataclass(frozen=True, slots=True)
class _Asked:
    trajectory: OpenTrajectory
    move: Move
    answer: Future[Moved]


@dataclass(eq=False)
class TurnScheduler:
    """Requests to environments for trajectories, each answered as soon as possible.

    ``nudge`` is called from any thread when :meth:`answered` has something.
    """

    policy: Policy
    scorer: Scorer
    limits: TurnLimits
    nudge: Callable[[], None]

    def __post_init__(self) -> None:
        self._asked: list[_Asked] = []

    def ask(self, trajectories: Sequence[OpenTrajectory]) -> None:
        self._begin(trajectories, [each.move(self.limits) for each in trajectories])

    def answered(self, patience: float = 0.0) -> list[OpenTrajectory]:
        """Return trajectories that ended or continue, in request order.

        Waits ``patience`` seconds for synchronous environments, so that the next samples do not
        depend on process speed.
        """
        ready = []
        while done := self._done(patience):
            # Another turn was allowed, but these observations leave no tokens for it.
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
        answers = self.scorer.play_each(moves)
        self._asked += map(_Asked, trajectories, moves, answers)
        for answer in answers:
            answer.add_done_callback(lambda _: self.nudge())

    def _done(self, patience: float) -> list[_Asked]:
        if patience:
            waiting = self.scorer.waiting
            wait([x.answer for x in self._asked if x.move.task.env not in waiting], patience)
        done, left = list[_Asked](), list[_Asked]()
        for each in self._asked:
            (done if each.answer.done() else left).append(each)
        self._asked = left
        return done

    def _take(self, each: OpenTrajectory, moved: Moved) -> bool:
        """Continue or end; False if it cannot continue and has no reward yet."""
        if isinstance(moved, JudgeRefused):
            each.end(replace(each.so_far, lost=moved))
        elif moved.reward is not None:
            whole = moved.over and each.so_far.finish is Finish.STOP
            finish = Finish.STOP if whole else Finish.LENGTH
            each.end(replace(each.so_far, reward=moved.reward, finish=finish))
        else:
            observed = self.policy.encode_observation(moved.observation)
            if len(each.ids) + len(observed) >= self.policy.context_length:
                return False
            each.read(moved.observation, observed)
        return True


class Session:
    """Session in one task, after the prompt ``first``.

    A single-turn task takes one turn. Raises ``JudgeRefused`` if the task cannot be built.
    """

    def __init__(self, scorer: Scorer, task: TaskRef) -> None:
        self._scorer = scorer
        self._task = task
        self._actions: tuple[str, ...] = ()
        (self.first,) = scorer.prompts([task])

    def take(self, text: str) -> Answered:
        """Take a turn and return the response; raise ``JudgeRefused`` if it is lost."""
        if self._task.env not in self._scorer.environments:
            verdict = self._scorer.judge(self._task, [text])
            return Answered("", True, verdict.rewards[0])
        self._actions += (text,)
        return self._moved(final=False)

    def leave(self) -> float:
        """End early and return the reward so far; raise ``JudgeRefused`` if it is lost."""
        if not self._actions:
            return 0.0
        return self._moved(final=True).reward or 0.0

    def _moved(self, *, final: bool) -> Answered:
        (moved,) = self._scorer.play([Move(0, self._task, self._actions, final)])
        if isinstance(moved, JudgeRefused):
            raise moved
        return moved


def turns_of(played: Trajectory) -> list[tuple[str, str | None]]:
    """Return the text of each turn and the response to it."""
    return [(turn.sample.text, turn.observation) for turn in played.turns]
