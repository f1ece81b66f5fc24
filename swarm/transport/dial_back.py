"""Dialling a peer back that asks whether it can be dialled: at its own address, and no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from protocol.errors import ProtocolError
from protocol.messages import (
    MAX_DIAL_BACK_REQUEST_BYTES,
    DialledBack,
    decode_dial_back_request,
    encode_dial_back_response,
)
from swarm.common.clock import Clock
from swarm.common.fair_limits import Backoff
from swarm.transport.noise import NoPeer, who_answers
from swarm.transport.reach import host_of, is_relayed
from swarm.transport.transport import Limits, Refusal

logger = logging.getLogger(__name__)

DIAL_SECONDS = 2.0
"""Less than an asker waits for an answer to begin."""

PAUSE_SECONDS = 5.0
LIMITS = Limits(MAX_DIAL_BACK_REQUEST_BYTES, concurrent=4, concurrent_per_peer=1)

Connections = Callable[[str], Awaitable[tuple[str, ...]]]
"""Addresses of a peer's present connections, by peer id."""


class DialBack:
    """The handler of ``/swarm-node/1/dial-back``.

    A peer has its own address dialled only: the one that its connection comes from, which it
    cannot feign, as a connection takes packets both ways. It has that done once in
    ``PAUSE_SECONDS`` and at four ports at most; each attempt sends 150 bytes and ends.

    Args:
        connections: of a peer.
        relays: whether this node is one that others can dial.
    """

    def __init__(self, connections: Connections, relays: Callable[[], bool], clock: Clock) -> None:
        self._connections = connections
        self._relays = relays
        self._lately: Backoff[str] = Backoff(clock, first=PAUSE_SECONDS, longest=PAUSE_SECONDS)

    async def __call__(self, peer: str, request: bytes) -> bytes:
        """The answer; as :data:`swarm.transport.transport.Handler`."""
        try:
            ports = decode_dial_back_request(request)
        except ProtocolError as error:
            raise Refusal(error.code) from error
        if self._lately.waits(peer):
            raise Refusal("asked_too_often")
        self._lately.failed(peer)
        addresses = await self._connections(peer)
        hosts = [host_of(address) for address in addresses if not is_relayed(address)]
        if not hosts:
            raise Refusal("relayed")
        answered = await asyncio.gather(*(_answers(peer, hosts[0], port) for port in ports))
        opened = tuple(port for port, is_open in zip(ports, answered, strict=True) if is_open)
        return encode_dial_back_response(DialledBack(hosts[0], opened, self._relays()))


async def _answers(peer: str, host: str, port: int) -> bool:
    try:
        return await who_answers(host, port, DIAL_SECONDS) == peer
    except NoPeer as error:
        logger.debug("peer %s cannot be dialled: %s", peer, error)
        return False
