"""The seam between admission and whatever can rebuild a task and score answers to it.

Admission lives without tasks, verifiers or worker processes; the node hands it a judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
        seconds: what scoring took, starting a worker left out; None where nobody looked.
    """

    prompt: str
    rewards: tuple[float, ...]
    seconds: float | None = field(default=None, compare=False)


class JudgeRefused(Exception):  # noqa: N818 - an answer, not a fault
    """The judge gives no verdict on this group, and the group is lost.

    Attributes:
        reason: snake_case name, used in counters: ``unknown_env`` (this node has no such family,
            version or level), ``evaluates_text`` (its verifier executes what it reads),
            ``timeout`` and ``crashed`` (the worker hung or died on one of the texts),
            ``unavailable`` (no worker can be had now).
        seconds: as in :class:`Verdict`.
    """

    def __init__(self, reason: str, detail: str = "", seconds: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.seconds = seconds


class Judge(Protocol):
    """Rebuilds a task from its coordinates and scores answers to it."""

    def judge(
        self,
        env: str,
        level: int,
        seed: int,
        texts: Sequence[str],
        *,
        seconds: float | None = None,
    ) -> Verdict:
        """Score ``texts`` (the policy's own words, environment text left out). Blocks.

        Within ``seconds`` where they are given and fewer than the implementation allows itself.

        Called from worker threads, by several at once. Texts come from strangers: an
        implementation contains whatever they do, and answers or raises within bounded time.

        Raises:
            JudgeRefused: there is no verdict; every other exception is a bug.
        """
        ...
