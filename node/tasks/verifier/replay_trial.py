"""Check that a task set can be trained on, and that it is the same in every process.

Tasks are built, answers scored and episodes played in one process, and again in others. These
differ in all that a task must not depend on: set order, addresses, the clock, system randomness and
earlier episodes.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from node.environments.own_file import differing, guess
from node.errors import TaskSetError
from node.tasks.scorer import Move
from node.tasks.sources.plugins import FAMILIES
from node.tasks.task_set import Allowed
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import ENVIRONMENT, EnvSpec
from swarm.groups import Split, TaskRef
from swarm.verification import Scores, TrajectoryTexts, VerifierError

logger = logging.getLogger(__name__)

EPISODES = 4  # Per level; as many tasks of other families.
QUESTIONS, DRAW_SECONDS = 64, 5.0  # Per level, and per family, of draws to find errors.
ANSWERS = ("", "0", "yes", "[1, 2]")  # to such a task
TURNS = 16  # Maximum per episode.
MOST_QUESTION = 1 << 17  # Characters; longer ones take minutes to be read, and fit no context.
PLAYS, REPLAY = 1, (2, 3)  # Hash seeds of the process that plays and of those that replay.
SLOW = 1.0  # seconds
SLOW_REMEDY = "slow answers are not shared, and lost after 10 s together: make its score faster"
REMEDY = (
    "derive all its randomness from the seed, or set replayable = False, and it is not shared "
    "(docs/environments.md)"
)


@dataclass(frozen=True, slots=True)
class Trial:
    """Names of environments that replayed identically, and their number of episodes.

    ``unshared`` ones are not replayable; ``absent`` says why a family is closed here.
    """

    replayed: tuple[str, ...] = ()
    episodes: int = 0
    unshared: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Built:
    """A task's prompt and right completion, and the answers scored to it."""

    prompt: str
    right: str | None
    answers: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    seconds: float = 0.0  # to score all of them
    slow: bool = False  # each


@dataclass(slots=True)
class _Episode:
    """An episode in progress; ``texts`` are turns and observations, alternately."""

    task: TaskRef
    prompt: str
    chance: random.Random
    texts: list[str] = field(default_factory=list)
    over: bool = False
    reward: float | None = None
    fault: str = ""

    def move(self, key: int) -> Move:
        self.texts.append(guess([self.prompt, *self.texts[-1:]], self.chance))
        turns = tuple(self.texts[::2])
        return Move(key, self.task, turns, final=len(turns) == TURNS)


def try_replays(specs: Sequence[EnvSpec], allowed: Allowed) -> Trial:
    """Open a task set, build and score tasks, play its environments and replay them.

    Raises TaskSetError: a family cannot be opened, built or played, has no held-out tasks, differs
    elsewhere (the message says how) or gives right answers no reward; VerifierError: no process can
    be started (``unavailable``).
    """
    env_specs = [spec for spec in specs if spec.source == ENVIRONMENT]
    with Verifier(specs, allowed, outside=False, hash_seed=PLAYS) as verifier:
        available, closed = verifier.start(), dict(verifier.closed)
        unshared = tuple(name for name in available if name in verifier.unrepeatable)
        replayable = [spec for spec in env_specs if spec.name in {*available} - {*unshared}]
        built = {s.name: _built(verifier, s) for s in specs if s.name in available}
        played = {s.name: _played(verifier, s) for s in env_specs if s.name in available}
        episodes = [e for spec in replayable for e in played[spec.name]]
        custom = [
            s for s in specs if s.source == "plugin" and s.name in built.keys() - FAMILIES.keys()
        ]
        for spec in custom:
            _warn_of_failing_draws(verifier, spec)
    for hash_seed in REPLAY if episodes or custom else ():
        with Verifier([*replayable, *custom], allowed, outside=False, hash_seed=hash_seed) as other:
            other.log_with(verifier)
            for spec in custom:
                _same(other, built[spec.name])
            for episode in reversed(episodes):
                _replay(other, episode)
    for tasks in built.values():
        _check_rewards(tasks)
    return Trial(tuple(s.name for s in replayable), len(episodes), unshared, closed)


def _built(verifier: Verifier, spec: EnvSpec) -> dict[TaskRef, _Built]:
    """Build tasks to train on and one to evaluate on, per level; score answers to them."""
    results: dict[TaskRef, _Built] = {}
    for level in range(len(spec.levels)):
        tasks = _tasks(spec, level)
        tasks.append(replace(tasks[0], split=Split.HELDOUT))
        for task, (prompt, right) in zip(tasks, _examples(verifier, tasks), strict=True):
            if len(prompt) > MOST_QUESTION:
                issue = f"env {spec.name!r} level {level}: a question has {len(prompt)} characters"
                raise TaskSetError(f"{issue}, at most {MOST_QUESTION} can be used: shorten it")
            # A right one first: its error is the one that is shown. It is also the last.
            answers = ANSWERS if right is None else (right, *ANSWERS, right)
            results[task] = _Built(prompt, right)
            if spec.source != ENVIRONMENT:
                scores = _verdict(verifier, task, answers)
                seconds = scores.seconds or 0.0
                is_slow = len(scores.over) == len(answers)
                results[task] = _Built(prompt, right, answers, scores.rewards, seconds, is_slow)
    return results


def _warn_of_failing_draws(verifier: Verifier, spec: EnvSpec) -> None:
    end = time.monotonic() + DRAW_SECONDS
    for level in range(len(spec.levels)):
        tasks = _tasks(spec, level, QUESTIONS)
        drawn, errors = 0, list[VerifierError]()
        while drawn < QUESTIONS and time.monotonic() < end:
            try:
                verifier.prompts([tasks[drawn]])
            except VerifierError as error:
                errors.append(error)
            drawn += 1
        if errors:
            text = "env %r level %d: nodes skip a part of its questions, %d of %d here: %s"
            logger.warning(text, spec.name, level, len(errors), drawn, errors[0])


def _verdict(verifier: Verifier, task: TaskRef, answers: Sequence[str]) -> Scores:
    try:
        return verifier.verify(task, answers)
    except VerifierError as error:
        raise _failed(task, error, "an answer has no reward: ") from error


def _check_rewards(built: Mapping[TaskRef, _Built]) -> None:
    """Raise ``TaskSetError`` if no right answer of a level has a reward, or not the same again.

    Warn if an empty answer has one, if all have the same, or if scoring is slow. Some tasks may
    have a weak example.
    """
    for level in dict.fromkeys((task.env, task.level) for task in built):
        place = f"env {level[0]!r} level {level[1]}"
        items = [item for task, item in built.items() if (task.env, task.level) == level]
        answered = [item for item in items if item.right is not None and item.rewards]
        if answered and not any(item.rewards[0] for item in answered):
            raise TaskSetError(
                f"{place} gives its right answer no reward: {answered[0].right!r:.60}: correct its "
                "score, or the answer of its questions (docs/guides/own_tasks.md)"
            )
        for right, first, last in ((e.right, e.rewards[0], e.rewards[-1]) for e in answered):
            if first != last:
                raise TaskSetError(
                    f"{place} scores {right!r:.60} as {first}, and after others as {last}: keep "
                    "no state in its score, nor change the entry (docs/guides/own_tasks.md)"
                )
        # The least: the first answers may import a library.
        least = min(item.seconds / max(1, len(item.answers)) for item in items)
        if least > SLOW or all(item.slow for item in items):
            logger.warning("%s takes %.1f s to score an answer: %s", place, least, SLOW_REMEDY)
        if any(dict(zip(item.answers, item.rewards, strict=True)).get("") == 1.0 for item in items):
            logger.warning("%s gives an empty answer a full reward: correct its score", place)
        elif answered and all(len({*item.rewards}) == 1 for item in answered):
            logger.warning("%s rewards every answer alike, which teaches nothing", place)


def _same(verifier: Verifier, built: Mapping[TaskRef, _Built]) -> None:
    """Build and score the same in another process; raise ``TaskSetError`` if it differs."""
    for task, local in reversed([*built.items()]):
        ((prompt, right),) = _examples(verifier, [task])
        if prompt != local.prompt:
            raise _unequal(task, f"its question is {differing(prompt, local.prompt)}")
        if right != local.right:
            raise _unequal(task, f"its answer is {right!r:.60}, not {local.right!r:.60}")
        rewards = _verdict(verifier, task, local.answers).rewards
        for answer, reward, expected in zip(local.answers, rewards, local.rewards, strict=True):
            if reward != expected:
                raise _unequal(task, f"it scores {answer!r:.60} as {reward}, not {expected}")


def _unequal(task: TaskRef, difference: str) -> TaskSetError:
    return TaskSetError(
        f"env {task.env!r} level {task.level} differs in another process with seed {task.seed}: "
        f"{difference}: derive all randomness from the number (docs/guides/own_tasks.md)"
    )


def _tasks(spec: EnvSpec, level: int, count: int = EPISODES) -> list[TaskRef]:
    rng = random.Random(f"replay-trial/{spec.name}/{level}")
    return [TaskRef(spec.name, level, rng.getrandbits(63)) for _ in range(count)]


def _played(verifier: Verifier, spec: EnvSpec) -> list[_Episode]:
    result: list[_Episode] = []
    for level in range(len(spec.levels)):
        tasks = _tasks(spec, level)
        episodes = [
            _Episode(task, prompt, random.Random(task.seed))
            for task, (prompt, _) in zip(tasks, _examples(verifier, tasks), strict=True)
        ]
        by_key = dict(enumerate(episodes, len(result)))
        while active := {key: episode for key, episode in by_key.items() if episode.reward is None}:
            _play_turn(verifier, active)
        if all(episode.fault for episode in episodes):
            place = f"env {spec.name!r} level {level}"
            raise TaskSetError(f"{place} cannot be used: no step succeeds: {episodes[0].fault}")
        result += episodes
    return result


def _play_turn(verifier: Verifier, episodes: Mapping[int, _Episode]) -> None:
    moves = [episode.move(key) for key, episode in episodes.items()]
    for episode, answer in zip(episodes.values(), verifier.play(moves), strict=True):
        if isinstance(answer, VerifierError):
            raise _failed(episode.task, answer, f"turn {len(episode.texts[::2])}: ")
        episode.over, episode.reward, episode.fault = answer.over, answer.reward, answer.fault
        if answer.reward is None:
            episode.texts.append(answer.observation)


def _replay(verifier: Verifier, episode: _Episode) -> None:
    """Replay an episode as a peer does; raise ``TaskSetError`` if it differs."""
    ((prompt, _),) = _examples(verifier, [episode.task])
    if prompt != episode.prompt:
        raise _otherwise(episode.task, f"it begins with {differing(prompt, episode.prompt)}")
    try:
        turns = TrajectoryTexts(tuple(episode.texts), truncated=not episode.over)
        (reward,) = verifier.verify(episode.task, [turns]).rewards
    except VerifierError as error:
        raise _otherwise(episode.task, str(error)) from error
    if reward != episode.reward:
        raise _otherwise(episode.task, f"its reward is {reward}, not {episode.reward}")


def _examples(verifier: Verifier, tasks: Sequence[TaskRef]) -> list[tuple[str, str | None]]:
    try:
        return verifier.examples(tasks)
    except VerifierError as error:
        raise _failed(tasks[0], error) from error


def _failed(task: TaskRef, error: VerifierError, prefix: str = "") -> TaskSetError:
    place = f"env {task.env!r} level {task.level}"
    reason = str(error).removeprefix(f"{error.reason}: ").removeprefix(f"{place}: ")
    return TaskSetError(f"{place} cannot be used: {prefix}{reason.removeprefix(f'{place} ')}")


def _otherwise(task: TaskRef, difference: str) -> TaskSetError:
    return TaskSetError(
        f"env {task.env!r} level {task.level} has replayable = True, but differs in another "
        f"process with seed {task.seed}: {difference}: {REMEDY}"
    )
