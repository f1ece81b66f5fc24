"""What a question's process samples, and what its verifier says of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from node.errors import UsageError
from node.evaluation.question import Question, drawn, recognised
from node.policy.policy import Policy, stream
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import Manifest
from swarm.groups import TaskRef
from swarm.verification import JudgeRefused

LOOKED_AT = 4096
"""Tasks sampled to recognize a typed question, which takes seconds."""


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
