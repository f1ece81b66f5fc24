"""Where else the records of a node may go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from hashlib import sha256
from typing import Any, ClassVar

from node.config.base import Section
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder


class Logger(ABC):
    """Takes one record a round, from one thread; each has a file in ``loggers/``.

    Args:
        folder: of the run, for what it keeps there.
        options: an instance of ``Options``, where it has settings of its own.

    Attributes:
        Options: those settings, a table of ``monitor.loggers_options`` under its name; None: none.
        package: what it needs beside the project's own requirements; empty: nothing.

    Raises:
        NodeError: what it needs is not here.
    """

    Options: ClassVar[type[Section] | None] = None
    package: ClassVar[str] = ""

    def __init__(self, folder: RunFolder, options: Any = None) -> None:
        self.folder = folder
        self.options = options

    @abstractmethod
    def write(self, record: RoundRecord) -> None:
        """Take one record."""

    @abstractmethod
    def close(self) -> None:
        """Flush and release; harmless when called twice."""


def figures(record: RoundRecord) -> dict[str, float]:
    """Every figure of a record by the name that all loggers give it; refusals as
    ``refused/<reason>``."""
    refused = {f"refused/{reason}": float(count) for reason, count in record.refused.items()}
    return record.scalars() | refused


def run_name(folder: RunFolder) -> str:
    """What a run is called among others: its folder's name, and a mark of the whole path."""
    whole = folder.root.resolve()
    return f"{whole.name}-{sha256(str(whole).encode()).hexdigest()[:8]}"
