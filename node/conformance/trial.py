"""Every case, tried on one peer."""

from __future__ import annotations

from pathlib import Path

from node.conformance import records, streams
from node.conformance.case import Finding, find
from node.conformance.peer import meet

CASES = (*records.CASES, *streams.CASES)


async def look_at(address: str, folder: Path, over: str) -> list[Finding]:
    """What came of each case, in the order of :data:`CASES`.

    Args:
        address: full multiaddress of the peer.
        folder: empty; for the key of the client.
        over: the kind of transport that the client has.

    Raises:
        ConfigError, TransportError, ProtocolError: see :func:`node.conformance.peer.meet`.
    """
    async with meet(address, folder, over) as peer:
        return [await find(case, peer) for case in CASES]
