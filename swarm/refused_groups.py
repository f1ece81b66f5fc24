"""The latest groups that were refused, for people to look at."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.rollout import Group

KEPT = 16


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """A group as its author tells it, and why it was not taken.

    Attributes:
        reason: a name of :mod:`swarm.refusals`.
        at: unix time at which its frame came, seconds.
        prompt: the question as this node's judge rebuilt it; empty where it was not asked.
        rewards: this node's own verdict; empty where there is none.
    """

    author: bytes
    group: Group
    reason: str
    at: float
    prompt: str = ""
    rewards: tuple[float, ...] = ()


class RefusedGroups:
    """Holds the newest until somebody takes them; written and read by several threads."""

    def __init__(self) -> None:
        self._kept: deque[RefusedGroup] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, groups: Iterable[RefusedGroup]) -> None:
        """Keep these, and let go of as many old ones."""
        with self._lock:
            self._kept.extend(groups)

    def take(self) -> list[RefusedGroup]:
        """What is kept, the oldest first; each is handed out once."""
        with self._lock:
            taken = list(self._kept)
            self._kept.clear()
        return taken
