"""What a run folder needs before a node starts in it: a config and an identity."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from node.config.config import Config, write_config
from node.errors import NodeError
from node.storage.atomic_files import write_new
from node.storage.run_folder import RunFolder
from protocol.identity import Identity


def prepare(
    directory: Path, overrides: Mapping[str, Any] | None = None
) -> tuple[RunFolder, Identity]:
    """Write a config and an identity into ``directory``; an identity that is there is kept.

    The seed in the config follows from the identity, so that no two nodes choose alike.

    Args:
        overrides: config keys that differ from their defaults.

    Raises:
        NodeError: there is a config already, or the folder cannot be written to.
        ConfigError: an override is wrong.
    """
    Config.with_overrides(overrides or {})
    folder = RunFolder(directory).create()
    if folder.config.exists():
        raise NodeError(
            "there is a config already", folder.config, "Edit it, or choose another folder."
        )
    identity, _ = open_identity(folder)
    own = {"node.seed": _seed_of(identity)}
    write_config(folder.config, Config.with_overrides({**own, **(overrides or {})}))
    return folder, identity


def _seed_of(identity: Identity) -> int:
    """A seed that only the holder of the key can tell, so that peers cannot foresee choices."""
    digest = sha256(identity.sign(b"swarm-node/1/node-seed", b"")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


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


def import_identity(folder: RunFolder, identity: Identity) -> bool:
    """Make ``identity`` the folder's own, and say whether it had to be written.

    Raises:
        KeyFileError: the key that is there cannot be used.
        NodeError: another key is there, or the folder cannot be written to.
    """
    if folder.identity.exists():
        held = Identity.load(folder.identity)
        if held.author == identity.author:
            return False
        raise NodeError(
            f"there is another key already, that of {held.peer_id}, in",
            folder.identity,
            f"Put that of {identity.peer_id} into a folder without one, or keep a copy of the "
            "other (swarm-node identity export) and move it away first.",
        )
    write_new(folder.create().identity, identity.export())
    return True
