"""Fake installed packages: metadata as pip writes it, in a folder on the path."""

from pathlib import Path

import pytest


def installed(patch: pytest.MonkeyPatch, folder: Path, package: str, version: str = "1") -> Path:
    """Make a package appear installed; return the folder of its metadata."""
    metadata = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    text = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    (metadata / "METADATA").write_text(text)
    patch.syspath_prepend(folder)
    return metadata


def declare(
    patch: pytest.MonkeyPatch, folder: Path, name: str, target: str, group: str = "swarm_node.tasks"
) -> None:
    """Register ``target`` (``module:attribute``) as the plugin ``name``."""
    metadata = installed(patch, folder, f"{name}-kind")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
