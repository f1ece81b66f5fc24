"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        check: what was looked at.
        level: "fail" keeps a node from working, "warn" may.
        found: what is there.
        remedy: what to do; empty where all is well.
    """

    check: str
    level: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, remedy: str) -> Finding:
    """A node works, but perhaps not as wished."""
    return Finding(check, "warn", found, remedy)


def fail(check: str, found: str, remedy: str) -> Finding:
    """A node does not work."""
    return Finding(check, "fail", found, remedy)
