"""A simulated node's journal: nothing of it is to outlive the process, and nobody shares it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from swarm.common.clock import Clock
from swarm.journal import MEMORY, Journal, create_tables


@cache
def _template() -> sqlite3.Connection:
    """A new journal's tables."""
    connection = sqlite3.connect(MEMORY)
    create_tables(connection)
    return connection


class JournalInMemory(Journal):
    """:class:`swarm.journal.Journal` whose blocks are neither locked nor undone when they fail.

    A simulation has one thread and ends with the first failure.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(MEMORY, clock)

    def _prepare(self) -> None:
        """Begin with the tables of another new journal: to copy them takes a tenth of the time."""
        _template().backup(self._connection)

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        yield self._connection

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, parameters).fetchall()
