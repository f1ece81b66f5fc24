"""Tasks, and the sources that rebuild them from a seed and score completions.

A question's hash assigns it permanently to one split: one in eight is held out for evaluation.
"""

from __future__ import annotations

import decimal
import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from node.environments.environment import Episode, numpy_random, raised
from node.tasks.answers import read_answer
from node.tasks.sources.environments import Environments
from protocol.manifest import Extract
from swarm.groups import Split, TaskRef

_DOMAIN = b"swarm-node/1/task-chance"
_kept: ContextVar[bool] = ContextVar("kept", default=False)  # Whether inside kept().


@contextmanager
def seeded(env: str, level: int, number: int) -> Iterator[None]:
    """Seed the global ``random`` and numpy generators, and restore them afterwards.

    Some reasoning-gym families use them, and one sets the precision of ``decimal``, which is the
    usual one inside. ``number`` has 63 bits. numpy is seeded only if loaded.
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
    with decimal.localcontext(decimal.Context()):
        yield


@contextmanager
def kept() -> Iterator[None]:
    """Restore the global generators once, after work that seeds them many times."""
    if _kept.get():
        yield
        return
    numpy = numpy_random()
    state, numpy_state = random.getstate(), numpy.get_state() if numpy else None
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)
        random.setstate(state)
        if numpy:
            numpy.set_state(numpy_state)


_SEED_DOMAIN = b"swarm-node/1/task-draw"
_HELD_OUT_OF = 8
MAX_ATTEMPTS = 256


class TaskError(ValueError):
    """A task cannot be built; the message names the env and the remedy."""


class ScoringError(ValueError):
    """An env's scorer is broken: its result is not a valid reward."""


@dataclass(frozen=True, slots=True)
class Task:
    """One question, which every peer rebuilds identically from its coordinates.

    ``entry`` holds ``question`` (str), data for scoring, and a right ``answer`` if one exists.
    """

    ref: TaskRef
    prompt: str
    entry: Mapping[str, Any]


class Questions(Protocol):
    """Questions of one env: a reasoning-gym family, a file or a user's own task.

    With ``evaluates_text``, scoring may evaluate answers (``eval`` or a parser built on it). Such
    an env opens only if ``tasks.allow_code_execution`` names it.
    """

    levels: int
    evaluates_text: bool

    def draw(self, level: int, number: int) -> Mapping[str, Any] | None:
        """Return the entry of a question by 63-bit number, identical on every machine.

        An entry has a ``question``, a right ``answer`` if one is known, and whatever ``score``
        needs. With ``verbatim = True``, case, punctuation and markup of an answer have a meaning.
        None: this number gives no question that is fit to be asked.
        """

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """Return the correctness of ``answer``, in [0, 1]."""


def split_of(question: str) -> Split:
    """Return a question's split: held out if 8 divides its first SHA-256 byte."""
    first_byte = hashlib.sha256(question.encode()).digest()[0]
    return Split.HELDOUT if first_byte % _HELD_OUT_OF == 0 else Split.TRAIN


def as_text(question: object) -> str:
    """Return the text, or raise ``TypeError`` or ``ValueError`` if it is not valid."""
    if not isinstance(question, str):
        raise TypeError(f"a question is text, not {type(question).__name__}")
    question.encode()
    return question


def draw_number(seed: int, attempt: int) -> int:
    """Return the 63-bit number of the ``attempt``-th question tried for a seed."""
    material = _SEED_DOMAIN + seed.to_bytes(8, "big") + attempt.to_bytes(4, "big")
    return int.from_bytes(hashlib.sha256(material).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class TaskSource:
    """An opened env: builds tasks of a split and scores answers."""

    name: str
    template: str
    extract: Extract
    questions: Questions
    verbatim: bool = False  # compare every character, also where the tasks do not ask for that

    @property
    def levels(self) -> int:
        return self.questions.levels

    @property
    def environment(self) -> Environments | None:
        """Environment that plays its tasks; None for single-turn tasks."""
        return self.questions if isinstance(self.questions, Environments) else None

    def build(self, level: int, seed: int, split: Split = Split.TRAIN) -> Task:
        """Build a seed's task, resampling to fit ``split``, or raise ``TaskError``."""
        task = TaskRef(self.name, level, seed, split)
        for number in self._numbers(task):
            entry = self._draw(level, number)
            if entry and split_of(entry["question"]) is split:
                return Task(task, self.template.replace("{question}", entry["question"]), entry)
        raise self._exhausted(task)

    async def begin(self, task: TaskRef) -> Episode:
        """Begin the episode of a multi-turn task; raise ``TaskError`` on failure."""
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
        if not 0 <= task.level < self.levels:
            levels = f"levels 0 to {self.levels - 1}"
            raise TaskError(f"env {self.name!r} has {levels}, not {task.level}")
        if not 0 <= task.seed < 1 << 63:
            raise TaskError(f"env {self.name!r}: seed {task.seed} is not a 63-bit number")
        return (draw_number(task.seed, attempt) for attempt in range(MAX_ATTEMPTS))

    def _exhausted(self, task: TaskRef) -> TaskError:
        cause = "its reset ignores the seed, or " if self.environment else ""
        return TaskError(
            f"env {self.name!r} level {task.level}: no {task.split.value} question in "
            f"{MAX_ATTEMPTS} draws; {cause}it has too few different questions: add some, or "
            "widen the level's settings"
        )

    def _undrawn(self, level: int, error: Exception) -> TaskError:
        return TaskError(f"env {self.name!r} level {level} cannot draw: {raised(error)}")

    def _draw(self, level: int, number: int) -> Mapping[str, Any] | None:
        try:
            with seeded(self.name, level, number):
                entry = self.questions.draw(level, number)
            if entry is not None:
                if not isinstance(entry, Mapping) or "question" not in entry:
                    raise TypeError("draw returns a dictionary with the key 'question', or None")
                as_text(entry["question"])
                if isinstance(answer := entry.get("answer"), str):
                    as_text(answer)
            return entry
        except MemoryError:
            raise
        except Exception as error:
            raise self._undrawn(level, error) from error

    def written(self, task: Task) -> str | None:
        """Return a right completion in the form that the prompt asks for, None if none is known."""
        answer = task.entry.get("answer")
        if not isinstance(answer, str) or self.environment is not None:
            return None
        if "<answer>" in self.template:
            return f"<answer>{answer}</answer>"
        return f"\\boxed{{{answer}}}" if "\\boxed" in self.template else answer

    def read(self, task: Task, completion: str) -> str:
        """Return what a whole completion gives as its answer; all of it in an environment."""
        if self.environment is not None:
            return completion
        verbatim = self.verbatim or bool(task.entry.get("verbatim"))
        return read_answer(completion, task.entry.get("answer"), self.extract, verbatim=verbatim)

    def score(self, task: Task, completion: str) -> float:
        """Score what a whole completion gives as its answer.

        Raises ``ScoringError`` if the reward is not in [0, 1].
        """
        answer = self.read(task, completion)
        with seeded(self.name, task.ref.level, task.ref.seed):
            result: Any = self.questions.score(task.entry, answer)
        with suppress(TypeError, ValueError, OverflowError):
            if not isinstance(result, str) and 0.0 <= (reward := float(result)) <= 1.0:
                return reward
        problem = f"env {self.name!r} scored an answer {result!r:.60}"
        raise ScoringError(f"{problem}: a score is a number from 0 to 1")
