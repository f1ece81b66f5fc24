"""Generation of completions: single-turn answers, and turns in environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

from node.engines.engine import Prompts, RolloutEngine, Sample, Sampling
from node.policy.policy import Policy
from node.tasks.scorer import Answered, Move, Moved, Scorer, verify_all
from node.trajectories.trajectory import OpenTrajectory, Trajectory, TurnLimits
from protocol.rollout import Finish
from swarm.groups import TaskRef
from swarm.verification import Scored, Scores, Submission, VerifierError, answer_of


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
            truncated = []
            for each in done:
                if self._take(each.trajectory, each.answer.result()):
                    ready.append(each.trajectory)
                else:
                    truncated.append(each)
            if not truncated:
                break
            moves = [replace(each.move, final=True) for each in truncated]
            self._begin([each.trajectory for each in truncated], moves)
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
        if isinstance(moved, VerifierError):
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
    """Session in one task, after its prompt; raises ``VerifierError`` if not buildable."""

    def __init__(self, scorer: Scorer, task: TaskRef) -> None:
        self._scorer = scorer
        self._task = task
        self._actions: tuple[str, ...] = ()
        (self.first,) = scorer.prompts([task])

    def take(self, text: str) -> Answered:
        """Take a turn and return the response; raise ``VerifierError`` if it is lost."""
        if self._task.env not in self._scorer.environments:
            return Answered("", True, self._scorer.verify(self._task, [text]).rewards[0])
        self._actions += (text,)
        return self._moved(final=False)

    def leave(self) -> float:
        """End early and return the reward so far; raise ``VerifierError`` if it is lost."""
        if not self._actions:
            return 0.0
        return self._moved(final=True).reward or 0.0

    def _moved(self, *, final: bool) -> Answered:
        (moved,) = self._scorer.play([Move(0, self._task, self._actions, final)])
        if isinstance(moved, VerifierError):
            raise moved
        return moved


STREAM = 1  # Of the engine; other users of the engine have other streams.
LOOK_SECONDS = 1.0  # Poll timeout while nothing happens.
PATIENCE = 1.0  # Seconds that a synchronous environment may take before others continue.


@dataclass(eq=False)
class Player:
    """Generator of completions: the engine samples turns, environments answer them.

    Trajectories progress independently: while one waits for its environment, others are sampled.
    The output depends only on the engine's randomness, unless an environment waits or takes longer
    than :data:`PATIENCE`.
    """

    policy: Policy
    engine: RolloutEngine
    scorer: Scorer
    limits: TurnLimits

    def play(
        self, tasks: Sequence[TaskRef], prompts: Prompts, n: int, sampling: Sampling
    ) -> list[list[Trajectory]]:
        """Generate ``n`` completions of each task, in the order of ``tasks``.

        ``prompts`` has token ids per task. ``sampling`` is for single-turn answers; turns have the
        length in the limits. Raises ValueError: a prompt is empty or leaves no tokens for a
        completion.
        """
        many = self.scorer.environments
        done: dict[int, list[Trajectory]] = {}
        once = [number for number, task in enumerate(tasks) if task.env not in many]
        if once:
            answers = self.engine.generate([prompts[number] for number in once], n, sampling)
            for number, samples in zip(once, answers, strict=True):
                done[number] = [Trajectory.once(sample) for sample in samples]
        played = [number for number, task in enumerate(tasks) if task.env in many]
        if played:
            begun = [(tasks[number], prompts[number]) for number in played]
            done |= zip(played, self._trajectories(begun, n, sampling), strict=True)
        return [done[number] for number in range(len(tasks))]

    def _trajectories(
        self, begun: Sequence[tuple[TaskRef, Sequence[int]]], n: int, sampling: Sampling
    ) -> list[list[Trajectory]]:
        groups = [[OpenTrajectory(task, list(prompt)) for _ in range(n)] for task, prompt in begun]
        opened = {each.key: each for group in groups for each in group}
        turn = replace(sampling, max_new_tokens=self.limits.turn_tokens)
        turns = TurnScheduler(self.policy, self.scorer, self.limits, self.engine.nudge)
        ready, left = list(opened.values()), len(opened)
        try:
            while left:
                over = [each.key for each in ready if each.over]
                self.engine.abort(over)
                left -= len(over)
                going = [each.wanted(stream=STREAM, lasts=True) for each in ready if not each.over]
                if going:
                    self.engine.submit(going, turn)
                sampled = self._sampled(opened) if left else []
                for trajectory, sample in sampled:
                    trajectory.add(sample)
                turns.ask([trajectory for trajectory, _ in sampled])
                ready = turns.answered(PATIENCE)
        except BaseException:
            self.engine.abort([*opened])
            raise
        return [[each.so_far for each in group] for group in groups]

    def _sampled(self, opened: Mapping[int, OpenTrajectory]) -> list[tuple[OpenTrajectory, Sample]]:
        """Return what the engine has sampled; abort what it still samples for a failed play."""
        samples = self.engine.poll(LOOK_SECONDS, STREAM)
        if strays := [key for key, _ in samples if key not in opened]:
            self.engine.abort(strays)
        return [(opened[key], sample) for key, sample in samples if key in opened]


def verified(
    scorer: Scorer, groups: Sequence[tuple[TaskRef, Sequence[Trajectory]]]
) -> Iterator[Scored]:
    """Yield the verification result of each task's completions, in order.

    Trajectories are replayed as peers do; what does not reproduce is neither shared nor trained on.
    Environments that are not replayable keep the observed reward.
    """
    known = [_settled(scorer, task, group) for task, group in groups]
    played = scorer.environments
    asked = [
        Submission(
            task, [answer_of(each.completion(0.0), played=task.env in played) for each in group]
        )
        for (task, group), settled in zip(groups, known, strict=True)
        if settled is None
    ]
    found = verify_all(scorer, asked)
    for settled in known:
        yield next(found) if settled is None else settled


def _settled(scorer: Scorer, task: TaskRef, group: Sequence[Trajectory]) -> Scored | None:
    if lost := next((each.lost for each in group if each.lost), None):
        return lost
    if task.env not in scorer.unrepeatable:
        return None
    (prompt,) = scorer.prompts([task])
    return Scores(prompt, tuple(each.reward or 0.0 for each in group))
