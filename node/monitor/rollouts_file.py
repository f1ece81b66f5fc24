"""``rollouts.jsonl``: the last rollouts of a node, in its run folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from node.errors import NodeError
from node.monitor.record import RoundRecord
from node.monitor.rollouts import LastRollouts, ShownRollout
from node.storage.atomic_files import write_atomic

SECONDS = 1.0
"""Between two writes: some rounds take a hundredth of that."""


class RolloutsFile:
    """A sink that replaces the file after a round, and at the end.

    Args:
        rollouts: what is written.
        now: seconds of a clock that only goes forward.
    """

    def __init__(
        self, path: Path, rollouts: LastRollouts, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._rollouts = rollouts
        self._now = now
        self._written = float("-inf")
        self._behind = False

    def write(self, record: RoundRecord) -> None:
        """Write what is kept, unless that was done a moment ago.

        Raises:
            NodeError: it cannot be written.
        """
        self._behind = True
        if self._now() - self._written >= SECONDS:
            self._replace()

    def close(self) -> None:
        """Write what the last rounds brought."""
        if self._behind:
            self._replace()

    def _replace(self) -> None:
        self._written = self._now()
        lines = [json.dumps(asdict(rollout)) + "\n" for rollout in self._rollouts.all()]
        write_atomic(self._path, "".join(lines).encode(), durable=False)
        self._behind = False


def read_rollouts(path: Path) -> list[ShownRollout]:
    """The rollouts of a node that runs or has run, the newest last.

    Raises:
        NodeError: there is no such file, or it is not one of ours.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [ShownRollout(**json.loads(line)) for line in lines]
    except FileNotFoundError:
        raise NodeError(
            "no rollouts yet in", path.parent, "A node keeps some from its first round on."
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        remedy = "Delete it; a running node writes it anew."
        raise NodeError("not a file of rollouts", path, remedy) from error
