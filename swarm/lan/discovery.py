"""Announces this node on its local networks, and dials swarm members found there."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Iterable, Sequence

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff
from swarm.lan.multicast import Multicast, MulticastUnavailable, Sighting, networks
from swarm.transport.transport import Transport, TransportError, is_relayed, port_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
# Seconds until queries and announcements repeat, since packets get lost. Each repeat doubles the
# pause (RFC 6762 §5.2, §8.3).
FIRST_PAUSE = 15.0
AT_A_TIME = 8
EACH = 2  # maximum dials per host and turn, so a host with many names cannot displace others

ENOUGH = 32  # maximum connected peers found here; the DHT introduces all others

FIRST_REDIAL_PAUSE = 30.0
LONGEST_PAUSE = 600.0


class Neighbours:
    """Chooses which peers to dial, never ``own``, and backs off from failed ones."""

    def __init__(self, own: str, clock: Clock, rng: random.Random) -> None:
        self._own = own
        self._rng = rng
        self._failed: Backoff[Sighting] = Backoff(
            clock, first=FIRST_REDIAL_PAUSE, longest=LONGEST_PAUSE
        )
        self._met: set[str] = set()

    def due(
        self, seen: Iterable[Sighting], connected: Collection[str], swarm: str = ""
    ) -> list[Sighting]:
        """Return the peers to dial now, in an order that announcers cannot predict.

        ``swarm`` is a swarm id or its beginning; empty for any.
        """
        self._met &= set(connected)
        if len(self._met) >= ENOUGH:
            return []
        waiting = [
            each
            for each in dict.fromkeys(seen)
            if each.swarm.startswith(swarm)
            and each.peer_id != self._own
            and each.peer_id not in connected
            and not self._failed.waits(each)
        ]
        self._rng.shuffle(waiting)
        return self._fair(waiting)[: min(AT_A_TIME, ENOUGH - len(self._met))]

    def reached(self, sighting: Sighting) -> None:
        """Note that a peer answered."""
        self._failed.succeeded(sighting)
        self._met.add(sighting.peer_id)

    def failed(self, sighting: Sighting) -> None:
        """Note that no peer, or another peer, answered."""
        self._failed.failed(sighting)

    def _fair(self, waiting: list[Sighting]) -> list[Sighting]:
        """Take one per host, then the second ones; no peer twice."""
        turns: list[list[Sighting]] = [[] for _ in range(EACH)]
        taken: dict[str, int] = {}
        peers: set[str] = set()
        for each in waiting:
            turn = taken.get(each.host, 0)
            if turn < EACH and each.peer_id not in peers:
                turns[turn].append(each)
                taken[each.host] = turn + 1
                peers.add(each.peer_id)
        return [each for turn in turns for each in turn]


class Discovery:
    """The search on the local network; coroutines run on the transport's loop."""

    def __init__(
        self,
        transport: Transport,
        listen: Sequence[str],
        clock: Clock,
        counters: Counters,
        rng: random.Random | None = None,
    ) -> None:
        self._transport = transport
        self._listen = tuple(listen)
        self._clock = clock
        self._counters = counters
        self._rng = rng or random.Random()
        self._neighbours = Neighbours(transport.peer_id, clock, self._rng)
        self._ear: Multicast | None = None
        self._swarm = b""
        self._announced = (b"", 0)
        self._asked: Backoff[Multicast] = Backoff(clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._said = ""

    async def look(self, swarm: str = "") -> list[Sighting]:
        """Return peers to dial in search of a swarm; raises ``MulticastUnavailable``.

        ``swarm`` is its id in hex or its beginning; empty for any.
        """
        ear = await self._listening()
        return self._neighbours.due(await ear.seen(), self._transport.peers(), swarm)

    async def dial(self, sighting: Sighting) -> str:
        """Dial a sighting; return the announced peer id. Raises ``TransportError``."""
        try:
            peer = await self._transport.connect(sighting.address)
        except TransportError as error:
            self._neighbours.failed(sighting)
            self._counters.add("lan_dials_failed")
            logger.info("%s, which was announced on this network: %s", sighting.address, error)
            raise
        self._neighbours.reached(sighting)
        self._counters.add("lan_dials")
        return peer

    async def run(self, swarm: bytes) -> None:
        """Announce this node as a member and dial others, until cancelled."""
        self._swarm = swarm
        while True:
            try:
                await asyncio.gather(*map(self._try, await self.look(swarm.hex())))
                self._said = ""
            except MulticastUnavailable as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - a stranger must not end the search
                self._failed(f"{type(error).__name__}: {error}; listening anew", error)
                await self.close()
            await self._clock.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Withdraw the announcement and stop listening; may be called twice."""
        ear, self._ear, self._announced = self._ear, None, (b"", 0)
        if ear is not None:
            self._asked.succeeded(ear)
            await ear.close()

    async def _try(self, sighting: Sighting) -> None:
        try:
            await self.dial(sighting)
        except TransportError:
            return  # already counted and logged

    async def _listening(self) -> Multicast:
        here = networks(self._listen)
        saying = self._swarm, self._port()
        if self._ear is not None:
            moved = self._ear.networks != here
            if moved or (any(self._announced) and saying != self._announced):
                logger.info("this machine is on other networks, or listens at another port now")
                await self.close()
        if self._ear is None:
            self._ear = await Multicast.open(here, self._counters, self._rng)
            self._asked.failed(self._ear)
        elif not self._asked.waits(self._ear):
            await self._ear.again()
            self._asked.failed(self._ear)
        if all(saying) and saying != self._announced:
            await self._ear.announce(self._transport.peer_id, *saying)
            self._announced = saying
        return self._ear

    def _port(self) -> int:
        """Return the configured or chosen port of this node; 0 while unknown."""
        own = (each for each in self._transport.addresses() if not is_relayed(each))
        return next((port for port in map(port_of, (*self._listen, *own)) if port), 0)

    def _failed(self, what: str, error: Exception | None = None) -> None:
        self._counters.add("lan_failed")
        if what != self._said:  # log once, because it may last
            logger.warning("looking for members on the local network: %s", what, exc_info=error)
        self._said = what
