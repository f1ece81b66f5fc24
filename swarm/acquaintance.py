"""Which swarm connected peers are in: one address, and one hash table, may be of another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from protocol.errors import ProtocolError
from protocol.manifest import swarm_id
from swarm.common.backoff import Backoff
from swarm.common.clock import Clock
from swarm.transport.transport import Transport, TransportError

logger = logging.getLogger(__name__)

ASKED_AT_ONCE = 4


class ManifestSource(Protocol):
    """How a peer is asked for its manifest."""

    async def fetch_manifest(self, peer: str) -> bytes:
        """The signed bytes, unchecked; errors as of :meth:`Transport.request`."""
        ...


class Acquaintance:
    """Knows the swarm of connected peers by the manifest that each hands out.

    Only one that has announced nothing here is asked, once for every connection. Whoever lies
    about it is counted as a peer, and gains nothing by it.

    Args:
        ours: id of this node's swarm, 32 bytes.
        pause: seconds before a peer that did not answer is asked again; it doubles.
    """

    def __init__(
        self,
        transport: Transport,
        manifests: ManifestSource,
        ours: bytes,
        clock: Clock,
        pause: float,
    ) -> None:
        self._transport = transport
        self._manifests = manifests
        self._ours = ours
        self._silent: Backoff[str] = Backoff(clock, first=pause, longest=64 * pause)
        self._swarms: dict[str, bytes] = {}

    async def look(self, is_member: Callable[[str], bool]) -> None:
        """Ask some of those connected now for their swarm.

        Args:
            is_member: whether a peer is known to be in this one.
        """
        connected = self._transport.peers()
        self._swarms = {p: s for p, s in self._swarms.items() if p in connected}
        unknown = [
            peer
            for peer in connected
            if peer not in self._swarms and not is_member(peer) and not self._silent.waits(peer)
        ]
        await asyncio.gather(*map(self._ask, unknown[:ASKED_AT_ONCE]))

    def swarm_of(self, peer: str) -> bytes | None:
        """Id of the swarm that ``peer`` is in; None where it has not told."""
        return self._swarms.get(peer)

    async def _ask(self, peer: str) -> None:
        try:
            found = swarm_id(await self._manifests.fetch_manifest(peer))
        except (TransportError, ProtocolError) as error:
            pause = self._silent.failed(peer)
            logger.debug("asking %s for its swarm: %s; again after %g s", peer, error, pause)
            return
        self._silent.succeeded(peer)
        self._swarms[peer] = found
        if found != self._ours:
            logger.info("peer %s is in another swarm, %s", peer, found.hex()[:16])
