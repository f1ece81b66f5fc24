"""A question for the policy: its task if recognized, its answer and the reward."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from node.errors import UsageError
from node.policy.policy import Policy, stream
from node.tasks.scorer import Scorer, buildable
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import QUESTION, EnvSpec, Manifest
from swarm.groups import Split, TaskRef
from swarm.verification import JudgeRefused

BATCH = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt (without chat template) and its task, None if answers cannot be scored."""

    prompt: str
    task: TaskRef | None


def drawn(scorer: Scorer, levels: Sequence[tuple[str, int]], rng: random.Random) -> Question:
    """Sample a held-out question; raises ``JudgeRefused`` if it cannot be built."""
    env, level = rng.choice(levels)
    task = TaskRef(env, level, rng.getrandbits(63), Split.HELDOUT)
    (prompt,) = scorer.prompts([task])
    return Question(prompt, task)


def recognised(
    scorer: Scorer,
    specs: Sequence[EnvSpec],
    levels: Sequence[tuple[str, int]],
    text: str,
    rng: random.Random,
    most: int,
) -> Question:
    """Find ``text`` among at most ``most`` sampled tasks; raises ``JudgeRefused``.

    Task families only sample questions, so only families with few distinct ones are recognized
    reliably.
    """
    around = {spec.name: spec.template.split(QUESTION) for spec in specs}
    wanted = text.strip()
    for tasks in _batches(levels, rng, most):
        for task, prompt in zip(tasks, buildable(scorer, tasks, lambda *_: None), strict=True):
            before, after = around[task.env]
            question = (prompt or "").removeprefix(before).removesuffix(after)
            if prompt is not None and wanted in (question.strip(), prompt.strip()):
                return Question(prompt, task)
    return Question(text, None)


def _batches(
    levels: Sequence[tuple[str, int]], rng: random.Random, most: int
) -> Iterator[list[TaskRef]]:
    kinds = [(env, level, split) for env, level in levels for split in Split]
    for begin in range(0, most, BATCH):
        yield [
            TaskRef(env, level, rng.getrandbits(63), split)
            for n in range(begin, min(begin + BATCH, most))
            for env, level, split in [kinds[n % len(kinds)]]
        ]


LOOKED_AT = 4096  # tasks sampled to recognize a typed question, which takes seconds


def question_of(
    verifier: Verifier,
    manifest: Manifest,
    levels: Sequence[tuple[str, int]],
    text: str | None,
    family: str | None,
) -> Question:
    """Return the typed question, or a sampled held-out one of ``family``, if any.

    Raises ``UsageError`` for an unknown family or an empty text, ``JudgeRefused`` if unbuildable.
    """
    if family is not None:
        served = dict.fromkeys(env for env, _ in levels)
        levels = [pair for pair in levels if pair[0] == family]
        if not levels:
            raise UsageError("--family", family, f"This swarm has: {', '.join(served)}.")
    rng = random.Random()
    if text is None:
        return drawn(verifier, levels, rng)
    if not text.strip():
        raise UsageError("QUESTION", text, "Type one, or leave it out to have one drawn.")
    return recognised(verifier, manifest.catalogue, levels, text, rng, LOOKED_AT)


def pieces(
    policy: Policy, prompt: str, max_new_tokens: int, temperature: float | None = None
) -> Iterator[str]:
    """Stream an answer; raises ``UsageError`` if the prompt leaves no room for it."""
    ids = policy.encode_prompt(prompt)
    if len(ids) >= policy.context_length:
        remedy = "Ask a shorter one."
        raise UsageError("QUESTION", f"{len(ids)} tokens, context {policy.context_length}", remedy)
    return stream(policy, ids, max_new_tokens=max_new_tokens, temperature=temperature)


def opinion(verifier: Verifier, task: TaskRef | None, text: str) -> tuple[float | None, str | None]:
    """Return an answer's reward, or the reason why there is none."""
    if task is None:
        return None, "no family of this swarm is known to ask this"
    try:
        return verifier.judge(task, [text]).rewards[0], None
    except JudgeRefused as refused:
        return None, str(refused)
