"""What a run folder needs before a node starts in it: a config and an identity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.config.config import Config, write_config
from node.errors import NodeError
from node.storage.run_folder import RunFolder
from protocol.identity import Identity


def prepare(
    directory: Path, overrides: Mapping[str, Any] | None = None
) -> tuple[RunFolder, Identity]:
    """Write a config and an identity into ``directory``; an identity that is there is kept.

    Args:
        overrides: config keys that differ from their defaults.

    Raises:
        NodeError: there is a config already, or the folder cannot be written to.
        ConfigError: an override is wrong.
    """
    config = Config.with_overrides(overrides or {})
    folder = RunFolder(directory).create()
    if folder.config.exists():
        raise NodeError(
            "there is a config already", folder.config, "Edit it, or choose another folder."
        )
    identity, _ = open_identity(folder)
    write_config(folder.config, config)
    return folder, identity


def open_identity(folder: RunFolder) -> tuple[Identity, bool]:
    """The folder's identity, and whether it had to be made.

    Raises:
        KeyFileError: the file cannot be used.
        NodeError: the key is gone while a journal written under it remains.
    """
    if folder.identity.exists():
        return Identity.load(folder.identity), False
    if folder.journal.exists():
        raise NodeError(
            "the identity is gone and the journal of its node is still here",
            folder.identity,
            "Put the key back, or begin anew in another folder.",
        )
    folder.create()
    return Identity.create(folder.identity), True
