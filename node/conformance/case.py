"""One thing that the protocol asks of a peer, and what came of looking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from node.conformance.peer import Peer
from swarm.transport.transport import TransportError

Outcome = Literal["ok", "fail", "skip"]


class Broken(Exception):  # noqa: N818 - a finding, not a fault of this program
    """The peer does something else than the protocol says; the text tells what."""


class Untried(Exception):  # noqa: N818 - likewise
    """The case cannot be tried on this peer; the text tells why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to look at.

    Attributes:
        section: of ``docs/protocol.md``.
        says: what the peer does, as a sentence about it.
        look: finds out; raises :class:`Broken` or :class:`Untried`.
    """

    section: int
    says: str
    look: Callable[[Peer], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a case.

    Attributes:
        found: what the peer did instead, or why it was not tried; empty where all is well.
    """

    section: int
    says: str
    outcome: Outcome
    found: str = ""


async def find(case: Case, peer: Peer) -> Finding:
    """Look at one case."""
    try:
        await case.look(peer)
    except Broken as broken:
        return Finding(case.section, case.says, "fail", str(broken))
    except Untried as untried:
        return Finding(case.section, case.says, "skip", str(untried))
    except TransportError as error:
        return Finding(case.section, case.says, "fail", f"{error.code}: {error}")
    return Finding(case.section, case.says, "ok")


def require(holds: bool, otherwise: str) -> None:
    """Raise :class:`Broken` with ``otherwise`` unless it holds."""
    if not holds:
        raise Broken(otherwise)
