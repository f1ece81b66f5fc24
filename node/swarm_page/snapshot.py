"""The swarm's page as files in a folder that a web host serves."""

from __future__ import annotations

import os
from pathlib import Path

from node.errors import NodeError
from node.storage.atomic_files import replacing, write_error
from node.storage.run_folder import RunFolder
from node.swarm_page.files import INDEX, Page

FILE, FOLDER = 0o644, 0o755
"""Whoever serves them is another user."""
_KEY = "monitor.snapshot"


class Snapshot:
    """Writes a page again and again, each file in one step, what names the others last.

    Args:
        folder: is made where it is missing.

    Raises:
        NodeError: it cannot be written to, or holds another site or a node's key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[str, bytes] = {}
        if (folder / INDEX).exists() and not (folder / "data" / "swarm.json").exists():
            raise NodeError(
                f"{_KEY}: there is another page",
                folder / INDEX,
                "Name a folder that nothing else is served from.",
            )
        if RunFolder(folder).identity.exists():
            raise NodeError(
                f"{_KEY}: a node's key lies in",
                folder,
                "Name another folder: what is in this one is served to everybody.",
            )
        self._make(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise NodeError(
                f"{_KEY}: cannot write to", folder, "Change its owner, or name another folder."
            )

    def write(self, page: Page) -> None:
        """Write what has changed since the last time.

        Raises:
            NodeError: something cannot be written; what was there before still is.
        """
        for name in sorted(page, key=lambda each: (each == INDEX, each)):
            if self._written.get(name) == page[name]:
                continue
            path = self.folder / name
            self._make(path.parent)
            with replacing(path, durable=False) as draft:
                draft.write(page[name])
                draft.flush()
                Path(draft.name).chmod(FILE)
            self._written[name] = page[name]

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        if folder != self.folder:
            self._make(folder.parent)
        try:
            folder.mkdir(parents=True)
            folder.chmod(FOLDER)
        except OSError as error:
            if folder != self.folder:
                raise write_error(folder, error) from error
            remedy = "Name a folder in a place that is yours."
            why = f"{_KEY}: cannot make the folder ({error.strerror})"
            raise NodeError(why, folder, remedy) from error
