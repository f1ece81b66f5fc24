"""Check that a task set opens and that its environments replay as declared.

Episodes are played in one process and replayed in others. These differ in all that an environment
must not depend on: set order, addresses, the clock, system randomness and earlier episodes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from node.environments.own_file import differing, guess
from node.errors import TaskSetError
from node.tasks.scorer import Move
from node.tasks.task_set import Allowed
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import ENVIRONMENT, EnvSpec
from swarm.groups import TaskRef
from swarm.verification import JudgeRefused, TrajectoryTexts

EPISODES = 4  # Per level.
TURNS = 16  # Maximum per episode.
PLAYS, REPLAY = 1, (2, 3)  # Hash seeds of the process that plays and of those that replay.
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


@dataclass(slots=True)
class _Episode:
    """An episode in progress; ``texts`` are turns and observations, alternately."""

    task: TaskRef
    prompt: str
    chance: random.Random
    texts: list[str] = field(default_factory=list)
    over: bool = False
    reward: float | None = None

    def move(self, key: int) -> Move:
        self.texts.append(guess([self.prompt, *self.texts[-1:]], self.chance))
        turns = tuple(self.texts[::2])
        return Move(key, self.task, turns, final=len(turns) == TURNS)


def try_replays(specs: Sequence[EnvSpec], allowed: Allowed) -> Trial:
    """Open a task set, play its environments and replay them.

    Raises TaskSetError: a family cannot be opened or played, or a replayable one differs (the
    message says how); JudgeRefused: no process can be started (``unavailable``).
    """
    played = [spec for spec in specs if spec.source == ENVIRONMENT]
    with Verifier(specs, allowed, outside=False, hash_seed=PLAYS) as verifier:
        here, closed = verifier.start(), dict(verifier.closed)
        unshared = tuple(name for name in here if name in verifier.unrepeatable)
        replayable = [spec for spec in played if spec.name in {*here} - {*unshared}]
        episodes = [each for spec in replayable for each in _played(verifier, spec)]
    for hash_seed in REPLAY if episodes else ():
        with Verifier(replayable, allowed, outside=False, hash_seed=hash_seed) as verifier:
            for episode in reversed(episodes):
                _replay(verifier, episode)
    return Trial(tuple(s.name for s in replayable), len(episodes), unshared, closed)


def _played(verifier: Verifier, spec: EnvSpec) -> list[_Episode]:
    found: list[_Episode] = []
    for level in range(len(spec.levels)):
        rng = random.Random(f"replay-trial/{spec.name}/{level}")
        tasks = [TaskRef(spec.name, level, rng.getrandbits(63)) for _ in range(EPISODES)]
        prompts = _prompts(verifier, tasks)
        episodes = [
            _Episode(task, prompt, random.Random(task.seed))
            for task, prompt in zip(tasks, prompts, strict=True)
        ]
        numbered = dict(enumerate(episodes, len(found)))
        while left := {key: each for key, each in numbered.items() if each.reward is None}:
            _play_turn(verifier, left)
        found += episodes
    return found


def _play_turn(verifier: Verifier, episodes: Mapping[int, _Episode]) -> None:
    moves = [each.move(key) for key, each in episodes.items()]
    for each, moved in zip(episodes.values(), verifier.play(moves), strict=True):
        if isinstance(moved, JudgeRefused):
            raise _failed(each.task, f"turn {len(each.texts[::2])}: {moved}")
        each.over, each.reward = moved.over, moved.reward
        if moved.reward is None:
            each.texts.append(moved.observation)


def _replay(verifier: Verifier, episode: _Episode) -> None:
    """Replay an episode as a peer does; raise ``TaskSetError`` if it differs."""
    (prompt,) = _prompts(verifier, [episode.task])
    if prompt != episode.prompt:
        raise _otherwise(episode.task, f"it begins with {differing(prompt, episode.prompt)}")
    try:
        turns = TrajectoryTexts(tuple(episode.texts), cut=not episode.over)
        (reward,) = verifier.judge(episode.task, [turns]).rewards
    except JudgeRefused as refused:
        raise _otherwise(episode.task, str(refused)) from refused
    if reward != episode.reward:
        raise _otherwise(episode.task, f"its reward is {reward}, not {episode.reward}")


def _prompts(verifier: Verifier, tasks: Sequence[TaskRef]) -> list[str]:
    try:
        return verifier.prompts(tasks)
    except JudgeRefused as refused:
        raise _failed(tasks[0], str(refused)) from refused


def _failed(task: TaskRef, why: str) -> TaskSetError:
    return TaskSetError(f"env {task.env!r} level {task.level} cannot be played: {why}")


def _otherwise(task: TaskRef, what: str) -> TaskSetError:
    return TaskSetError(
        f"env {task.env!r} level {task.level} has replayable = True, but differs in another "
        f"process with seed {task.seed}: {what}: {REMEDY}"
    )
