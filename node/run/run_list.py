"""The run folders below a folder, and what is true of the node of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.errors import NodeError
from node.monitor.present_status import present_status
from node.storage.run_folder import RunFolder

NEW = "new"
"""The state of a node that never ran."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder.

    Attributes:
        state: as ``status.json`` has it, or :data:`NEW`.
        round: rounds done; ``None`` before the first, and for a seed.
        reward: mean reward of the node's own completions in that round, 0 to 1.
        size: bytes of what the node keeps.
        age_s: seconds since it last said anything.
    """

    path: str
    state: str
    swarm_name: str | None
    swarm_id: str | None
    round: int | None
    reward: float | None
    size: int
    age_s: float | None


def find_runs(root: Path, depth: int) -> tuple[list[Run], list[str]]:
    """The run folders in ``root`` and down to ``depth`` folders below it, in the order of paths.

    A run folder is one with a node's key. No link is followed, and no hidden folder entered.

    Returns:
        The runs, and the folders that may not be read or hold something else than they should.
    """
    unread: list[str] = []
    runs: list[Run] = []
    for folder in sorted(_folders(root, depth, unread)):
        try:
            if (folder / "identity.key").is_file():
                runs.append(_run(RunFolder(folder)))
        except (NodeError, OSError):
            unread.append(str(folder))
    return runs, unread


def _folders(root: Path, depth: int, unread: list[str]) -> Iterator[Path]:
    yield root
    if not depth:
        return
    try:
        with os.scandir(root) as entries:
            below = [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            ]
    except OSError:
        unread.append(str(root))
        return
    for name in below:
        yield from _folders(root / name, depth - 1, unread)


def _run(folder: RunFolder) -> Run:
    new = folder.holder() is None and not folder.status.exists()
    status: dict[str, Any] = {"state": NEW} if new else present_status(folder)
    record = status.get("record") or {}
    return Run(
        path=str(folder.root),
        state=status["state"],
        swarm_name=status.get("swarm_name"),
        swarm_id=status.get("swarm_id"),
        round=record.get("round"),
        reward=record.get("reward_own"),
        size=folder.size(),
        age_s=status.get("age_s"),
    )
