"""The latest groups of a run, found again by what is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from node.monitor.history import GrowingLines

MOST = 100
"""Groups in an answer."""
NAMES = {"id", "round", "origin", "env", "author", "prompt", "in_update", "reason", "completions"}
"""Without which a line is no group."""
BYTES = 2 << 20
"""Of the lines that an answer is made of, after the first."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which groups are asked for; what is empty or None leaves all.

    Attributes:
        before: below this number.
        author: how the public key begins, in hex.
        text: that stands in the question or in an answer, in any case.
        taught: whether an update learned from it.
        round: after which it was shown.
    """

    limit: int = 20
    before: int | None = None
    origin: str = ""
    env: str = ""
    author: str = ""
    text: str = ""
    taught: bool | None = None
    round: int | None = None

    def takes(self, group: dict[str, Any]) -> bool:
        """Whether a group is one of them."""
        taught = bool(group["in_update"] and group["reason"] is None)
        return (
            (self.before is None or group["id"] < self.before)
            and self.origin in ("", group["origin"])
            and self.env in ("", group["env"])
            and (group["author"] or "").startswith(self.author.lower())
            and self.taught in (None, taught)
            and self.round in (None, group["round"])
            and self._reads(group)
        )

    def _reads(self, group: dict[str, Any]) -> bool:
        sought = self.text.casefold()
        texts = (group["prompt"], *(done["text"] for done in group["completions"]))
        return not sought or any(sought in each.casefold() for each in texts)


class Groups:
    """The lines of ``groups.jsonl``, at most as many as that file holds; for one thread at a time.

    Attributes:
        last: number of the newest group; 0 where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = GrowingLines()
        self._lines: list[bytes] = []
        self.last = 0

    def look(self) -> None:
        """Read what was written since.

        Raises:
            NodeError: the file may not be read.
        """
        lines, anew = self._file.new([self._path])
        if anew:
            self._lines = []
        before = len(self._lines)
        self._lines.extend(lines)
        for line in reversed(self._lines[before:]):
            if (group := _parsed(line)) is not None:
                self.last = group["id"]
                return

    def find(self, wanted: Wanted) -> dict[str, Any]:
        """The newest groups that are wanted, and whether there are more of them."""
        found: list[dict[str, Any]] = []
        size = 0
        for line in reversed(self._lines):
            group = _parsed(line)
            if group is None or not wanted.takes(group):
                continue
            if len(found) == wanted.limit or (found and size + len(line) > BYTES):
                return {"groups": found, "more": True}
            size += len(line)
            found.append(_told(group))
        return {"groups": found, "more": False}


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A group of the file; None where the line is none."""
    try:
        group = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return group if isinstance(group, dict) and group.keys() >= NAMES else None


def _told(group: dict[str, Any]) -> dict[str, Any]:
    """With tokens one by one, as answers have them."""
    done = [
        {**each, "tokens": list(_tokens(each.get("tokens") or {}))} for each in group["completions"]
    ]
    return {**group, "completions": done}


def _tokens(columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    names = ("text", "logprob", "version", "entropy")  # the last not told by an earlier release
    for row in zip_longest(*(columns.get(name, ()) for name in names)):
        yield dict(zip(names, row, strict=True))
