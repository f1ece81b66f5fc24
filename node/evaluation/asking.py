"""A question put to a policy: which one it is, the answer as it is written, the verifier's word."""

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
"""Instances of a swarm's families among which a typed question is looked for: seconds."""


def question_of(
    verifier: Verifier,
    manifest: Manifest,
    levels: Sequence[tuple[str, int]],
    text: str | None,
    family: str | None,
) -> Question:
    """The question that was typed, or where none was, one that nobody trains on.

    Args:
        levels: ``(env, level)`` pairs that a node draws from.
        family: of which it has to be; None is any.

    Raises:
        UsageError: there is no such family, or nothing was typed.
        JudgeRefused: it cannot be built.
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
    """A policy's answer as it is written; see :func:`node.policy.policy.stream`.

    Raises:
        UsageError: the prompt leaves no room for an answer.
    """
    ids = policy.encode_prompt(prompt)
    if len(ids) >= policy.context_length:
        raise UsageError(
            "QUESTION",
            f"{len(ids)} tokens, context {policy.context_length}",
            "Ask a shorter one.",
        )
    return stream(policy, ids, max_new_tokens=max_new_tokens, temperature=temperature)


def opinion(verifier: Verifier, task: TaskRef | None, text: str) -> tuple[float | None, str | None]:
    """The reward of an answer, or why there is none."""
    if task is None:
        return None, "no family of this swarm is known to ask this"
    try:
        return verifier.judge(task, [text]).rewards[0], None
    except JudgeRefused as refused:
        return None, str(refused)
