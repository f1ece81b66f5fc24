"""Completions of tasks: answers in one turn, and trajectories in environments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from node.engines.engine import RolloutEngine, Sample, Sampling
from node.playing.limits import TurnLimits
from node.playing.played import Played
from node.policy.policy import Policy
from node.tasks.moves import Answered, Move, Moved
from node.tasks.scorer import Scorer, judge_all
from protocol.rollout import Finish
from swarm.judge import Asked, Judged, JudgeRefused, Verdict
from swarm.task_ref import TaskRef


@dataclass(slots=True)
class _Trajectory:
    """One that goes on.

    Attributes:
        key: names it to the scorer.
        ids: all that the policy reads next.
        over: nothing follows.
    """

    key: int
    task: TaskRef
    ids: list[int]
    played: Played | None = None
    over: bool = False

    def add(self, sample: Sample) -> None:
        """Take in one more turn."""
        self.played = self.played.with_turn(sample) if self.played else Played.once(sample)
        self.ids += sample.tokens.ids


class Player:
    """Has an engine write, and environments answer.

    Trajectories go on side by side: the engine writes the next turn of all that go on, then their
    environments answer. Token ids are never spelled again: a turn is written behind the very ids of
    the turns before it and of what they were answered.

    Args:
        policy: whose engine it is.
        scorer: plays the environments.
    """

    def __init__(
        self, policy: Policy, engine: RolloutEngine, scorer: Scorer, limits: TurnLimits
    ) -> None:
        self._policy = policy
        self._engine = engine
        self._scorer = scorer
        self._limits = limits
        self._keys = count()

    def play(
        self,
        tasks: Sequence[TaskRef],
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
    ) -> list[list[Played]]:
        """``n`` completions of each task, in the order of ``tasks``.

        Args:
            prompts: token ids, one list a task.
            sampling: of answers in one turn; turns have the limits' own length.

        Raises:
            ValueError: an empty prompt, or one that leaves no room for a completion.
        """
        many = self._scorer.environments
        done: dict[int, list[Played]] = {}
        once = [number for number, task in enumerate(tasks) if task.env not in many]
        if once:
            answers = self._engine.generate([prompts[number] for number in once], n, sampling)
            for number, samples in zip(once, answers, strict=True):
                done[number] = [Played.once(sample) for sample in samples]
        played = [number for number, task in enumerate(tasks) if task.env in many]
        if played:
            begun = [(tasks[number], prompts[number]) for number in played]
            done |= zip(played, self._trajectories(begun, n, sampling), strict=True)
        return [done[number] for number in range(len(tasks))]

    def _trajectories(
        self, begun: Sequence[tuple[TaskRef, Sequence[int]]], n: int, sampling: Sampling
    ) -> list[list[Played]]:
        turn = replace(sampling, max_new_tokens=self._limits.turn_tokens)
        groups = [
            [_Trajectory(next(self._keys), task, list(prompt)) for _ in range(n)]
            for task, prompt in begun
        ]
        going = [each for group in groups for each in group]
        written = self._engine.generate([prompt for _, prompt in begun], n, turn)
        samples = [sample for group in written for sample in group]
        for number in count(1):
            for each, sample in zip(going, samples, strict=True):
                each.add(sample)
            self._answer(going)
            going = [each for each in going if not each.over]
            if not going:
                break
            if turn.seed is not None:
                turn = replace(turn, seed=turn.seed + number)
            again = self._engine.generate([each.ids for each in going], 1, turn)
            samples = [sample for (sample,) in again]
        return [[each.played for each in group if each.played] for group in groups]

    def _answer(self, going: Sequence[_Trajectory]) -> None:
        """Have environments answer the last turn of each."""
        named = {each.key: each for each in going}
        moves = [self._move(each) for each in going]
        while moves:
            # There was room for another turn, but not behind what these were answered.
            ended = []
            for move, moved in zip(moves, self._scorer.play(moves), strict=True):
                if not self._take(named[move.key], moved):
                    ended.append(replace(move, final=True))
            moves = ended

    def _move(self, each: _Trajectory) -> Move:
        played = each.played
        assert played is not None
        actions = tuple(turn.sample.text for turn in played.turns)
        final = played.finish is Finish.LENGTH or self._limits.last(played)
        return Move(each.key, each.task, actions, final)

    def _take(self, each: _Trajectory, moved: Moved) -> bool:
        """Go on behind an answer, or end; False where it cannot go on and has no reward yet."""
        assert each.played is not None
        if isinstance(moved, JudgeRefused):
            each.played, each.over = replace(each.played, lost=moved), True
        elif moved.reward is not None:
            each.played, each.over = _ended(each.played, moved), True
        else:
            observed = tuple(self._policy.encode_observation(moved.observation))
            if len(each.ids) + len(observed) >= self._policy.context_length:
                return False
            each.ids += observed
            each.played = each.played.answered(moved.observation, observed)
        return True


def judged(scorer: Scorer, written: Sequence[tuple[TaskRef, Sequence[Played]]]) -> Iterator[Judged]:
    """Verdicts on the completions of some tasks, in their order.

    Trajectories are played once more, as everybody else will: what is not found again is not
    shared, nor learned from. Of environments that never answer twice alike the reward is the one
    that was seen.
    """
    known = [_settled(scorer, task, group) for task, group in written]
    asked = [
        Asked(task, [each.answer(played=task.env in scorer.environments) for each in group])
        for (task, group), settled in zip(written, known, strict=True)
        if settled is None
    ]
    found = judge_all(scorer, asked)
    for settled in known:
        yield next(found) if settled is None else settled


def _settled(scorer: Scorer, task: TaskRef, group: Sequence[Played]) -> Judged | None:
    """What there is to be said without asking a judge."""
    if lost := next((each.lost for each in group if each.lost), None):
        return lost
    if task.env not in scorer.unrepeatable:
        return None
    (prompt,) = scorer.prompts([task])
    return Verdict(prompt, tuple(each.reward or 0.0 for each in group))


def _ended(played: Played, moved: Answered) -> Played:
    whole = moved.over and played.finish is Finish.STOP
    return replace(played, reward=moved.reward, finish=Finish.STOP if whole else Finish.LENGTH)
