"""Where the turns of a trajectory lie among its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def turns_of(trained: Sequence[bool]) -> list[slice]:
    """The policy's turns, in their order: the runs of tokens that it wrote.

    Policy and environment write by turns, and what an environment answers is a token at least, so
    that no two turns lie side by side. An answer is one turn.

    Args:
        trained: of a completion, per token.
    """
    found, begin = [], 0
    for ours, run in groupby(trained):
        end = begin + sum(1 for _ in run)
        if ours:
            found.append(slice(begin, end))
        begin = end
    return found
