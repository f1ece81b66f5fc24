"""Announces this node on its local networks by multicast DNS, and dials members found there.

The zeroconf package's parser bounds the cost of a datagram; its cache holds at most 10,000 records.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING, Any

import psutil

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff
from swarm.sightings import BadSighting, Interface, Sighting, sightings_of, text_of
from swarm.transport.transport import Transport, TransportError, host_of, own_ports

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf


logger = logging.getLogger(__name__)

SERVICE = "_swarm-node._tcp.local."
DRAWN = 512  # maximum names examined per turn, sampled from the cache
ASKED = 4  # maximum names per turn whose missing records are requested
ASK_SECONDS = 1.5
CLOSE_SECONDS = 5.0
MAX_LABEL_BYTES = 63
MAX_NAME_BYTES = 253
FAMILIES = {AF_INET: ipaddress.IPv4Address, AF_INET6: ipaddress.IPv6Address}
MAX_INTERFACES = 16


class MulticastUnavailable(Exception):  # noqa: N818 - reads as what it says
    """This machine or network has no multicast; the message ends with a remedy."""


@dataclass(eq=False)
class Multicast:
    """A listener and announcer on fixed networks; create another after a change."""

    networks: tuple[Interface, ...]
    _zeroconf: AsyncZeroconf
    _browser: AsyncServiceBrowser
    _counters: Counters
    _rng: random.Random
    _announced: ServiceInfo | None = None

    @classmethod
    async def open(
        cls, networks: tuple[Interface, ...], counters: Counters, rng: random.Random
    ) -> Multicast:
        """Start listening; raises ``MulticastUnavailable``."""
        from zeroconf import Error
        from zeroconf.asyncio import AsyncZeroconf

        if not networks:
            raise MulticastUnavailable(
                "no interface of this machine that is up has an address of network.listen; connect "
                "it to a network, or correct network.listen"
            )
        hosts = [str(interface.ip) for interface in networks]
        try:
            zeroconf = AsyncZeroconf(interfaces=hosts)
            _drop_unsendable(zeroconf.zeroconf, counters)
            try:
                await zeroconf.zeroconf.async_wait_for_start()
            except BaseException:
                await zeroconf.async_close()
                raise
        except (OSError, RuntimeError, Error) as error:
            raise MulticastUnavailable(
                f"no multicast DNS at {', '.join(hosts)}: {error or type(error).__name__}; check "
                "whether another program uses UDP port 5353, or set network.lan = false"
            ) from error
        return cls(networks, zeroconf, _browser(zeroconf), counters, rng)

    async def again(self) -> None:
        """Repeat query and announcement, which zeroconf sends once: packets get lost."""
        await self._browser.async_cancel()
        self._browser = _browser(self._zeroconf)
        if self._announced is not None:
            await self._zeroconf.async_update_service(self._announced)

    async def announce(self, peer_id: str, swarm: bytes, port: int) -> None:
        """Announce this node and answer queries.

        No name is claimed or defended: dialing reveals another node under the same name.
        """
        from zeroconf import ServiceInfo

        info = ServiceInfo(
            SERVICE,
            f"{peer_id}.{SERVICE}",
            port=port,
            properties=text_of(peer_id, swarm),
            server=f"{peer_id}.local.",
            parsed_addresses=[str(interface.ip) for interface in self.networks],
        )
        await self._zeroconf.async_register_service(info, cooperating_responders=True)
        self._announced = info

    async def seen(self) -> list[Sighting]:
        """Return the nodes behind a sample of all received names."""
        names = {
            record.alias
            for record in self._zeroconf.zeroconf.cache.entries_with_name(SERVICE)
            if hasattr(record, "alias")
        }
        sample = self._rng.sample(sorted(names), min(DRAWN, len(names)))
        sightings: list[Sighting] = []
        incomplete: list[Any] = []
        for name in sample:
            info = self._known(name)
            if info is None:
                continue
            if info.port is not None and info.text and info.parsed_addresses():
                sightings += self._read(info)
            elif len(incomplete) < ASKED:
                incomplete.append(info)
        await asyncio.gather(*map(self._ask, incomplete))
        return [*sightings, *(sighting for info in incomplete for sighting in self._read(info))]

    async def close(self) -> None:
        """Withdraw the name and close all sockets."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._browser.async_cancel()
                await self._zeroconf.async_close()
        except OSError as error:  # a timeout too
            self._counters.add("lan_failed")
            logger.info("leaving the local network: %s", error or type(error).__name__)

    def _known(self, name: str) -> Any:
        """Return the cached records of a name; None if it is not one of this service."""
        from zeroconf import BadTypeInNameException
        from zeroconf.asyncio import AsyncServiceInfo

        try:
            info = AsyncServiceInfo(SERVICE, name)
        except BadTypeInNameException:
            self._counters.add("lan_names_refused", reason="name")
            return None
        info.load_from_cache(self._zeroconf.zeroconf)
        return info

    async def _ask(self, info: Any) -> None:
        from zeroconf import Error

        with suppress(Error):  # the answer named a host that no question can name
            await info.async_request(self._zeroconf.zeroconf, 1000 * ASK_SECONDS)

    def _read(self, info: Any) -> tuple[Sighting, ...]:
        try:
            return sightings_of(info.properties, info.port, info.parsed_addresses(), self.networks)
        except BadSighting as error:
            self._counters.add("lan_names_refused", reason=str(error))
            return ()


def _browser(zeroconf: AsyncZeroconf) -> AsyncServiceBrowser:
    """Query for multicast answers: a unicast one reaches any program on port 5353."""
    from zeroconf import DNSQuestionType
    from zeroconf.asyncio import AsyncServiceBrowser

    def heard(**change: Any) -> None:
        """Do nothing: the cache holds the record, but a browser requires a handler."""

    qtype = DNSQuestionType.QM
    return AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[heard], question_type=qtype)


def _drop_unsendable(zeroconf: Zeroconf, counters: Counters) -> None:
    """Remove received records whose names cannot be sent: they would end every question.

    A question repeats the known answers, and a byte that is not UTF-8 is read as a longer one.
    """
    from zeroconf import RecordUpdate, RecordUpdateListener

    class Listener(RecordUpdateListener):
        refused: tuple[Any, ...] = ()

        def async_update_records(
            self, zc: Zeroconf, now: float, records: list[RecordUpdate]
        ) -> None:
            self.refused = tuple({each.new: None for each in records if not _sendable(each.new)})

        def async_update_records_complete(self) -> None:
            if self.refused:
                records = [record for record in self.refused if zeroconf.cache.get(record)]
                zeroconf.cache.async_remove_records(records)
                counters.add("lan_names_refused", len(self.refused), reason="name")

    zeroconf.async_add_listener(Listener(), None)


def _sendable(record: Any) -> bool:
    """Return whether a packet can contain all names of a record (RFC 1035 §2.3.4)."""
    names = [record.name, *(getattr(record, attr, "local.") for attr in ("alias", "server"))]
    encoded = [name.encode().removesuffix(b".") for name in names]
    return all(
        len(name) <= MAX_NAME_BYTES
        and all(0 < len(label) <= MAX_LABEL_BYTES for label in name.split(b"."))
        for name in encoded
    )


def networks(listen: Sequence[str]) -> tuple[Interface, ...]:
    """Return this machine's addresses among ``listen``, each with its network.

    The loopback interface counts only if there is no other. Link-local IPv6 addresses are omitted,
    because a multiaddress does not name their interface. 0.0.0.0 and :: mean all of their family.
    """
    active = {name for name, state in psutil.net_if_stats().items() if state.isup}
    interfaces: list[Interface] = []
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if not each.netmask or "%" in each.address:
                continue
            if name in active and each.family in FAMILIES:
                bits = int(ipaddress.ip_address(each.netmask)).bit_count()
                interfaces.append(ipaddress.ip_interface(f"{each.address}/{bits}"))
    hosts = {ipaddress.ip_address(host) for host in map(host_of, listen) if host}
    wildcards = {type(host) for host in hosts if host.is_unspecified}
    matching = [each for each in interfaces if each.ip in hosts or type(each.ip) in wildcards]
    non_loopback = [each for each in matching if not each.ip.is_loopback]
    result = sorted(non_loopback or matching, key=lambda each: (each.version, each.ip))
    return tuple(result[:MAX_INTERFACES])


LOOK_SECONDS = 2.0
FIRST_PAUSE = 15.0  # seconds until a repeat; each doubles the pause (RFC 6762 §5.2, §8.3)
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
        candidates = [
            sighting
            for sighting in dict.fromkeys(seen)
            if sighting.swarm.startswith(swarm)
            and sighting.peer_id != self._own
            and sighting.peer_id not in connected
            and not self._failed.waits(sighting)
        ]
        self._rng.shuffle(candidates)
        return self._fair(candidates)[: min(AT_A_TIME, ENOUGH - len(self._met))]

    def reached(self, sighting: Sighting) -> None:
        self._failed.succeeded(sighting)
        self._met.add(sighting.peer_id)

    def failed(self, sighting: Sighting) -> None:
        """Note that no peer, or another peer, answered."""
        self._failed.failed(sighting)

    def _fair(self, sightings: list[Sighting]) -> list[Sighting]:
        """Take one per host, then the second ones; no peer twice."""
        turns: list[list[Sighting]] = [[] for _ in range(EACH)]
        counts: dict[str, int] = {}
        peers: set[str] = set()
        for sighting in sightings:
            turn = counts.get(sighting.host, 0)
            if turn < EACH and sighting.peer_id not in peers:
                turns[turn].append(sighting)
                counts[sighting.host] = turn + 1
                peers.add(sighting.peer_id)
        return [sighting for turn in turns for sighting in turn]


@dataclass(eq=False, repr=False)
class Discovery:
    """The search on the local network; coroutines run on the transport's loop."""

    _transport: Transport
    _listen: Sequence[str]
    _clock: Clock
    _counters: Counters

    def __post_init__(self) -> None:
        self._rng = random.Random()
        self._neighbours = Neighbours(self._transport.peer_id, self._clock, self._rng)
        self._multicast: Multicast | None = None
        self._swarm = b""  # of this node, empty until it is a member
        self._announced = (b"", 0)  # swarm and port
        # Pauses between repetitions of query and announcement, which double.
        self._repeats: Backoff[Multicast] = Backoff(
            self._clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE
        )
        self._last_failure = ""

    async def look(self, swarm: str = "") -> list[Sighting]:
        """Return peers to dial in search of a swarm; raises ``MulticastUnavailable``.

        ``swarm`` is its id in hex or its beginning; empty for any.
        """
        multicast = await self._listening()
        return self._neighbours.due(await multicast.seen(), self._transport.peers(), swarm)

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
                self._last_failure = ""
            except MulticastUnavailable as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - a stranger must not end the search
                self._failed(f"{type(error).__name__}: {error}; listening again", error)
                await self.close()
            await self._clock.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Withdraw the announcement and stop listening; may be called twice."""
        multicast, self._multicast, self._announced = self._multicast, None, (b"", 0)
        if multicast is not None:
            self._repeats.succeeded(multicast)
            await multicast.close()

    async def _try(self, sighting: Sighting) -> None:
        with suppress(TransportError):  # already counted and logged
            await self.dial(sighting)

    async def _listening(self) -> Multicast:
        """Return the current listener, which is opened again after a change, and announce."""
        port = next(iter(own_ports((*self._listen, *self._transport.addresses()))), 0)
        interfaces, wanted = networks(self._listen), (self._swarm, port)
        if self._multicast is not None:
            moved = self._multicast.networks != interfaces
            if moved or (any(self._announced) and wanted != self._announced):
                logger.info("this machine is on other networks, or listens at another port now")
                await self.close()
        if self._multicast is None:
            self._multicast = await Multicast.open(interfaces, self._counters, self._rng)
            self._repeats.failed(self._multicast)
        elif not self._repeats.waits(self._multicast):
            await self._multicast.again()
            self._repeats.failed(self._multicast)
        if all(wanted) and wanted != self._announced:
            await self._multicast.announce(self._transport.peer_id, *wanted)
            self._announced = wanted
        return self._multicast

    def _failed(self, reason: str, error: Exception | None = None) -> None:
        self._counters.add("lan_failed")
        if reason != self._last_failure:  # log once, because it may last
            logger.warning("searching for members on the local network: %s", reason, exc_info=error)
        self._last_failure = reason
