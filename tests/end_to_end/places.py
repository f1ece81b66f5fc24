"""Folders that mistakes happen in: each function fills an empty one."""

from __future__ import annotations

import shutil
from pathlib import Path

from commands import ROOT

from node.network.founding import found_swarm
from node.run.new_node import prepare
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from protocol.identity import Identity

MODEL = ROOT / "node" / "models" / "tiny"
BEGUN = {"model": "tiny", "dtype": "float32", "lora_rank": 0}


def nothing(folder: Path) -> None:
    """An empty folder."""


def a_file(folder: Path) -> None:
    (folder / "file").write_text("something\n")
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("something\n")


def a_node(folder: Path) -> None:
    """One that init has made."""
    prepare(folder / "node")


def a_member(folder: Path) -> None:
    """One whose swarm is known."""
    a_node(folder)
    node = RunFolder(folder / "node")
    node.manifest.write_bytes(found_swarm(Identity.load(node.identity), name="ours"))


def a_trained_node(folder: Path) -> None:
    """A member that has a checkpoint."""
    a_member(folder)
    node = RunFolder(folder / "node")
    Checkpoints(node.checkpoints).save(4, _put_model, BEGUN)


def _put_model(folder: Path) -> None:
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
