"""Completions of tasks: answers in one turn, and trajectories in environments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from node.engines.engine import RolloutEngine, Sample, Sampling
from node.policy.policy import Policy
from node.tasks.scorer import Scorer, judge_all
from node.trajectories.trajectory import OpenTrajectory, Played, Script, TurnLimits
from node.trajectories.turns import Turns
from protocol.rollout import Finish, Tokens
from swarm.groups import TaskRef
from swarm.verification import Asked, Judged, Verdict

STREAM = 1
"""Of the engine's; others are theirs who write beside a player."""
LOOK_SECONDS = 1.0
"""Between two looks where nothing happens."""
PATIENCE = 1.0
"""Seconds that an environment which never waits may take before others go on without it."""


class Player:
    """Has an engine write, and environments answer, until all is written.

    Each trajectory goes on by itself: while one waits for its environment, others are written.
    What is written follows from the engine's chance alone, unless an environment waits for
    something or takes longer than :data:`PATIENCE`.

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

    def play(
        self,
        tasks: Sequence[TaskRef],
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        scripts: Mapping[TaskRef, Script] = MappingProxyType({}),
    ) -> list[list[Played]]:
        """``n`` completions of each task, in the order of ``tasks``.

        Args:
            prompts: token ids, one list a task.
            sampling: of answers in one turn; turns have the limits' own length.
            scripts: what trajectories of some tasks are held to.

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
            done |= zip(played, self._trajectories(begun, n, sampling, scripts), strict=True)
        return [done[number] for number in range(len(tasks))]

    def _trajectories(
        self,
        begun: Sequence[tuple[TaskRef, Sequence[int]]],
        n: int,
        sampling: Sampling,
        scripts: Mapping[TaskRef, Script],
    ) -> list[list[Played]]:
        groups = [[OpenTrajectory(task, list(prompt)) for _ in range(n)] for task, prompt in begun]
        opened = {each.key: each for group in groups for each in group}
        turn = replace(sampling, max_new_tokens=self._limits.turn_tokens)
        turns = Turns(self._policy, self._scorer, self._limits, self._engine.nudge)
        try:
            self._go_on(opened, turn, turns, scripts)
        except BaseException:
            self._engine.forget([*opened])
            raise
        return [[each.so_far for each in group] for group in groups]

    def _go_on(
        self,
        opened: Mapping[int, OpenTrajectory],
        turn: Sampling,
        turns: Turns,
        scripts: Mapping[TaskRef, Script],
    ) -> None:
        """Play until all have ended."""
        ready, left = list(opened.values()), len(opened)
        while left:
            over = [each.key for each in ready if each.over]
            self._engine.forget(over)
            left -= len(over)
            going = [each.wanted(stream=STREAM, lasts=True) for each in ready if not each.over]
            if going:
                self._engine.submit(going, turn)
            written = self._engine.poll(LOOK_SECONDS, STREAM) if left else []
            if strays := [key for key, _ in written if key not in opened]:  # of a play that failed
                self._engine.forget(strays)
                written = [(key, sample) for key, sample in written if key in opened]
            for key, sample in written:
                opened[key].add(sample)
                self._hold(opened[key], scripts.get(opened[key].task))
            turns.ask([opened[key] for key, _ in written])
            ready = turns.answered(PATIENCE)

    def _hold(self, each: OpenTrajectory, script: Script | None) -> None:
        """Put a script's turn in the place of the last one where that departs from it."""
        if script and (action := script.instead(each.so_far)) is not None:
            ids = tuple(self._policy.encode_completion(action, stopped=True))
            versions = (self._policy.version,) * len(ids)
            each.patch(Sample(Tokens(ids, (0.0,) * len(ids), versions), Finish.STOP, action))


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
