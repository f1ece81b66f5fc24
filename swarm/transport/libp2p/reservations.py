"""Has peers relay for a node that nobody can dial, as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from swarm.common.counters import Counters
from swarm.transport.libp2p.addresses import place_of
from swarm.transport.libp2p.circuit import STOP
from swarm.transport.libp2p.host import Host
from swarm.transport.libp2p.trio_thread import TrioThread
from swarm.transport.transport import TransportError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Reservations:
    """Asks each relay for its place, and again in time, or once their connection was lost."""

    def __init__(self, host: Host, thread: TrioThread, counters: Counters) -> None:
        self._host = host
        self._thread = thread
        self._counters = counters
        self._held: dict[str, str] = {}
        self._working: list[asyncio.Task[None]] = []

    def keep(self, relays: Sequence[str]) -> None:
        """Begin.

        Args:
            relays: full multiaddresses.
        """
        if relays:
            self._thread.post(self._host.speak, STOP)
        self._working = [asyncio.ensure_future(self._keep(address)) for address in relays]

    def close(self) -> None:
        """End; the relays notice by themselves."""
        for task in self._working:
            task.cancel()

    def addresses(self) -> tuple[str, ...]:
        """Where this node is reached through its relays, without its id."""
        return tuple(self._held.values())

    async def _keep(self, address: str) -> None:
        relay, pause = address.rpartition("/p2p/")[2], FIRST_PAUSE
        while True:
            try:
                place = place_of(address)
                seconds = await self._thread.call(self._host.reserve, relay, place)
                self._held[relay] = str(replace(place, relay=relay))
                pause = FIRST_PAUSE
                await self._lasts(relay, seconds / 2)
            except (TransportError, OSError, EOFError, ValueError, LookupError) as error:
                self._held.pop(relay, None)
                self._counters.add("reservations_failed")
                logger.info("peer %s does not relay for this node: %s", relay, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _lasts(self, relay: str, seconds: float) -> None:
        """Return after so many seconds; raises ``ConnectionError`` once the place is lost."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(LOOK_SECONDS)
            if relay not in await self._thread.call(self._host.relayed_by):
                raise ConnectionError("its connection is gone")
