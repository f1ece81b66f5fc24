"""Errors a person has to act on: each says what is wrong, with which value, and what to do."""

from __future__ import annotations

from typing import ClassVar

MOST = 200
"""Characters of a config value that an error shows."""


class NodeError(Exception):
    """Something this node cannot go on with.

    Shown as one line: ``what: value. Remedy.`` The exit status is 1, or 2 for what the caller
    wrote (a config key, an argument).

    Args:
        what: the thing that is wrong, such as a path, a key or an operation.
        value: the offending value; ``None`` when there is none to show.
        remedy: what to do about it, a full sentence.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, value: object, remedy: str) -> None:
        self.what = what
        self.value = value
        self.remedy = remedy
        shown = what if value is None else f"{what}: {value}"
        super().__init__(" ".join(f"{shown.rstrip('.')}. {remedy}".split()))


class ConfigError(NodeError):
    """A config key that is unknown, has a wrong value or contradicts another one."""

    exit_code = 2

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(key, _as_written(value), remedy)
        self.key = key


def _as_written(value: object) -> str | None:
    """A value as a TOML file has it, and of a long one its beginning."""
    if value is None:
        return None
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MOST else f"{text[:MOST]}…"


class UsageError(NodeError):
    """A command-line argument that makes no sense."""

    exit_code = 2


class CheckpointError(NodeError):
    """Checkpoints were written, and none of them is left or can be read."""


class DiskFullError(NodeError):
    """Nothing more can be written; what was written before is untouched."""


class RunFolderBusy(NodeError):  # noqa: N818 - reads as what it says
    """Another process works in this run folder."""


class CatalogueError(ValueError):
    """A catalogue cannot be read or opened; the message names the env, the key and the remedy."""
