"""Evaluate policies on held-out tasks, and compare two of them statistically."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from node.config.config import Config
from node.engines.engine import Sampling
from node.engines.registry import open_engine
from node.errors import NodeError
from node.evaluation.evaluator import Evaluation, Evaluator, heldout_tasks
from node.network.pinned_manifest import checked_manifest
from node.policy.policy import Policy
from node.storage.run_folder import RunFolder
from node.tasks.catalogue import allowed_by
from node.tasks.curriculum import EnvLevel, TaskSampler, served_levels
from node.tasks.verifier.verifier import Verifier
from node.trajectories.trajectory import TurnLimits
from protocol.manifest import Manifest
from swarm.common.counters import Counters
from swarm.common.util import t95
from swarm.groups import TaskRef


@dataclass(frozen=True, slots=True)
class ScoreEstimate:
    """A mean over ``values``, one per seed, and its standard error (None from one)."""

    mean: float
    error: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> ScoreEstimate:
        """Return the estimate from at least one value."""
        n, mean = len(values), fmean(values)
        spread = sum((value - mean) ** 2 for value in values)
        return cls(mean, math.sqrt(spread / (n - 1) / n) if n > 1 else None, tuple(values))

    @property
    def margin(self) -> float | None:
        """Half of the 95 % t interval; None from a single seed."""
        return None if self.error is None else self.error * t95(len(self.values) - 1)

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the 95 % interval excludes 0; None from a single seed."""
        margin = self.margin
        return None if margin is None else abs(self.mean) > margin


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean rewards of two policies, 0 to 1; ``gain`` is second minus first, by task."""

    tasks: int
    first: float
    second: float
    gain: ScoreEstimate


@dataclass(frozen=True, slots=True)
class Disputed:
    """A task with different mean rewards, 0 to 1; ``prompt`` is None if not kept."""

    task: TaskRef
    prompt: str | None
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations compared, in all and by family; ``disputed`` by difference."""

    all: Difference
    families: dict[str, Difference]
    disputed: tuple[Disputed, ...]

    @classmethod
    def of(cls, first: Evaluation, second: Evaluation) -> Comparison:
        """Compare two evaluations; raises ``ValueError`` if their tasks differ."""
        if first.tasks != second.tasks:
            raise ValueError("only evaluations of the same tasks can be compared")
        prompts = first.prompts or (None,) * len(first.tasks)
        columns = zip(first.tasks, prompts, first.rewards, second.rewards, strict=True)
        rows = [
            Disputed(task, prompt, fmean(one), fmean(other)) for task, prompt, one, other in columns
        ]
        families: dict[str, list[Disputed]] = {}
        for row in rows:
            families.setdefault(row.task.env, []).append(row)
        disputed = [row for row in rows if row.first != row.second]
        disputed.sort(key=lambda row: -abs(row.second - row.first))
        return cls(
            _difference(rows),
            {env: _difference(part) for env, part in families.items()},
            tuple(disputed),
        )


def _difference(rows: list[Disputed]) -> Difference:
    return Difference(
        tasks=len(rows),
        first=fmean(row.first for row in rows),
        second=fmean(row.second for row in rows),
        gain=ScoreEstimate.of([row.second - row.first for row in rows]),
    )


CHUNK = 16  # tasks between two progress reports


@dataclass(frozen=True, slots=True)
class Score:
    """Mean reward and pass@k over some tasks."""

    tasks: int
    mean_reward: float
    pass_at: dict[int, float]

    @classmethod
    def of(cls, evaluation: Evaluation, ks: Iterable[int]) -> Score:
        """Summarize an evaluation."""
        pass_at = {k: evaluation.pass_at(k) for k in ks}
        return cls(len(evaluation.tasks), evaluation.mean, pass_at)


@contextmanager
def verifier_of(
    config: Config, manifest: Manifest
) -> Iterator[tuple[Verifier, tuple[EnvLevel, ...]]]:
    """Yield a swarm's verifier and ``(env, level)`` pairs; raises ``CatalogueError``."""
    with Verifier(
        manifest.catalogue, allowed_by(config.tasks, config.sandbox), outside=False
    ) as verifier:
        levels = served_levels(manifest.catalogue, verifier.start())
        yield verifier, TaskSampler(levels, config.tasks.weights, random.Random(0)).levels


def evaluate(
    config: Config,
    manifest: Manifest,
    policy: Policy,
    *,
    tasks: int,
    samples: int,
    seed: int | None = None,
    progress: Callable[[int], Any] = lambda done: None,
) -> Evaluation:
    """Sample and score ``policy`` on the first ``tasks`` held-out tasks of a swarm.

    ``samples`` is per task, ``seed`` makes sampling reproducible, and ``progress`` gets the number
    of finished tasks. Raises ``NodeError`` or ``CatalogueError`` if tasks cannot be built.
    """
    with verifier_of(config, manifest) as (verifier, levels):
        counters = Counters()
        engine = open_engine(config, policy, counters)
        sampling = Sampling(config.engine.temperature, config.engine.max_new_tokens, seed=seed)
        limits = TurnLimits.of(config.engine)
        chosen = heldout_tasks(levels, tasks)
        parts: list[Evaluation] = []
        for start in range(0, tasks, CHUNK):
            part = chosen[start : start + CHUNK]
            evaluator = Evaluator(policy, engine, verifier, part, sampling, counters, limits)
            parts.append(evaluator.evaluate(samples))
            progress(start + len(part))
        engine.close()
    return _joined(chosen, parts)


def _joined(tasks: tuple[TaskRef, ...], parts: Sequence[Evaluation]) -> Evaluation:
    if unbuilt := sum(part.unbuilt for part in parts):
        remedy = "Mend the family that the log names, or leave it out with tasks.weights."
        raise NodeError("held-out tasks cannot be built", f"{unbuilt} of {len(tasks)}", remedy)
    return Evaluation(
        tasks,
        tuple(row for part in parts for row in part.rewards),
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        written=tuple(group for part in parts for group in part.written),
    )


def by_family(evaluation: Evaluation) -> dict[str, Evaluation]:
    """Split an evaluation by task family."""
    rows: dict[str, list[tuple[TaskRef, tuple[float, ...]]]] = {}
    for task, rewards in zip(evaluation.tasks, evaluation.rewards, strict=True):
        rows.setdefault(task.env, []).append((task, rewards))
    return {
        env: Evaluation(tuple(t for t, _ in pairs), tuple(r for _, r in pairs))
        for env, pairs in rows.items()
    }


def pinned_manifest(folder: RunFolder) -> Manifest:
    """Return the folder's manifest; raises ``NodeError`` if it is missing or invalid."""
    path: Path = folder.manifest
    if not path.exists():
        remedy = "Join one with: swarm-node join, or found one with: swarm-node create."
        raise NodeError("this node has no swarm yet, and so no tasks", path, remedy)
    return checked_manifest(path.read_bytes(), str(path))
