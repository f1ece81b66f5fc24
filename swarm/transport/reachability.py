"""Finds out whether others can dial this node, and has it relayed for where they cannot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import sample

from protocol.errors import ProtocolError
from protocol.messages import (
    MAX_PORTS,
    DialledBack,
    decode_dial_back_response,
    encode_dial_back_request,
)
from swarm.common.counters import Counters
from swarm.transport.reach import (
    Reach,
    Way,
    dialled,
    is_relayed,
    links_of,
    port_of,
    told,
)
from swarm.transport.supervisor import Supervisor
from swarm.transport.transport import TransportError

logger = logging.getLogger(__name__)

ASKED = 3
RELAYS = 3
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 1.0
RELAYED_AFTER_SECONDS = 10.0
"""For the daemon to be relayed for, before other relays are tried."""

AGAIN_SECONDS = 60.0
DIRECT_SECONDS = 600.0
"""From one time that peers are asked to the next: a router's address changes, a port is opened."""

Ask = Callable[[str, bytes], Awaitable[bytes]]
"""(peer id, request) -> answer of its dial-back."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What the peers said that were asked last, and those among them that relay, by their ids."""

    answers: tuple[DialledBack, ...] = ()
    relays: tuple[str, ...] = ()


class Reachability:
    """Watches one node; in the role "private" it is relayed for.

    Args:
        relays: whether nodes of this kind relay for others.

    Attributes:
        reach: as it is now.
    """

    def __init__(
        self, supervisor: Supervisor, ask: Ask, counters: Counters, *, relays: bool
    ) -> None:
        self.reach = Reach()
        self._relays = relays
        self._supervisor = supervisor
        self._ask = ask
        self._counters = counters
        self._tried = Tried()
        self._failed_before = False
        self._fruitless = 0

    @property
    def relays(self) -> bool:
        """Whether this node relays for others: it is not known to need that itself."""
        return self._relays and not self._supervisor.settings.client

    async def run(self) -> None:
        """Look until cancelled."""
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
            if not (near := self._near()):
                continue
            answered, asked_at = await self._try(near), loop.time()
            if answered and self._decide(lost):
                relayed_at = loop.time()

    def _near(self) -> list[str]:
        """Peers that are connected directly."""
        links = links_of(self._supervisor.connected)
        return [peer for peer, way in links.items() if way == "direct"]

    async def _try(self, near: list[str]) -> bool:
        """Ask some of these peers to dial this node; whether any answered."""
        ports = self._ports()
        chosen = sample(near, min(ASKED, len(near)))
        found = await asyncio.gather(*(self._dialled_by(peer, ports) for peer in chosen))
        answers = {
            peer: answer for peer, answer in zip(chosen, found, strict=True) if answer is not None
        }
        if answers:
            relays = tuple(peer for peer, answer in answers.items() if answer.relays)
            self._tried = Tried(tuple(answers.values()), relays)
        self._fruitless = 0 if answers else self._fruitless + 1
        return bool(answers)

    async def _dialled_by(self, peer: str, ports: tuple[int, ...]) -> DialledBack | None:
        try:
            answer = await self._ask(peer, encode_dial_back_request(ports))
            return decode_dial_back_response(answer, ports)
        except (TransportError, ProtocolError) as error:
            self._counters.add("dial_backs_failed")
            logger.debug("peer %s did not try to dial this node: %s", peer, error)
            return None

    def _decide(self, lost: bool) -> bool:
        """Have the node run as the answers say; whether it changes."""
        supervisor, settings = self._supervisor, self._supervisor.settings
        if dialled(self._tried.answers):
            self._failed_before = False
            if settings.client:
                supervisor.become("public", (), "peers can dial this node now")
                return True
            self._set("direct")
            return False
        if self.reach.way == "direct" and not self._failed_before:
            self._failed_before = True  # who tried may have been at fault: once more
            return False
        relays = self._addresses_of(self._tried.relays)
        if relays and (lost or not settings.client or not settings.relays):
            supervisor.become(
                "private", relays, f"{self._told('unreachable').cause}; taking relays"
            )
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
        """Bring links and way up to date with the connections and addresses of this moment."""
        links = links_of(self._supervisor.connected)
        way = self.reach.way
        if self._supervisor.settings.client or (way != "direct" and self._tried.answers):
            relayed = any(map(is_relayed, self._supervisor.node.addresses))
            way = "relayed" if relayed else "unreachable"
        if way != self.reach.way:
            self._set(way)
        self.reach = replace(self.reach, links=links)

    def _set(self, way: Way) -> None:
        if way != self.reach.way:
            self.reach = self._told(way)
            remedy = f". {self.reach.remedy}" if self.reach.remedy else ""
            logger.info("this node is %s: %s%s", way, self.reach.cause, remedy)

    def _told(self, way: Way) -> Reach:
        through = {a.split("/p2p/")[1] for a in self._supervisor.node.addresses if is_relayed(a)}
        hosts = [answer.host for answer in self._tried.answers]
        return told(way, self._ports(), hosts, len(through))

    def _ports(self) -> tuple[int, ...]:
        """Where it may be dialled: as announced, as mapped by the router, as listened on."""
        settings = self._supervisor.settings
        own = (a for a in self._supervisor.node.addresses if not is_relayed(a))
        ports = map(port_of, (*settings.announce, *own, *settings.listen))
        return tuple(dict.fromkeys(port for port in ports if port))[:MAX_PORTS]

    def _addresses_of(self, peers: Sequence[str]) -> tuple[str, ...]:
        """One direct address of each of a few peers that are connected."""
        near = {
            peer: [a for a in self._supervisor.connected.get(peer, ()) if not is_relayed(a)]
            for peer in peers
        }
        return tuple(addresses[0] for addresses in near.values() if addresses)[:RELAYS]
