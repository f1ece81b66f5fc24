"""A model scored on a swarm's held-out tasks, apart from any run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.config.config import Config
from node.engines.engine import Sampling
from node.engines.registry import open_engine
from node.errors import NodeError
from node.evaluation.evaluator import Evaluation, Evaluator, heldout_tasks
from node.network.pinned_manifest import checked_manifest
from node.playing.limits import TurnLimits
from node.policy.policy import Policy
from node.storage.run_folder import RunFolder
from node.tasks.catalogue import allowed_by
from node.tasks.curriculum import EnvLevel, TaskSampler, served_levels
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import Manifest
from swarm.common.counters import Counters
from swarm.groups import TaskRef

CHUNK = 16
"""Tasks between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Score:
    """Mean reward and pass@k, over some tasks."""

    tasks: int
    mean_reward: float
    pass_at: dict[int, float]

    @classmethod
    def of(cls, evaluation: Evaluation, ks: Iterable[int]) -> Score:
        """Fold an evaluation."""
        pass_at = {k: evaluation.pass_at(k) for k in ks}
        return cls(len(evaluation.tasks), evaluation.mean, pass_at)


@contextmanager
def verifier_of(
    config: Config, manifest: Manifest
) -> Iterator[tuple[Verifier, tuple[EnvLevel, ...]]]:
    """A verifier of a swarm's tasks, and the ``(env, level)`` pairs that a node draws from.

    Raises:
        CatalogueError: the swarm's tasks cannot be built here.
    """
    with Verifier(manifest.catalogue, allowed_by(config.tasks), outside=False) as verifier:
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

    Args:
        samples: completions a task.
        seed: of what is sampled; the same weights then write the same. Left out, it is drawn.
        progress: told how many tasks are done.

    Raises:
        NodeError: a task cannot be built.
        CatalogueError: the swarm's tasks cannot be built here.
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
        raise NodeError(
            "held-out tasks cannot be built",
            f"{unbuilt} of {len(tasks)}",
            "Mend the family that the log names, or leave it out with tasks.weights.",
        )
    return Evaluation(
        tasks,
        tuple(row for part in parts for row in part.rewards),
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        written=tuple(group for part in parts for group in part.written),
    )


def by_family(evaluation: Evaluation) -> dict[str, Evaluation]:
    """The same, one evaluation a task family."""
    rows: dict[str, list[tuple[TaskRef, tuple[float, ...]]]] = {}
    for task, rewards in zip(evaluation.tasks, evaluation.rewards, strict=True):
        rows.setdefault(task.env, []).append((task, rewards))
    return {
        env: Evaluation(tuple(t for t, _ in pairs), tuple(r for _, r in pairs))
        for env, pairs in rows.items()
    }


def pinned_manifest(folder: RunFolder) -> Manifest:
    """The manifest of the swarm that this folder's node belongs to.

    Raises:
        NodeError: it belongs to none yet, or the file is not a manifest.
    """
    path: Path = folder.manifest
    if not path.exists():
        raise NodeError(
            "this node has no swarm yet, and so no tasks",
            path,
            "Join one with: swarm-node join, or found one with: swarm-node found.",
        )
    return checked_manifest(path.read_bytes(), str(path))
