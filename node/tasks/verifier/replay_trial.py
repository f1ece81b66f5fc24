"""Check that a task set can be trained on, and that it is the same in every process.

Tasks are built, answers scored and episodes played in one process, and again in others. These
differ in all that a task must not depend on: set order, addresses, the clock, system randomness and
earlier episodes.
"""

from __future__ import annotations

import logging
import random
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
    played = [spec for spec in specs if spec.source == ENVIRONMENT]
    with Verifier(specs, allowed, outside=False, hash_seed=PLAYS) as verifier:
        here, closed = verifier.start(), dict(verifier.closed)
        unshared = tuple(name for name in here if name in verifier.unrepeatable)
        replayable = [spec for spec in played if spec.name in {*here} - {*unshared}]
        built = {s.name: _built(verifier, s) for s in specs if s.name in here}
        episodes = [each for spec in replayable for each in _played(verifier, spec)]
    again = [s for s in specs if s.source == "plugin" and s.name in built.keys() - FAMILIES.keys()]
    for hash_seed in REPLAY if episodes or again else ():
        with Verifier([*replayable, *again], allowed, outside=False, hash_seed=hash_seed) as other:
            other.log_with(verifier)
            for spec in again:
                _same(other, built[spec.name])
            for episode in reversed(episodes):
                _replay(other, episode)
    for tasks in built.values():
        _check_rewards(tasks)
    return Trial(tuple(s.name for s in replayable), len(episodes), unshared, closed)


def _built(verifier: Verifier, spec: EnvSpec) -> dict[TaskRef, _Built]:
    """Build tasks to train on and one to evaluate on, per level; score answers to them."""
    found: dict[TaskRef, _Built] = {}
    for level in range(len(spec.levels)):
        tasks = _tasks(spec, level)
        tasks.append(replace(tasks[0], split=Split.HELDOUT))
        for task, (prompt, right) in zip(tasks, _examples(verifier, tasks), strict=True):
            if len(prompt) > MOST_QUESTION:
                what = f"env {spec.name!r} level {level}: a question has {len(prompt)} characters"
                raise TaskSetError(f"{what}, at most {MOST_QUESTION} can be used: shorten it")
            # A right one first: its error is the one that is shown. It is also the last.
            answers = ANSWERS if right is None else (right, *ANSWERS, right)
            found[task] = _Built(prompt, right)
            if spec.source != ENVIRONMENT:
                scores = _verdict(verifier, task, answers)
                seconds = scores.seconds or 0.0
                slow = len(scores.over) == len(answers)
                found[task] = _Built(prompt, right, answers, scores.rewards, seconds, slow)
    return found


def _verdict(verifier: Verifier, task: TaskRef, answers: Sequence[str]) -> Scores:
    try:
        return verifier.verify(task, answers)
    except VerifierError as refused:
        raise _failed(task, refused, "an answer has no reward: ") from refused


def _check_rewards(built: Mapping[TaskRef, _Built]) -> None:
    """Raise ``TaskSetError`` if no right answer of a level has a reward, or not the same again.

    Warn if an empty answer has one, if all have the same, or if scoring is slow. Some tasks may
    have a weak example.
    """
    for level in dict.fromkeys((task.env, task.level) for task in built):
        place = f"env {level[0]!r} level {level[1]}"
        tried = [each for task, each in built.items() if (task.env, task.level) == level]
        known = [each for each in tried if each.right is not None and each.rewards]
        if known and not any(each.rewards[0] for each in known):
            raise TaskSetError(
                f"{place} gives its right answer no reward: {known[0].right!r:.60}: correct its "
                "score, or the answer of its questions (docs/guides/own_tasks.md)"
            )
        for right, before, after in ((e.right, e.rewards[0], e.rewards[-1]) for e in known):
            if before != after:
                raise TaskSetError(
                    f"{place} scores {right!r:.60} as {before}, and after others as {after}: keep "
                    "no state in its score, nor change the entry (docs/guides/own_tasks.md)"
                )
        # The least: the first answers may import a library.
        least = min(each.seconds / max(1, len(each.answers)) for each in tried)
        if least > SLOW or all(each.slow for each in tried):
            logger.warning("%s takes %.1f s to score an answer: %s", place, least, SLOW_REMEDY)
        if any(dict(zip(each.answers, each.rewards, strict=True)).get("") == 1.0 for each in tried):
            logger.warning("%s gives an empty answer a full reward: correct its score", place)
        elif known and all(len({*each.rewards}) == 1 for each in known):
            logger.warning("%s rewards every answer alike, which teaches nothing", place)


def _same(verifier: Verifier, built: Mapping[TaskRef, _Built]) -> None:
    """Build and score the same in another process; raise ``TaskSetError`` if it differs."""
    for task, here in reversed([*built.items()]):
        ((prompt, right),) = _examples(verifier, [task])
        if prompt != here.prompt:
            raise _unequal(task, f"its question is {differing(prompt, here.prompt)}")
        if right != here.right:
            raise _unequal(task, f"its answer is {right!r:.60}, not {here.right!r:.60}")
        rewards = _verdict(verifier, task, here.answers).rewards
        for answer, there, before in zip(here.answers, rewards, here.rewards, strict=True):
            if there != before:
                raise _unequal(task, f"it scores {answer!r:.60} as {there}, not {before}")


def _unequal(task: TaskRef, what: str) -> TaskSetError:
    return TaskSetError(
        f"env {task.env!r} level {task.level} differs in another process with seed {task.seed}: "
        f"{what}: derive all randomness from the number (docs/guides/own_tasks.md)"
    )


def _tasks(spec: EnvSpec, level: int) -> list[TaskRef]:
    rng = random.Random(f"replay-trial/{spec.name}/{level}")
    return [TaskRef(spec.name, level, rng.getrandbits(63)) for _ in range(EPISODES)]


def _played(verifier: Verifier, spec: EnvSpec) -> list[_Episode]:
    found: list[_Episode] = []
    for level in range(len(spec.levels)):
        tasks = _tasks(spec, level)
        episodes = [
            _Episode(task, prompt, random.Random(task.seed))
            for task, (prompt, _) in zip(tasks, _examples(verifier, tasks), strict=True)
        ]
        numbered = dict(enumerate(episodes, len(found)))
        while left := {key: each for key, each in numbered.items() if each.reward is None}:
            _play_turn(verifier, left)
        if all(each.fault for each in episodes):
            place = f"env {spec.name!r} level {level}"
            raise TaskSetError(f"{place} cannot be used: no step succeeds: {episodes[0].fault}")
        found += episodes
    return found


def _play_turn(verifier: Verifier, episodes: Mapping[int, _Episode]) -> None:
    moves = [each.move(key) for key, each in episodes.items()]
    for each, moved in zip(episodes.values(), verifier.play(moves), strict=True):
        if isinstance(moved, VerifierError):
            raise _failed(each.task, moved, f"turn {len(each.texts[::2])}: ")
        each.over, each.reward, each.fault = moved.over, moved.reward, moved.fault
        if moved.reward is None:
            each.texts.append(moved.observation)


def _replay(verifier: Verifier, episode: _Episode) -> None:
    """Replay an episode as a peer does; raise ``TaskSetError`` if it differs."""
    ((prompt, _),) = _examples(verifier, [episode.task])
    if prompt != episode.prompt:
        raise _otherwise(episode.task, f"it begins with {differing(prompt, episode.prompt)}")
    try:
        turns = TrajectoryTexts(tuple(episode.texts), truncated=not episode.over)
        (reward,) = verifier.verify(episode.task, [turns]).rewards
    except VerifierError as refused:
        raise _otherwise(episode.task, str(refused)) from refused
    if reward != episode.reward:
        raise _otherwise(episode.task, f"its reward is {reward}, not {episode.reward}")


def _examples(verifier: Verifier, tasks: Sequence[TaskRef]) -> list[tuple[str, str | None]]:
    try:
        return verifier.examples(tasks)
    except VerifierError as refused:
        raise _failed(tasks[0], refused) from refused


def _failed(task: TaskRef, refused: VerifierError, before: str = "") -> TaskSetError:
    place = f"env {task.env!r} level {task.level}"
    why = str(refused).removeprefix(f"{refused.reason}: ").removeprefix(f"{place}: ")
    return TaskSetError(f"{place} cannot be used: {before}{why.removeprefix(f'{place} ')}")


def _otherwise(task: TaskRef, what: str) -> TaskSetError:
    return TaskSetError(
        f"env {task.env!r} level {task.level} has replayable = True, but differs in another "
        f"process with seed {task.seed}: {what}: {REMEDY}"
    )
