"""Limits on dials at addresses that peers claim, per host over all peers, ids and ports.

A claimed address may be a third party's. An address that answered with its peer's id is exempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from secrets import token_bytes

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, holder_of, lot
from swarm.transport.handshake import who_answers
from swarm.transport.transport import CIRCUIT, port_of

MOST_DIALS = 4  # per host and window, without those that answer with the right id
WINDOW_SECONDS = 60.0
FIRST_PORT = 1024  # lower ports belong to services of a machine's administrator
LOST = "a lost peer"  # in the place of a host
PROOF_SECONDS = 2.0  # less than a peer that asks to be dialed waits for an answer to begin
MAX_HOSTS = 4096
MAX_ANSWERED = 4096

Place = tuple[str, str, int]  # peer id, IP address or name, port


class DialRefused(ConnectionError):  # noqa: N818
    """This node does not dial a claimed address now."""


def place_in(address: str) -> Place:
    """Return whom a full multiaddress has dialed: its peer, or the relay that it leads through."""
    direct = address.partition(CIRCUIT)[0]
    _, _, host, *_ = [*direct.split("/"), "", ""]
    return direct.rpartition("/p2p/")[2], host, port_of(direct)


class DialLimits:
    """Bounds dials per host and remembers which addresses answered with their peer's id."""

    def __init__(self, clock: Clock, counters: Counters) -> None:
        secret = token_bytes(32)
        self._clock = clock
        self._counters = counters
        self._begun: dict[str, deque[float]] = {}
        self._under_way: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._answered: Bounded[Place, None] = Bounded(
            MAX_ANSWERED, lambda place: lot(secret, repr(place).encode())
        )

    def answered(self, address: str) -> bool:
        """Return whether a full multiaddress, or its relay, answered with the right id."""
        return place_in(address) in self._answered

    def note(self, address: str) -> None:
        """Note that a full multiaddress answered with the right id."""
        self._answered.put(place_in(address), None)

    async def prove(self, peer: str, host: str, port: int) -> bool:
        """Return whether a peer answers at a claimed address with its id.

        Raises NoPeer: no peer answers; DialRefused: as :meth:`dial`.
        """

        async def connect() -> bool:
            return await who_answers(host, port, PROOF_SECONDS) == peer

        return await self.dial(peer, host, port, connect)

    async def dial(
        self, peer: str, host: str, port: int, connect: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Dial a claimed address in its turn; return what ``connect`` does, whether it answered.

        Raises DialRefused: its host had too many dials, or the port is not one of peers.
        """
        if (peer, host, port) in self._answered:
            return await connect()
        name = holder_of(host)
        if port < FIRST_PORT or not name:
            raise self._refused(f"{host} port {port} is not a peer's address")
        async with self._turn(name) as restore:
            if answered := await connect():
                restore()
                self._answered.put((peer, host, port), None)
            return answered

    async def find(self, connect: Callable[[], Awaitable[object]]) -> None:
        """Have a lost peer dialed wherever it claims to be, in the turns of all lost peers."""
        async with self._turn(LOST) as restore:
            await connect()
            restore()

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[Callable[[], None]]:
        """Take one of a host's dials in this window; yield what gives it back.

        Without a free one, wait as long as a dial of this host is under way.
        """
        async with self._changed:
            # A dial that is answered gives its turn back.
            await self._changed.wait_for(lambda: self._free(name) or not self._under_way[name])
            if not self._free(name):
                raise self._refused(f"{name} did not answer as claimed {MOST_DIALS} times lately")
            dials = self._begun.pop(name, deque())
            dials.append(self._clock.monotonic())
            self._begun[name] = dials
            if len(self._begun) > MAX_HOSTS:
                del self._begun[next(iter(self._begun))]  # dialed longest ago
            self._under_way[name] += 1
        try:
            yield lambda: self._restore(name)
        finally:
            self._under_way -= Counter((name,))  # without counts of zero
            async with self._changed:
                self._changed.notify_all()

    def _free(self, host: str) -> bool:
        """Return whether a host has a dial left; forget dials before the window."""
        dials = self._begun.get(host, deque())
        while dials and dials[0] <= self._clock.monotonic() - WINDOW_SECONDS:
            dials.popleft()
        return len(dials) < MOST_DIALS

    def _restore(self, host: str) -> None:
        if dials := self._begun.get(host):
            dials.pop()

    def _refused(self, reason: str) -> DialRefused:
        self._counters.add("dials_refused")
        return DialRefused(f"{reason}; not dialed")
