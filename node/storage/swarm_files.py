"""What in a run folder is of one swarm alone, kept aside while the node is in another."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from node.errors import NodeError
from node.storage.atomic_files import PRIVATE_FOLDER, write_atomic, write_error
from node.storage.run_folder import RunFolder
from swarm.common.util import fsync_path

log = logging.getLogger(__name__)


class SwarmFiles:
    """The manifest, journal and known addresses of a folder's swarm, and of those it was in before.

    A journal holds for one swarm: pooled groups, draws, sealed frames, standings. Those of other
    swarms lie in ``swarms/ID``. Key, configuration, checkpoints and metrics are the node's own and
    stay where they are.

    The caller holds the folder's lock.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._aside = folder.swarms
        self._plan = self._aside / "move.json"

    def set_aside(self) -> dict[str, bytes]:
        """Signed manifests of the swarms that this node was in before, by id in hex."""
        found = sorted(self._aside.glob(f"*/{self._folder.manifest.name}"))
        return {path.parent.name: path.read_bytes() for path in found}

    def move(self, left: str, entered: str, signed: bytes) -> None:
        """Set the files of one swarm aside and put those of another in their place.

        Killed at any moment, the move is gone on with by :meth:`settle`.

        Args:
            left, entered: ids in hex.
            signed: the manifest of the swarm that is entered.

        Raises:
            NodeError: the folder cannot be written to.
        """
        try:
            for name in (left, entered):
                (self._aside / name).mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            write_atomic(self._aside / entered / self._folder.manifest.name, signed)
            self._write_plan(left, entered, out=False)
        except OSError as error:
            raise write_error(self._aside, error) from error
        self.settle()

    def settle(self) -> None:
        """Go on with a move that was begun; nothing where none was.

        Raises:
            NodeError: the folder cannot be written to, or the plan of the move is damaged.
        """
        if not self._plan.exists():
            return
        try:
            plan = json.loads(self._plan.read_bytes())
            left, entered, out = str(plan["left"]), str(plan["entered"]), bool(plan["out"])
        except (ValueError, KeyError, TypeError) as error:
            remedy = "Restore the run folder from a backup, or begin anew in another."
            raise NodeError("not the plan of a move between swarms", self._plan, remedy) from error
        try:
            if not out:
                # What lies in the folder is still of the swarm left: none of the other has come.
                _move_all(self._own(self._folder.root), self._aside / left)
                self._write_plan(left, entered, out=True)
            _move_all(self._own(self._aside / entered), self._folder.root)
            self._plan.unlink()
            fsync_path(self._aside)
        except OSError as error:
            raise write_error(self._aside, error) from error
        log.info("moved from swarm %s to swarm %s", left, entered)

    def _write_plan(self, left: str, entered: str, *, out: bool) -> None:
        plan = {"left": left, "entered": entered, "out": out}
        write_atomic(self._plan, json.dumps(plan).encode())

    def _own(self, place: Path) -> list[Path]:
        """Files of one swarm that lie in ``place``: a journal is several."""
        folder = self._folder
        names = (folder.journal.name + "*", folder.peer_cache.name, folder.manifest.name)
        return [path for name in names for path in sorted(place.glob(name)) if path.is_file()]


def _move_all(files: list[Path], place: Path) -> None:
    for path in files:
        path.replace(place / path.name)
    fsync_path(place)
