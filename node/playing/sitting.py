"""One episode that somebody plays who is no policy: a person, or whatever writes lines."""

from __future__ import annotations

from node.playing.played import Played
from node.tasks.scorer import Answered, Move, Scorer
from swarm.groups import TaskRef
from swarm.verification import JudgeRefused


class Sitting:
    """Takes turns in a task; of a family of one turn, the answer.

    Args:
        scorer: plays the environment.

    Attributes:
        first: what is read first.

    Raises:
        JudgeRefused: the task cannot be built.
    """

    def __init__(self, scorer: Scorer, task: TaskRef) -> None:
        self._scorer = scorer
        self._task = task
        self._actions: tuple[str, ...] = ()
        (self.first,) = scorer.prompts([task])

    def take(self, text: str) -> Answered:
        """Take a turn; what comes of it.

        Raises:
            JudgeRefused: the environment is lost.
        """
        if self._task.env not in self._scorer.environments:
            verdict = self._scorer.judge(self._task, [text])
            return Answered("", True, verdict.rewards[0])
        self._actions += (text,)
        return self._moved(final=False)

    def leave(self) -> float:
        """End it before it is over; what it is worth so far.

        Raises:
            JudgeRefused: the environment is lost.
        """
        if not self._actions:
            return 0.0
        return self._moved(final=True).reward or 0.0

    def _moved(self, *, final: bool) -> Answered:
        (moved,) = self._scorer.play([Move(0, self._task, self._actions, final)])
        if isinstance(moved, JudgeRefused):
            raise moved
        return moved


def turns_of(played: Played) -> list[tuple[str, str | None]]:
    """What was written turn by turn, and what it was answered."""
    return [(turn.sample.text, turn.observation) for turn in played.turns]
