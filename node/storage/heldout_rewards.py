"""What checkpoints were found to be worth on held-out tasks, beside them in one file."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from node.storage.atomic_files import PRIVATE_FOLDER, write_atomic

log = logging.getLogger(__name__)


class HeldoutRewards:
    """Mean held-out rewards by round, each in the swarm whose tasks they were measured on.

    A file that cannot be read is begun anew, with a word in the log: checkpoints do not need it.

    Args:
        path: the file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[int, tuple[str, float]]:
        """Round, and its swarm (id in hex) and reward."""
        try:
            rows = json.loads(self._path.read_bytes())
            return {int(n): (str(swarm), float(reward)) for n, (swarm, reward) in rows.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            log.warning("the held-out rewards in %s cannot be read: %s", self._path, error)
            return {}

    def note(self, number: int, swarm: str, reward: float) -> None:
        """Remember what the policy after round ``number`` is worth.

        Raises:
            NodeError: the file cannot be written.
        """
        self._write(self.read() | {number: (swarm, reward)})

    def move(self, rounds: Iterable[int], other: HeldoutRewards) -> None:
        """Hand what is known of some rounds over to ``other``.

        Raises:
            NodeError: a file cannot be written.
        """
        rows = self.read()
        moved = {number: rows[number] for number in rounds if number in rows}
        if moved:
            other._write(other.read() | moved)
            self._write({n: row for n, row in rows.items() if n not in moved})

    def keep(self, rounds: Iterable[int]) -> None:
        """Forget every round but these.

        Raises:
            NodeError: the file cannot be written.
        """
        kept, rows = set(rounds), self.read()
        if rows.keys() - kept:
            self._write({number: row for number, row in rows.items() if number in kept})

    def highest(self, swarm: str, rounds: Iterable[int]) -> float:
        """The highest reward of some rounds in that swarm; minus infinity where none is known."""
        rows = self.read()
        rewards = (rows[n][1] for n in rounds if n in rows and rows[n][0] == swarm)
        return max(rewards, default=float("-inf"))

    def best(self, rounds: Iterable[int], count: int) -> set[int]:
        """The ``count`` best of some rounds in each swarm; of equals the latest."""
        rows, found = self.read(), set[int]()
        rated = [n for n in rounds if n in rows]
        for swarm in {rows[n][0] for n in rated}:
            ours = sorted((rows[n][1], n) for n in rated if rows[n][0] == swarm)
            found.update(n for _, n in ours[len(ours) - min(count, len(ours)) :])
        return found

    def _write(self, rows: dict[int, tuple[str, float]]) -> None:
        self._path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_atomic(self._path, json.dumps(rows).encode())
