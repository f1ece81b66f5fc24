"""Reachability: dial-back checks and their handler, and the use of relays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import sample

from protocol import messages
from protocol.errors import ProtocolError
from protocol.messages import MAX_PORTS, DialledBack
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff
from swarm.transport.dial_limits import FIRST_PORT, DialLimits, DialRefused
from swarm.transport.handshake import NoPeer
from swarm.transport.supervisor import Supervisor
from swarm.transport.transport import (
    HandlerLimits,
    Reach,
    Refusal,
    TransportError,
    Way,
    describe_reach,
    dialed,
    host_of,
    is_relayed,
    links_of,
    own_ports,
)

logger = logging.getLogger(__name__)

ASKED = 3
RELAYS = 3
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 1.0
RELAYED_AFTER_SECONDS = 10.0  # for relays to work before the node tries others
AGAIN_SECONDS = 60.0
DIRECT_SECONDS = 600.0  # between two checks: a router's address changes, a port is opened

Ask = Callable[[str, bytes], Awaitable[bytes]]  # (peer id, request) -> dial-back answer


class Reachability:
    """Monitor of one node's ``reach``; in the role "private" the node uses relays.

    ``relays`` says whether nodes of this kind relay for others.
    """

    def __init__(
        self, supervisor: Supervisor, ask: Ask, counters: Counters, *, relays: bool
    ) -> None:
        self.reach = Reach()
        self._relays = relays
        self._supervisor = supervisor
        self._ask = ask
        self._counters = counters
        self._answers: tuple[DialledBack, ...] = ()  # of the last dial-backs
        self._relaying: tuple[str, ...] = ()  # ids of the answering peers that relay
        self._failed_before = False
        self._fruitless = 0

    @property
    def relays(self) -> bool:
        """Whether this node relays for others: it is not known to need relays itself."""
        return self._relays and not self._supervisor.settings.client

    async def run(self) -> None:
        """Check until cancelled."""
        loop = asyncio.get_running_loop()
        asked_at = relayed_at = -DIRECT_SECONDS
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = loop.time()
            self._note()
            if self.reach.way == "relayed":
                relayed_at = now
            lost = self._supervisor.settings.client and now > relayed_at + RELAYED_AFTER_SECONDS
            if now < asked_at + self._pause(lost):
                continue
            links = links_of(self._supervisor.connected)
            if not (peers := [peer for peer, way in links.items() if way == "direct"]):
                continue
            answered, asked_at = await self._try(peers), loop.time()
            if answered and self._decide(lost):
                relayed_at = loop.time()

    async def _try(self, peers: list[str]) -> bool:
        # Returns whether any of the asked peers answered.
        ports = self._ports()
        subset = sample(peers, min(ASKED, len(peers)))
        results = await asyncio.gather(*(self._dialled_by(peer, ports) for peer in subset))
        answers = {
            peer: answer for peer, answer in zip(subset, results, strict=True) if answer is not None
        }
        if answers:
            self._answers = tuple(answers.values())
            self._relaying = tuple(peer for peer, answer in answers.items() if answer.relays)
        self._fruitless = 0 if answers else self._fruitless + 1
        return bool(answers)

    async def _dialled_by(self, peer: str, ports: tuple[int, ...]) -> DialledBack | None:
        try:
            answer = await self._ask(peer, messages.encode_dial_back_request(ports))
            return messages.decode_dial_back_response(answer, ports)
        except (TransportError, ProtocolError) as error:
            self._counters.add("dial_backs_failed")
            logger.debug("peer %s did not try to dial this node: %s", peer, error)
            return None

    def _decide(self, lost: bool) -> bool:
        # Returns whether the node restarts in another role.
        supervisor, settings = self._supervisor, self._supervisor.settings
        if dialed(self._answers):
            self._failed_before = False
            if settings.client:
                supervisor.become("public", (), "peers can dial this node now")
                return True
            self._set("direct")
            return False
        if self.reach.way == "direct" and not self._failed_before:
            self._failed_before = True  # try again: the fault may be the peers'
            return False
        relays = self._addresses_of(self._relaying)
        if relays and (lost or not settings.client or not settings.relays):
            cause = self._described("unreachable").cause
            supervisor.become("private", relays, f"{cause}; taking relays")
            self._set("unreachable")
            return True
        self._note()
        return False

    def _pause(self, lost: bool) -> float:
        if self._fruitless:
            return min(AGAIN_SECONDS, 2.0 ** min(self._fruitless, 10))
        if lost or self._failed_before:
            return RELAYED_AFTER_SECONDS
        return {"direct": DIRECT_SECONDS, "unknown": 0.0}.get(self.reach.way, AGAIN_SECONDS)

    def _note(self) -> None:
        way = self.reach.way
        if self._supervisor.settings.client or (way != "direct" and self._answers):
            relayed = any(map(is_relayed, self._supervisor.node.addresses))
            way = "relayed" if relayed else "unreachable"
        self._set(way)

    def _set(self, way: Way) -> None:
        if way != self.reach.way:
            self.reach = self._described(way)
            remedy = f". {self.reach.remedy}" if self.reach.remedy else ""
            logger.info("this node is %s: %s%s", way, self.reach.cause, remedy)

    def _described(self, way: Way) -> Reach:
        relays = {a.split("/p2p/")[1] for a in self._supervisor.node.addresses if is_relayed(a)}
        hosts = [answer.host for answer in self._answers]
        return describe_reach(way, self._ports(), hosts, len(relays))

    def _ports(self) -> tuple[int, ...]:
        # In this order: announced, mapped by the router, listened on.
        settings, addresses = self._supervisor.settings, self._supervisor.node.addresses
        return own_ports((*settings.announce, *addresses, *settings.listen))[:MAX_PORTS]

    def _addresses_of(self, peers: Sequence[str]) -> tuple[str, ...]:
        connected = self._supervisor.connected
        groups = (filter(self._supervisor.dialable, connected.get(peer, ())) for peer in peers)
        return tuple(address for addresses in groups if (address := next(addresses, "")))[:RELAYS]


PAUSE_SECONDS = 5.0
LIMITS = HandlerLimits(messages.MAX_DIAL_BACK_REQUEST_BYTES, concurrent=4, concurrent_per_peer=1)

Connections = Callable[[str], Awaitable[tuple[str, ...]]]  # peer id -> current addresses


class DialBack:
    """The handler of ``/swarm-node/1/dial-back``.

    It dials only the address of the peer's connection. A peer cannot forge that address, because
    a connection carries packets both ways. Each peer gets one request per ``PAUSE_SECONDS`` and at
    most four ports, within ``dials``; each attempt sends 150 bytes and ends. ``connections``
    returns a peer's addresses; ``relays`` returns whether this node relays for others.
    """

    def __init__(
        self, connections: Connections, relays: Callable[[], bool], clock: Clock, dials: DialLimits
    ) -> None:
        self._connections = connections
        self._relays = relays
        self._dials = dials
        self._lately: Backoff[str] = Backoff(clock, first=PAUSE_SECONDS, longest=PAUSE_SECONDS)

    async def __call__(self, peer: str, request: bytes) -> bytes:
        try:
            ports = messages.decode_dial_back_request(request)
        except ProtocolError as error:
            raise Refusal(error.code) from error
        if self._lately.waits(peer):
            raise Refusal("asked_too_often")
        self._lately.failed(peer)
        addresses = await self._connections(peer)
        hosts = [host_of(address) for address in addresses if not is_relayed(address)]
        if not hosts:
            raise Refusal("relayed")
        if not (ports := tuple(port for port in ports if port >= FIRST_PORT)):
            raise Refusal("low_ports")
        checks = (self._answers(peer, hosts[0], port) for port in ports)
        try:
            results = await asyncio.gather(*checks)
        except DialRefused as error:
            raise Refusal("dialled_too_often") from error
        open_ports = tuple(port for port, is_open in zip(ports, results, strict=True) if is_open)
        return messages.encode_dial_back_response(DialledBack(hosts[0], open_ports, self._relays()))

    async def _answers(self, peer: str, host: str, port: int) -> bool:
        try:
            return await self._dials.prove(peer, host, port)
        except NoPeer as error:
            logger.debug("peer %s cannot be dialed: %s", peer, error)
            return False
