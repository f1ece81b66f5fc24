"""Errors for the user: what failed, with which value, and how to fix it."""

from __future__ import annotations

from typing import ClassVar

MOST = 200  # maximum characters of a config value in an error


class NodeError(Exception):
    """An error that stops the node, shown as one line: ``what: value. Remedy.``

    The exit status is 1, or 2 if the user's input (a config key, an argument) is wrong. ``value``
    is None if there is none to show; ``remedy`` is a full sentence.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, value: object, remedy: str) -> None:
        self.what = what
        self.value = value
        self.remedy = remedy
        shown = what if value is None else f"{what}: {value}"
        super().__init__(" ".join(f"{shown.rstrip('.')}. {remedy}".split()))


class ConfigError(NodeError):
    """A config key that is unknown, has a wrong value or contradicts another."""

    exit_code = 2

    def __init__(self, key: str, value: object, remedy: str) -> None:
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        shown = shown if len(shown) <= MOST else f"{shown[:MOST]}…"
        super().__init__(key, None if value is None else shown, remedy)
        self.key = key


class UsageError(NodeError):
    """An invalid command-line argument."""

    exit_code = 2


class CheckpointError(NodeError):
    """A run that has written checkpoints, none of which can be read now."""


class DiskFullError(NodeError):
    """A write without free disk space; data written before is unchanged."""


class RunFolderBusy(NodeError):  # noqa: N818 - reads as what it says
    """A run folder that another process uses."""


class TaskSetError(ValueError):
    """An unreadable task set; the message names the env, the key and the remedy."""
