"""The seam between admission and whatever can rebuild a task and score answers to it.

Admission lives without tasks, verifiers or worker processes; the node hands it a judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

UNKNOWN_ENV = "unknown_env"
EVALUATES_TEXT = "evaluates_text"
TIMEOUT = "timeout"
CRASHED = "crashed"
UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge found for one group.

    Attributes:
        prompt: the task's question as this node puts it to a policy, before any chat template.
        rewards: in [0, 1], one for each text, in their order.
    """

    prompt: str
    rewards: tuple[float, ...]


class JudgeRefused(Exception):  # noqa: N818 - an answer, not a fault
    """The judge gives no verdict on this group, and the group is lost.

    Attributes:
        reason: snake_case name, used in counters: ``unknown_env`` (this node has no such family,
            version or level), ``evaluates_text`` (its verifier executes what it reads),
            ``timeout`` and ``crashed`` (the worker hung or died on one of the texts),
            ``unavailable`` (no worker can be had now).
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Judge(Protocol):
    """Rebuilds a task from its coordinates and scores answers to it."""

    def judge(self, env: str, level: int, seed: int, texts: Sequence[str]) -> Verdict:
        """Score ``texts`` (the policy's own words, environment text left out). Blocks.

        Called from worker threads, by several at once. Texts come from strangers: an
        implementation contains whatever they do, and answers or raises within bounded time.

        Raises:
            JudgeRefused: there is no verdict; every other exception is a bug.
        """
        ...
