"""Deliberate mistakes, one a row of the tables in ``mistakes/``, and the folders they happen in.

A row is the command line, then what the one line that answers it has to name: the key or argument,
the value, and words of the remedy. A group of rows has the place it happens in, the exit status,
and where the rows give only a part of the command line (``run``) or a config file (``file``), the
rest of it.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).parent / "mistakes"


@dataclass(frozen=True)
class Mistake:
    """What is wrong, and what has to be said of it.

    Attributes:
        command: arguments of ``swarm-node``.
        named: the key or argument, and the value, in this order.
        remedy: words of what to do, behind these.
        status: the exit status.
        place: name of what makes the folder it happens in, a function of ``places``.
        file: content of node/node.toml, where that is what is wrong.
    """

    command: tuple[str, ...]
    named: tuple[str, str]
    remedy: str
    status: int
    place: str
    file: str | None = None

    @property
    def title(self) -> str:
        """Tells it from every other."""
        where = "" if self.place == "nothing" else f" [{self.place}]"
        return f"{shlex.join(self.command) if self.file is None else self.file!r}{where}"


def mistakes() -> Iterator[Mistake]:
    """All of them."""
    for path in sorted(TABLES.glob("*.toml")):
        for group in tomllib.loads(path.read_text(encoding="utf-8"))["group"]:
            for given, key, value, remedy in group["rows"]:
                run = group["run"]
                command = run if "file" in group else run.replace("{}", given)
                yield Mistake(
                    tuple(shlex.split(command)),
                    (key, value),
                    remedy,
                    group["status"],
                    group["place"],
                    group["file"].replace("{}", given) if "file" in group else None,
                )
