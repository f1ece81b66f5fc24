"""The journal put together again where its file is spoiled or gone."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from pathlib import Path

from swarm.common.clock import Clock
from swarm.common.durable_file import replace_durably
from swarm.common.private_file import make_private
from swarm.journal import Journal, backup_path
from swarm.journal_errors import JournalCorrupt, named_errors

log = logging.getLogger(__name__)

ASIDE = "corrupt-"
"""In the name of a journal that was moved aside, before the millisecond."""


def open_or_restore(
    path: Path, clock: Clock, backup: Path | None = None
) -> tuple[Journal, tuple[str, ...]]:
    """Open the journal, or put it together again from its backup.

    A corrupt file is moved aside, never deleted. A rebuilt journal gives up what it cannot be
    sure about: pooled, waiting and begun groups are dropped, the running epoch is not drawn from,
    and :attr:`Journal.restored_at` tells admission which external groups may have been used before.

    Returns:
        The journal, and what happened in sentences for people (empty where nothing did).

    Raises:
        JournalError: it can be neither opened nor rebuilt.
    """
    backup = backup or backup_path(path)
    # To open a file may write to it, and where a power cut spoiled it the clock may be behind.
    spoiled = max(clock.time(), _last_written(path, backup))
    lost = _lost(path, backup)
    if lost:
        notes = [f"journal {path}: {lost}"]
    else:
        try:
            return Journal(path, clock), ()
        except JournalCorrupt as corrupt:
            notes = [f"{corrupt}"]
    with named_errors(path):
        notes.append(_rebuild(path, clock, backup, spoiled))
    for note in notes:
        log.info(note)
    return Journal(path, clock), tuple(notes)


def _lost(path: Path, backup: Path) -> str:
    """What became of the journal that was here; empty where none was, or one still is.

    A power cut may leave an empty file. Without a backup only what a rebuilding that was cut short
    leaves tells that there was one; what it left before a journal that was written to since is old.
    """
    rebuilt = _rebuilt(path)
    if rebuilt.exists() and not (path.exists() and path.stat().st_mtime > rebuilt.stat().st_mtime):
        return "an earlier rebuilding was cut short"
    if path.exists() and (path.stat().st_size or not backup.exists()):
        return ""
    if backup.exists() or any(path.parent.glob(f"{path.name}.{ASIDE}*")):
        return "the file is empty" if path.exists() else "the file is missing"
    return ""


def _rebuilt(path: Path) -> Path:
    return path.with_name(path.name + ".rebuilt")


def _last_written(path: Path, backup: Path) -> float:
    """Unix time up to which the files of a journal tell that it was in use."""
    files = [path, backup, path.with_name(path.name + "-wal")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _rebuild(path: Path, clock: Clock, backup: Path, spoiled: float) -> str:
    """Put a new journal in the place of the one at ``path``; says from what it was made."""
    rebuilt = _rebuilt(path)
    source = "started anew, as there is no backup"
    rebuilt.unlink(missing_ok=True)
    if backup.exists():
        make_private(rebuilt)
        shutil.copyfile(backup, rebuilt)
        source = f"went on from the backup {backup.name}"
    try:
        journal = Journal(rebuilt, clock)
    except JournalCorrupt:
        rebuilt.unlink()
        source = f"started anew, as the backup {backup.name} is corrupt too"
        journal = Journal(rebuilt, clock)
    journal.forget_recent(spoiled)
    journal.close()
    aside = path.with_name(f"{path.name}.{ASIDE}{int(clock.time() * 1000)}")
    for ending in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(aside.with_name(aside.name + ending))
    replace_durably(rebuilt, path)
    kept = f"; the old file is kept as {aside.name}" if aside.exists() else ""
    return f"journal {path}: {source}{kept}"
