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
        self._begin(trajectories, [trajectory.move(self.limits) for trajectory in trajectories])

    def answered(self, patience: float = 0.0) -> list[OpenTrajectory]:
        """Return trajectories that ended or continue, in request order.

        Waits ``patience`` seconds for synchronous environments, so that the next samples do not
        depend on process speed.
        """
        ready = []
        while requests := self._done(patience):
            # Another turn was allowed, but these observations leave no tokens for it.
            truncated = []
            for request in requests:
                if self._take(request.trajectory, request.answer.result()):
                    ready.append(request.trajectory)
                else:
                    truncated.append(request)
            if not truncated:
                break
            moves = [replace(request.move, final=True) for request in truncated]
            self._begin([request.trajectory for request in truncated], moves)
        return ready

    def _begin(self, trajectories: Sequence[OpenTrajectory], moves: Sequence[Move]) -> None:
        answers = self.scorer.play_each(moves)
        self._asked += map(_Asked, trajectories, moves, answers)
        for answer in answers:
            answer.add_done_callback(lambda _: self.nudge())

    def _done(self, patience: float) -> list[_Asked]:
        if patience:
            async_envs = self.scorer.waiting
            wait([x.answer for x in self._asked if x.move.task.env not in async_envs], patience)
        finished, pending = list[_Asked](), list[_Asked]()
        for request in self._asked:
            (finished if request.answer.done() else pending).append(request)
        self._asked = pending
        return finished

    def _take(self, trajectory: OpenTrajectory, response: Moved) -> bool:
        """Continue or end; False if it cannot continue and has no reward yet."""
        if isinstance(response, VerifierError):
            trajectory.end(replace(trajectory.so_far, lost=response))
        elif response.reward is not None:
            completed = response.over and trajectory.so_far.finish is Finish.STOP
            finish = Finish.STOP if completed else Finish.LENGTH
            trajectory.end(replace(trajectory.so_far, reward=response.reward, finish=finish))
        else:
            tokens = self.policy.encode_observation(response.observation)
            if len(trajectory.ids) + len(tokens) >= self.policy.context_length:
                return False
            trajectory.read(response.observation, tokens)
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
            scores = self._scorer.verify(self._task, [text])
            fault = "it took too long, or ended the verifier's process" if scores.over else ""
            return Answered("", True, scores.rewards[0], fault)
        self._actions += (text,)
        return self._moved(final=False)

    def leave(self) -> float:
        """End early and return the reward so far; raise ``VerifierError`` if it is lost."""
        if not self._actions:
            return 0.0
        return self._moved(final=True).reward or 0.0

    def _moved(self, *, final: bool) -> Answered:
        (response,) = self._scorer.play([Move(0, self._task, self._actions, final)])
        if isinstance(response, VerifierError):
            raise response
        return response


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
        envs = self.scorer.environments
        results: dict[int, list[Trajectory]] = {}
        singles = [number for number, task in enumerate(tasks) if task.env not in envs]
        if singles:
            answers = self.engine.generate([prompts[number] for number in singles], n, sampling)
            for number, samples in zip(singles, answers, strict=True):
                results[number] = [Trajectory.once(sample) for sample in samples]
        multi_turn = [number for number, task in enumerate(tasks) if task.env in envs]
        if multi_turn:
            inputs = [(tasks[number], prompts[number]) for number in multi_turn]
            results |= zip(multi_turn, self._trajectories(inputs, n, sampling), strict=True)
        return [results[number] for number in range(len(tasks))]

    def _trajectories(
        self, inputs: Sequence[tuple[TaskRef, Sequence[int]]], n: int, sampling: Sampling
    ) -> list[list[Trajectory]]:
        groups = [[OpenTrajectory(task, list(prompt)) for _ in range(n)] for task, prompt in inputs]
        by_key = {t.key: t for group in groups for t in group}
        params = replace(sampling, max_new_tokens=self.limits.turn_tokens)
        scheduler = TurnScheduler(self.policy, self.scorer, self.limits, self.engine.nudge)
        ready, remaining = list(by_key.values()), len(by_key)
        try:
            while remaining:
                keys = [t.key for t in ready if t.over]
                self.engine.abort(keys)
                remaining -= len(keys)
                requests = [t.wanted(stream=STREAM, lasts=True) for t in ready if not t.over]
                if requests:
                    self.engine.submit(requests, params)
                samples = self._sampled(by_key) if remaining else []
                for trajectory, sample in samples:
                    trajectory.add(sample)
                scheduler.ask([trajectory for trajectory, _ in samples])
                ready = scheduler.answered(PATIENCE)
        except BaseException:
            self.engine.abort([*by_key])
            raise
        return [[t.so_far for t in group] for group in groups]

    def _sampled(self, by_key: Mapping[int, OpenTrajectory]) -> list[tuple[OpenTrajectory, Sample]]:
        """Return what the engine has sampled; abort what it still samples for a failed play."""
        samples = self.engine.poll(LOOK_SECONDS, STREAM)
        if strays := [key for key, _ in samples if key not in by_key]:
            self.engine.abort(strays)
        return [(by_key[key], sample) for key, sample in samples if key in by_key]


def verified(
    scorer: Scorer, groups: Sequence[tuple[TaskRef, Sequence[Trajectory]]]
) -> Iterator[Scored]:
    """Yield the verification result of each task's completions, in order.

    Trajectories are replayed as peers do; what does not reproduce is neither shared nor trained on.
    Environments that are not replayable keep the observed reward.
    """
    outcomes = [_settled(scorer, task, group) for task, group in groups]
    envs = scorer.environments
    submissions = [
        Submission(task, [answer_of(t.completion(0.0), played=task.env in envs) for t in group])
        for (task, group), settled in zip(groups, outcomes, strict=True)
        if settled is None
    ]
    results = verify_all(scorer, submissions)
    for settled in outcomes:
        yield next(results) if settled is None else settled


def _settled(scorer: Scorer, task: TaskRef, group: Sequence[Trajectory]) -> Scored | None:
    if error := next((t.lost for t in group if t.lost), None):
        return error
    if task.env not in scorer.unrepeatable:
        return None
    (prompt,) = scorer.prompts([task])
    return Scores(prompt, tuple(t.reward or 0.0 for t in group))
