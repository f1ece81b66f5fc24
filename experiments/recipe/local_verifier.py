"""Verifier in this process, without a sandbox, for text that no peer wrote.

Families that evaluate text stay closed. A simulated swarm shares one instance, which computes each
result once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache

from node.environments.environment import EpisodeError, finished
from node.environments.own_file import NotReplayed
from node.tasks.scorer import Move, Moved, OpenEnv, Scorer, score, settled
from node.tasks.task import ScoringError, Task, TaskError, TaskSource, kept
from node.tasks.task_set import Allowed, open_envs
from node.tasks.verifier.worker import LiveEpisodes
from protocol.manifest import EnvSpec
from swarm.groups import TaskRef
from swarm.verification import (
    CRASHED,
    NOT_REPLAYABLE,
    NOT_REPLAYED,
    UNKNOWN_ENV,
    Answer,
    Scored,
    Scores,
    Submission,
    VerifierError,
    one_outcome,
)

REMEMBERED = 4096  # Tasks, and results: some rounds of a small swarm.


def verbatim_sources(
    specs: Sequence[EnvSpec],
) -> tuple[dict[str, TaskSource], dict[str, str]]:
    """Open envs as :func:`node.tasks.task_set.open_envs`, to compare every character of answers.

    Tiny models write an answer and nothing else, and all results were measured in this way.
    """
    sources, closed = open_envs(specs, Allowed())
    return {name: replace(source, verbatim=True) for name, source in sources.items()}, closed


class LocalVerifier(Scorer):
    """Return the results of :class:`node.tasks.verifier.verifier.Verifier`, in this process.

    Without ``verbatim`` it reads answers as nodes do. Raises TaskSetError if the task set cannot be
    opened here.
    """

    def __init__(self, specs: Sequence[EnvSpec], *, verbatim: bool = True) -> None:
        opened = verbatim_sources(specs) if verbatim else open_envs(specs, Allowed())
        self._sources, self._closed = opened
        self._opened = {name: OpenEnv.of(source) for name, source in self._sources.items()}
        self._built = lru_cache(REMEMBERED)(self._build)
        self._verified = lru_cache(REMEMBERED)(self._verify)
        self._live = LiveEpisodes()

    def start(self) -> tuple[str, ...]:
        return tuple(self._sources)

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        return [self._built(task).prompt for task in tasks]

    @property
    def environments(self) -> frozenset[str]:
        return frozenset(name for name, each in self._sources.items() if each.environment)

    @property
    def opened_envs(self) -> Mapping[str, OpenEnv]:
        return self._opened

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        with kept():
            return [settled(finished(self._played(move))) for move in moves]

    async def _played(self, move: Move) -> Moved:
        try:
            source = self._source(move.task)
            live, final = self._live, move.final
            return await live.move(move.key, source, move.task, move.actions, final=final)
        except VerifierError as refused:
            return refused
        except TaskError as error:
            return VerifierError(UNKNOWN_ENV, str(error))
        except (EpisodeError, NotReplayed) as error:
            return VerifierError(CRASHED, str(error))

    def verify(
        self, task: TaskRef, texts: Sequence[Answer], *, seconds: float | None = None
    ) -> Scores:
        """Rebuild one task and score answers to it; ``seconds`` has no effect."""
        return self._verified(task, tuple(texts))

    def verify_some(
        self, asked: Sequence[Submission], *, seconds: float | None = None
    ) -> Sequence[Scored]:
        """Score the first group only: more per call saves nothing here."""
        first = asked[0]
        return one_outcome(lambda: self.verify(first.task, first.texts))

    def _source(self, ref: TaskRef) -> TaskSource:
        if ref.env not in self._sources:
            why = self._closed.get(ref.env, f"{ref.env!r} is not served here")
            raise VerifierError(UNKNOWN_ENV, why)
        return self._sources[ref.env]

    def _verify(self, ref: TaskRef, texts: tuple[Answer, ...]) -> Scores:
        if ref.env in self.unrepeatable:
            raise VerifierError(NOT_REPLAYABLE, f"env {ref.env!r} never answers twice alike")
        with kept():
            task = self._built(ref)
            try:
                scores = score(self._sources[ref.env], task, texts)
            except NotReplayed as error:
                raise VerifierError(NOT_REPLAYED, str(error)) from error
            except (ScoringError, RecursionError) as error:
                raise VerifierError(CRASHED, str(error)) from error
        return Scores(task.prompt, tuple(scores.rewards))

    def _build(self, ref: TaskRef) -> Task:
        source = self._source(ref)
        try:
            return source.build(ref.level, ref.seed, ref.split)
        except TaskError as error:
            raise VerifierError(UNKNOWN_ENV, str(error)) from error
