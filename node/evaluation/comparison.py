"""Evaluate policies on held-out tasks, compare two of them, and ask one a question."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from node.config.config import Config
from node.engines.engine import Sampling
from node.engines.registry import open_engine
from node.engines.transformers.agreement import check_agreement
from node.errors import NodeError, UsageError
from node.evaluation.evaluator import Evaluation, Evaluator, heldout_tasks
from node.network.pinned_manifest import checked_manifest
from node.policy.policy import Policy, stream
from node.storage.run_folder import RunFolder
from node.tasks.curriculum import EnvLevel, EnvLevels, TaskSampler, chosen_levels, served_levels
from node.tasks.scorer import Scorer, buildable
from node.tasks.task_set import allowed_by
from node.tasks.verifier.verifier import Verifier
from node.trajectories.trajectory import TurnLimits
from protocol.manifest import QUESTION, Manifest
from swarm.common.counters import Counters
from swarm.common.util import t95
from swarm.groups import Split, TaskRef
from swarm.verification import VerifierError


@dataclass(frozen=True, slots=True)
class ScoreEstimate:
    """A mean over ``values``, one per seed, and its standard error (None from one)."""

    mean: float
    error: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> ScoreEstimate:
        n = len(values)
        return cls(fmean(values), stdev(values) / math.sqrt(n) if n > 1 else None, tuple(values))

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
    """Mean rewards of two policies, 0 to 1; ``gain`` is second minus first, by task.

    Tasks may ask the same question; ``questions`` counts different ones.
    """

    tasks: int
    questions: int
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
        rows = [Disputed(task, text, fmean(a), fmean(b)) for task, text, a, b in columns]
        families: dict[str, list[Disputed]] = {}
        for row in rows:
            families.setdefault(row.task.env, []).append(row)
        disputed = [row for row in rows if row.first != row.second]
        disputed.sort(key=lambda row: -abs(row.second - row.first))
        return cls(
            _difference(rows),
            {env: _difference(group) for env, group in families.items()},
            tuple(disputed),
        )


def _difference(rows: list[Disputed]) -> Difference:
    gains: dict[object, list[float]] = {}
    for row in rows:
        question = row.task if row.prompt is None else (row.task.env, row.prompt)
        gains.setdefault(question, []).append(row.second - row.first)
    return Difference(
        tasks=len(rows),
        questions=len(gains),
        first=fmean(row.first for row in rows),
        second=fmean(row.second for row in rows),
        gain=_gain(list(gains.values())),
    )


def _gain(by_question: Sequence[Sequence[float]]) -> ScoreEstimate:
    """Estimate the mean of all gains, with one value for each question.

    A repeated question says nothing more about others, so the error is that of clusters (Miller,
    arXiv:2411.00640).
    """
    mean = fmean(gain for gains in by_question for gain in gains)
    ratio = len(by_question) / sum(map(len, by_question))
    return ScoreEstimate.of(
        [ratio * math.fsum(gains) + (1.0 - ratio * len(gains)) * mean for gains in by_question]
    )


CHUNK = 16  # tasks between two progress reports
PATIENCE = 8  # draws per question found that may repeat one, before no other is looked for


@dataclass(frozen=True, slots=True)
class Score:
    """Mean reward and pass@k over some tasks."""

    tasks: int
    mean_reward: float
    pass_at: dict[int, float]

    @classmethod
    def of(cls, evaluation: Evaluation, ks: Iterable[int]) -> Score:
        return cls(len(evaluation.tasks), evaluation.mean, {k: evaluation.pass_at(k) for k in ks})


def of_families(levels: EnvLevels, families: Sequence[str] | None) -> EnvLevels:
    """Return the levels of some families (None: all); raise ``UsageError`` for an unknown one."""
    served = dict.fromkeys(env for env, _ in levels)
    for family in families or ():
        if family not in served:
            raise UsageError("--family", family, f"This swarm has: {', '.join(served)}.")
    return [pair for pair in levels if not families or pair[0] in families]


@contextmanager
def verifier_of(
    config: Config, manifest: Manifest
) -> Iterator[tuple[Verifier, tuple[EnvLevel, ...]]]:
    """Yield a swarm's verifier and ``(env, level)`` pairs; raises ``TaskSetError``."""
    allowed = allowed_by(config.tasks, config.sandbox)
    with Verifier(manifest.catalogue, allowed, outside=False) as verifier:
        levels = served_levels(manifest.catalogue, verifier.start())
        levels = chosen_levels(levels, config.tasks.levels)
        yield verifier, TaskSampler(levels, config.tasks.weights, Random(0)).levels


def evaluate(
    config: Config,
    manifest: Manifest,
    policy: Policy,
    *,
    tasks: int,
    samples: int,
    seed: int | None = None,
    families: Sequence[str] | None = None,
    progress: Callable[[int, int], Any] = lambda total, done: None,
) -> Evaluation:
    """Sample and score ``policy`` on the first ``tasks`` held-out tasks of a swarm, or fewer.

    A level's tasks ask different questions. ``samples`` is per task, ``families`` are those asked
    (None: all); ``progress`` gets the number of tasks, and those done. Raises ``NodeError``,
    ``TaskSetError``, or ``UsageError`` for an unknown family.
    """
    with verifier_of(config, manifest) as (verifier, all_levels):
        levels = of_families(all_levels, families)
        counters = Counters()
        if config.engine.backend == "transformers":
            check_agreement(policy, trains=False)
        sampling = Sampling(config.engine.temperature, config.engine.max_new_tokens, seed=seed)
        limits = TurnLimits.of(config.engine)
        refs = distinct(verifier, heldout_tasks(levels, tasks))
        evaluations: list[Evaluation] = []
        with closing(open_engine(config, policy, counters)) as engine:
            for start in range(0, len(refs), CHUNK):
                batch = refs[start : start + CHUNK]
                evaluator = Evaluator(policy, engine, verifier, batch, sampling, counters, limits)
                evaluations.append(evaluator.evaluate(samples))
                progress(len(refs), start + len(batch))
    return _joined(refs, evaluations)


def distinct(scorer: Scorer, tasks: Sequence[TaskRef]) -> tuple[TaskRef, ...]:
    """Return held-out tasks without repeated questions, others of the same level in their place.

    There are fewer if a level has too few. Tasks of environments differ in what their prompts hide.
    """
    chosen: dict[Hashable, TaskRef] = {}
    numbers = Counter((task.env, task.level) for task in tasks)
    vain_draws = 0
    while tasks and vain_draws <= PATIENCE * len(chosen):
        before, repeated = len(chosen), list[tuple[str, int]]()
        prompts = buildable(scorer, tasks, lambda number, error: None)
        for task, prompt in zip(tasks, prompts, strict=True):
            hides = prompt is None or task.env in scorer.environments
            question = task if hides else (task.env, task.level, prompt)
            if chosen.setdefault(question, task) is not task:
                repeated.append((task.env, task.level))
        vain_draws = 0 if len(chosen) > before else vain_draws + len(tasks)
        tasks = [TaskRef.heldout(*level, numbers[level] + n) for n, level in enumerate(repeated)]
        numbers.update(dict.fromkeys(repeated, len(repeated)))
    return tuple(chosen.values())


def _joined(tasks: tuple[TaskRef, ...], results: Sequence[Evaluation]) -> Evaluation:
    if unbuilt := sum(result.unbuilt for result in results):
        remedy = "Repair the family that the log names, or exclude it with tasks.weights."
        raise NodeError(
            "held-out tasks cannot be built or scored", f"{unbuilt} of {len(tasks)}", remedy
        )
    return Evaluation(
        tasks,
        tuple(row for result in results for row in result.rewards),
        prompts=tuple(prompt for result in results for prompt in result.prompts),
        trajectories=tuple(group for result in results for group in result.trajectories),
    )


def by_family(evaluation: Evaluation) -> dict[str, Evaluation]:
    rows: dict[str, list[tuple[TaskRef, tuple[float, ...]]]] = {}
    for task, rewards in zip(evaluation.tasks, evaluation.rewards, strict=True):
        rows.setdefault(task.env, []).append((task, rewards))
    return {
        env: Evaluation(tuple(t for t, _ in pairs), tuple(r for _, r in pairs))
        for env, pairs in rows.items()
    }


def manifest_of(folder: RunFolder) -> Manifest:
    """Return the folder's manifest; raises ``NodeError`` if it is missing or invalid."""
    path: Path = folder.manifest
    if not path.exists():
        remedy = "Join one with: swarm-node join, or create one with: swarm-node create."
        raise NodeError("this node has no swarm yet, and therefore no tasks", path, remedy)
    return checked_manifest(path.read_bytes(), str(path))


BATCH = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt (without chat template) and its task, None if answers cannot be scored."""

    prompt: str
    task: TaskRef | None


def drawn(scorer: Scorer, levels: EnvLevels, rng: Random) -> Question:
    """Sample a held-out question of a level that has some; raises ``NodeError`` if none has."""
    for env, level in rng.sample(levels, len(levels)):
        task = TaskRef(env, level, rng.getrandbits(63), Split.HELDOUT)
        try:
            (prompt,) = scorer.prompts([task])
        except VerifierError as error:
            last_error = error
        else:
            return Question(prompt, task)
    remedy = "Type a question, or name another --family."
    raise NodeError("no held-out question can be built", last_error, remedy) from last_error


def _batches(levels: EnvLevels, rng: Random, limit: int) -> Iterator[list[TaskRef]]:
    triples = [(env, level, split) for env, level in levels for split in Split]
    for start in range(0, limit, BATCH):
        yield [
            TaskRef(env, level, rng.getrandbits(63), split)
            for n in range(start, min(start + BATCH, limit))
            for env, level, split in [triples[n % len(triples)]]
        ]


LOOKED_AT = 4096  # tasks sampled to recognize a typed question, which takes seconds


def question_of(
    verifier: Verifier, manifest: Manifest, levels: EnvLevels, text: str | None, family: str | None
) -> Question:
    """Return the typed question, or a sampled held-out one of ``family``, if any.

    A typed one is looked for among sampled tasks; only families with few distinct questions are
    recognized reliably. Another text is asked as it stands, without the words that a task's prompt
    has around its question. Raises ``UsageError`` for an unknown family or an empty text,
    ``NodeError`` if there is no held-out question, ``VerifierError`` if a typed one is compared
    with tasks that cannot be built.
    """
    levels = of_families(levels, None if family is None else [family])
    if text is None:
        return drawn(verifier, levels, Random())
    if not (wanted := text.strip()):
        raise UsageError(
            "QUESTION", repr(text), "Type a question, or omit it for a random task sample."
        )
    affixes = {spec.name: spec.template.split(QUESTION) for spec in manifest.catalogue}
    rng = Random(text)  # the same question is recognized each time, or never
    for tasks in _batches(levels, rng, LOOKED_AT):
        for task, prompt in zip(tasks, buildable(verifier, tasks, lambda *_: None), strict=True):
            prefix, suffix = affixes[task.env]
            question = (prompt or "").removeprefix(prefix).removesuffix(suffix)
            if prompt is not None and wanted in (question.strip(), prompt.strip()):
                return Question(prompt, task)
    return Question(text, None)


def pieces(
    policy: Policy, prompt: str, max_new_tokens: int, temperature: float | None = None
) -> Iterator[str]:
    """Stream an answer; raises ``UsageError`` if the prompt leaves no room for it."""
    ids = policy.encode_prompt(prompt)
    if len(ids) >= policy.context_length:
        remedy = "Ask a shorter question."
        raise UsageError("QUESTION", f"{len(ids)} tokens, context {policy.context_length}", remedy)
    return stream(policy, ids, max_new_tokens=max_new_tokens, temperature=temperature)


def silence(text: str, question: Question, temperature: float | None = None) -> str | None:
    """Return why an answer has no text and what to do; None if it has some."""
    if text.strip():
        return None
    if temperature is not None:
        return "nothing: the sampled completion ended before any text; ask again for another"
    reason = "nothing: the most probable completion is empty"
    task = "" if question.task else ", or use a task sample of this swarm: ask without QUESTION"
    return f"{reason}; swarm-node ask --temperature 1 samples one{task}"


def opinion(verifier: Verifier, task: TaskRef | None, text: str) -> tuple[float | None, str | None]:
    """Return an answer's reward, or the reason why there is none."""
    if task is None:
        return None, "it was not found among the swarm's tasks"
    try:
        return verifier.verify(task, [text]).rewards[0], None
    except VerifierError as error:
        return None, str(error)
