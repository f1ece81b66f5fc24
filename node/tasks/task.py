"""A task, and the source that builds it again from nothing but its seed.

Questions kept for evaluation never appear in training: a question belongs to one split for ever,
by its own hash, whatever family, level or seed it came from. One in eight is held out.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from node.environments.environment import Episode, numpy_random
from node.tasks.sources.environments import Environments
from protocol.manifest import Extract
from swarm.groups import Split, TaskRef

_DOMAIN = b"swarm-node/1/task-chance"
_kept: ContextVar[bool] = ContextVar("kept", default=False)
"""Whether this thread is inside :func:`kept`."""


@contextmanager
def seeded(env: str, level: int, number: int) -> Iterator[None]:
    """Seed the global generators of ``random`` and numpy, and put them back afterwards.

    Some families of reasoning-gym draw from them, and would otherwise give a question or a score
    that depends on what was asked before. numpy's is seeded where it is imported already.

    Args:
        number: 63 bits; of the question, or of the task that is scored.
    """
    if not _kept.get():
        with kept(), seeded(env, level, number):
            yield
        return
    material = _DOMAIN + env.encode() + b"\0" + level.to_bytes(4, "big") + number.to_bytes(8, "big")
    seed = int.from_bytes(hashlib.sha256(material).digest()[:8], "big")
    random.seed(seed)
    if numpy := numpy_random():
        numpy.seed(seed >> 32)
    yield


@contextmanager
def kept() -> Iterator[None]:
    """Put the global generators back after work that seeds them many times.

    That costs several times what seeding does. Inside another it does nothing: the outermost puts
    them back.
    """
    if _kept.get():
        yield
        return
    numpy = numpy_random()
    before, numpys = random.getstate(), numpy.get_state() if numpy else None
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)
        random.setstate(before)
        if numpy:
            numpy.set_state(numpys)


_SEED_DOMAIN = b"swarm-node/1/task-draw"
_HELD_OUT_OF = 8
MAX_ATTEMPTS = 256


class TaskError(ValueError):
    """A task cannot be built; the message names the env and the remedy."""


class ScoringError(ValueError):
    """An env's scoring is broken: it gave something that is no reward."""


@dataclass(frozen=True, slots=True)
class Task:
    """One question, rebuilt identically by everybody from its coordinates.

    Attributes:
        prompt: the question inside the env's template.
        entry: ``question`` (str) and whatever the source needs to score an answer; where one
            exists, ``answer`` is a right one.
    """

    ref: TaskRef
    prompt: str
    entry: Mapping[str, Any]


class Questions(Protocol):
    """Questions of one env: what a reasoning-gym family, a file or a user's own task provides.

    Attributes:
        levels: number of levels.
        evaluates_text: whether scoring may evaluate (``eval``, a parser built on it) the text of
            an answer. Such an env is scored on this node's own text only.
    """

    levels: int
    evaluates_text: bool

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        """The question with this 63-bit number, the same in every process and on every machine.

        Returns a mapping with at least ``question`` (str).
        """
        ...

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """How right ``answer`` is, in [0, 1]."""
        ...


def split_of(question: str) -> Split:
    """The split that a question belongs to: held out when its SHA-256 is a multiple of eight."""
    first = hashlib.sha256(question.encode()).digest()[0]
    return Split.HELDOUT if first % _HELD_OUT_OF == 0 else Split.TRAIN


def as_text(question: object) -> str:
    """A question, once it is known to be one that can be asked and hashed.

    Raises:
        TypeError: it is no text.
        ValueError: it has half of a character, as where a text was cut inside of one.
    """
    if not isinstance(question, str):
        raise TypeError(f"a question is text, not {type(question).__name__}")
    question.encode()
    return question


def draw_number(seed: int, attempt: int) -> int:
    """The 63-bit number of the ``attempt``-th question tried for a seed."""
    material = _SEED_DOMAIN + seed.to_bytes(8, "big") + attempt.to_bytes(4, "big")
    return int.from_bytes(hashlib.sha256(material).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class TaskSource:
    """One env of a catalogue, opened: builds tasks inside a split and scores answers."""

    name: str
    template: str
    extract: Extract
    questions: Questions

    @property
    def levels(self) -> int:
        """Number of levels."""
        return self.questions.levels

    @property
    def evaluates_text(self) -> bool:
        """Whether scoring may evaluate the text of an answer."""
        return self.questions.evaluates_text

    @property
    def environment(self) -> Environments | None:
        """What its tasks are played in, where they are not answered in one turn."""
        return self.questions if isinstance(self.questions, Environments) else None

    def build(self, level: int, seed: int, split: Split = Split.TRAIN) -> Task:
        """Build the task of a seed, redrawing until the question falls into ``split``.

        Raises:
            TaskError: no such level, drawing fails, or the level has too few questions to serve
                the split.
        """
        task = TaskRef(self.name, level, seed, split)
        for number in self._numbers(task):
            entry = self._draw(level, number)
            question = self._question(level, entry)
            if split_of(question) is split:
                return Task(task, self.template.replace("{question}", question), entry)
        raise self._exhausted(task)

    async def begin(self, task: TaskRef) -> Episode:
        """Begin the episode of a task, whose question is the first observation.

        Raises:
            TaskError: as :meth:`build`; or the task is answered in one turn.
        """
        environment = self.environment
        if environment is None:
            raise TaskError(f"env {self.name!r} is answered in one turn")
        for number in self._numbers(task):
            episode = environment.episode({"level": task.level, "number": number})
            try:
                question = as_text(await episode.begin())
            except MemoryError:
                raise
            except Exception as error:
                raise self._undrawn(task.level, error) from error
            if split_of(question) is task.split:
                return episode
        raise self._exhausted(task)

    def _numbers(self, task: TaskRef) -> Iterator[int]:
        """Those of the questions that are tried for a task, in their order."""
        if not 0 <= task.level < self.levels:
            levels = f"levels 0 to {self.levels - 1}"
            raise TaskError(f"env {self.name!r} has {levels}, not {task.level}")
        if not 0 <= task.seed < 1 << 63:
            raise TaskError(f"env {self.name!r}: seed {task.seed} is not a 63-bit number")
        return (draw_number(task.seed, attempt) for attempt in range(MAX_ATTEMPTS))

    def _exhausted(self, task: TaskRef) -> TaskError:
        return TaskError(
            f"env {self.name!r} level {task.level}: no {task.split.value} question in "
            f"{MAX_ATTEMPTS} draws; it has too few different questions, widen the level's settings"
        )

    def _undrawn(self, level: int, error: Exception) -> TaskError:
        return TaskError(f"env {self.name!r} level {level} cannot draw: {error!r}")

    def _draw(self, level: int, number: int) -> Mapping[str, Any]:
        try:
            with seeded(self.name, level, number):
                return self.questions.draw(level, number)
        except MemoryError:
            raise
        except Exception as error:
            raise self._undrawn(level, error) from error

    def _question(self, level: int, entry: Mapping[str, Any]) -> str:
        try:
            return as_text(entry["question"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._undrawn(level, error) from error

    def score(self, task: Task, answer: str) -> float:
        """Reward of an extracted answer, in [0, 1].

        Raises:
            ScoringError: the env gave something that is not in [0, 1].
        """
        with seeded(self.name, task.ref.level, task.ref.seed):
            reward = float(self.questions.score(task.entry, answer))
        if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
            raise ScoringError(f"env {self.name!r} scored an answer {reward}, outside [0, 1]")
        return reward


_OPEN, _CLOSE = "<answer>", "</answer>"
_BOX = r"\boxed{"


def extract(text: str, how: Extract) -> str:
    """The answer in a completion, stripped; empty when the completion holds none.

    Args:
        text: the completion's own text.
        how: ``text`` takes all of it, ``answer_tag`` the inside of the last
            ``<answer>…</answer>``, ``boxed`` the inside of the last ``\\boxed{…}``.
    """
    match how:
        case "text":
            return text.strip()
        case "answer_tag":
            return _last_tagged(text).strip()
        case "boxed":
            return _last_boxed(text).strip()
    assert_never(how)


def _last_tagged(text: str) -> str:
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, max(end, 0))
    return text[start + len(_OPEN) : end] if 0 <= start < end else ""


def _last_boxed(text: str) -> str:
    start = text.rfind(_BOX)
    if start < 0:
        return ""
    depth = 1
    for position in range(start + len(_BOX), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len(_BOX) : position]
    return ""
