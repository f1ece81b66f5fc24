"""Files that are for nobody but the user a node runs as."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PRIVATE_FILE = 0o600


def make_private(path: Path) -> Path:
    """Make an empty file for its owner alone, unless there is one; for any umask.

    Whoever opens it then finds its mode set. SQLite takes it for a new database and gives its mode
    to the files beside it. What keeps it from being made is left for the opening to say.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    return path
