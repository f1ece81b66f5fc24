"""What admission knows of one frame while it looks at it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.frame import OpenFrame
from protocol.rollout import Group
from swarm.judge import Verdict
from swarm.pooled_group import PooledGroup
from swarm.refused_groups import RefusedGroup


class Told(NamedTuple):
    """A group as its author tells it, and the bytes that it is on the wire."""

    group: Group
    plain: bytes


@dataclass(slots=True)
class Findings:
    """What came of one frame so far.

    Attributes:
        author: who answers for the frame.
        opened: the frame, once that went well.
        now: unix time at which it was begun with, seconds.
        pending: groups that wait for their verdict.
        proven: whether the author had standing when the frame came.
        seconds: of verification that it took.
        admitted: groups that passed.
        refused: refusals by reason.
        shown: those of the refused that could be read.
        stalls: groups that hung or killed the verifier.
    """

    author: bytes
    proven: bool = False
    opened: OpenFrame | None = None
    pending: list[Told] = field(default_factory=list)
    now: float = 0.0
    seconds: float = 0.0
    admitted: list[PooledGroup] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    shown: list[RefusedGroup] = field(default_factory=list)
    stalls: int = 0

    def refuse(self, reason: str, group: Group, verdict: Verdict | None = None) -> None:
        """Note that a group is refused, and what was found of it."""
        self.refused[reason] += 1
        found = (verdict.prompt, verdict.rewards) if verdict else ()
        self.shown.append(RefusedGroup(self.author, group, reason, self.now, *found))
