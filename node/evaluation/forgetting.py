"""An alarm for a policy that gets worse on tasks it had learned."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.common.counters import Counters
from swarm.groups import TaskRef

log = logging.getLogger(__name__)

ERRORS = 3.5
IN_A_ROW = 2
"""The best of many evaluations is partly luck, so one that is worse proves nothing."""


class ForgettingAlarm:
    """Holds each evaluation against the best one before it, task by task.

    The tasks are the same every time, so most of what makes evaluations differ by chance cancels
    out. The alarm goes off once for every fall, and is armed again by an evaluation that is not
    significantly worse. It changes nothing by itself: mixing less (``mixture.external``), a lower
    ``learner.lr`` or an earlier checkpoint are the user's to choose.

    Args:
        counters: ``forgetting_alarms`` is counted here.
        tasks: that are evaluated on, in their order.
    """

    def __init__(self, counters: Counters, tasks: Sequence[TaskRef]) -> None:
        self._counters = counters
        self._tasks = [[task.env, task.level, task.seed] for task in tasks]
        self._best: Sequence[float] = ()
        self._worse = 0
        self._version: int | None = None

    def look(self, rewards: Sequence[float], version: int | None = None) -> bool:
        """Take in an evaluation, a mean reward a task; whether the alarm goes off now.

        Args:
            version: of the policy. A second look at the same one, as after a restart or in rounds
                without an update, is no further evidence.
        """
        if version is not None and version == self._version:
            return False
        self._version = version
        if not self._best or sum(rewards) >= sum(self._best):
            self._best, self._worse = rewards, 0
            return False
        self._worse = self._worse + 1 if fallen(self._best, rewards) else 0
        if self._worse != IN_A_ROW:
            return False
        self._counters.add("forgetting_alarms")
        log.warning(
            "held-out reward fell from %.3f to %.3f in %d evaluations: the policy forgets. "
            "Lower learner.lr or mixture.external, or go back to the best checkpoint with: "
            "swarm-node rollback --to best",
            sum(self._best) / len(self._best),
            sum(rewards) / len(rewards),
            IN_A_ROW,
        )
        return True

    def state_dict(self) -> dict[str, Any]:
        """What later evaluations are held against, ready for JSON."""
        return {
            "tasks": self._tasks,
            "best": list(self._best),
            "worse": self._worse,
            "version": self._version,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`; evaluations on other tasks than these are forgotten."""
        if state.get("tasks") == self._tasks:
            self._best, self._worse = state["best"], int(state["worse"])
            self._version = state.get("version")


def fallen(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether the mean difference is below zero by more than ``ERRORS`` of its standard errors."""
    differences = [b - a for a, b in zip(before, now, strict=True)]
    n, mean = len(differences), sum(differences) / len(differences)
    spread = math.sqrt(sum((d - mean) ** 2 for d in differences) / max(1, n - 1) / n)
    return mean < -ERRORS * spread
