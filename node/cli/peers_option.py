"""``--peers A B C``: several addresses after one flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

OPTION = "--peers"


class SpreadPeers(TyperCommand):
    """A command whose ``--peers`` takes every value up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, after repeating the flag before each of its values."""
        return super().parse_args(ctx, spread(args))


def spread(args: Sequence[str]) -> list[str]:
    """``--peers A B --json`` to ``--peers A --peers B --json``."""
    repeated: list[str] = []
    taking = False
    for arg in args:
        if arg.startswith("-"):
            taking = arg == OPTION
        elif taking and repeated[-1] != OPTION:
            repeated.append(OPTION)
        repeated.append(arg)
    return repeated
