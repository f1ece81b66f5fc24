"""The last rollouts of a node, for people to read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 24
"""Rollouts that a node keeps to be shown."""
LONGEST = 4000
"""Characters of a prompt or a completion that are kept."""


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """One completion of the policy's or of a peer's, as the node judged it.

    Attributes:
        round: in whose update it was.
        env: task family.
        level: index into its levels.
        prompt: the question, before any chat template.
        completion: what was answered; of long texts the middle is left out.
        reward: this node's own verdict, 0 to 1.
        cut: whether the length cap ended it.
        author: peer id of who wrote it; ``None`` for this node.
    """

    round: int
    env: str
    level: int
    prompt: str
    completion: str
    reward: float
    cut: bool
    author: str | None = None


class LastRollouts:
    """Keeps the newest rollouts; written and read by several threads."""

    def __init__(self) -> None:
        self._kept: deque[ShownRollout] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, rollouts: Sequence[ShownRollout]) -> None:
        """Keep these, the newest last, and let go of as many old ones."""
        with self._lock:
            self._kept.extend(rollouts)

    def all(self) -> list[ShownRollout]:
        """What is kept, the newest last."""
        with self._lock:
            return list(self._kept)


def shortened(text: str, most: int) -> str:
    """The text, or its two ends in ``most`` characters with a mark of what is missing between."""
    if len(text) <= most:
        return text
    left_out = f" … ({len(text)} characters) … "
    room = max(most - len(left_out), 2)
    end = room // 2
    return f"{text[: room - end]}{left_out}{text[-end:]}"
