"""Files that a power cut finds as they were, or as they were to be."""

from __future__ import annotations

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Flush a file or a folder's entries to the disk; on Windows files, as folders cannot be."""
    windows = os.name != "posix"
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(finished: Path, target: Path) -> None:
    """Rename ``finished`` to ``target`` so that either the old or the whole new file is there."""
    fsync_path(finished)
    finished.replace(target)
    if os.name == "posix":
        fsync_path(target.parent)
