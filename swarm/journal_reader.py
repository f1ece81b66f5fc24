"""A journal looked at by a process that only reads: it takes no lock that its writer waits for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from swarm.accounts import Account, all_accounts
from swarm.journal_errors import JournalError, named_errors
from swarm.schema import VERSION

BUSY_SECONDS = 2.0


def read_accounts(path: Path) -> list[Account]:
    """All accounts of the journal at ``path``, the most recently changed first; none without one.

    Raises:
        JournalError: the file is of another layout, or unusable.
    """
    if not path.exists():
        return []
    with _opened(path) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            remedy = "update swarm-node or use another run folder"
            problem = f"has layout {version}, this program reads {VERSION}"
            raise JournalError(path, problem, remedy)
        return all_accounts(lambda query: connection.execute(query).fetchall())


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    # Where nobody writes there is no log beside the file, and none is to be made for a look.
    still = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    with named_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro{still}", uri=True, timeout=BUSY_SECONDS
        )
        with closing(connection):
            yield connection
