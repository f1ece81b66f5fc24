"""Entry points without an installer: the metadata that pip would write, in a folder on the path."""

from __future__ import annotations

from pathlib import Path

import pytest


def declare(patch: pytest.MonkeyPatch, folder: Path, name: str, target: str) -> None:
    """Make ``target`` (``module:attribute``) the task ``name`` of an installed package."""
    metadata = folder / f"{name}_task-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-task\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[swarm_node.tasks]\n{name} = {target}\n")
    patch.syspath_prepend(folder)
