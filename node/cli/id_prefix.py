"""Ids on a command line: as much of one as tells it from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from node.errors import UsageError

T = TypeVar("T")

CUT = "…"
"""What a table puts behind an id that it shows the beginning of."""
NAMED = 8


def only(what: str, given: str, things: Iterable[T], names: Callable[[T], Sequence[str]]) -> T:
    """The one of ``things`` of which a name begins as ``given`` does.

    Args:
        what: they are, such as "peer".
        names: by which a thing may be called; the first is shown.

    Raises:
        UsageError: none or several are called so; the choices are named.
    """
    listed = list(things)
    prefix = given.strip().removesuffix(CUT)
    found = [each for each in listed if any(name.startswith(prefix) for name in names(each))]
    whole = [each for each in found if prefix in names(each)]
    if len(whole or found) == 1:
        return (whole or found)[0]
    choices = _listed([names(each)[0] for each in found or listed])
    if not found:
        remedy = f"Known are {choices}." if listed else "None are known yet."
        raise UsageError(f"no {what} whose id begins with", given, remedy)
    raise UsageError(
        f"several {what}s have ids that begin with", given, f"Write more of one: {choices}."
    )


def _listed(ids: Sequence[str]) -> str:
    more = len(ids) - NAMED
    return ", ".join(ids[:NAMED]) + (f" and {more} more" if more > 0 else "")
