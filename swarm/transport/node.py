"""What a transport asks of the node below it: one identity's connections and hash table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from swarm.common.counters import Counters
from swarm.transport.guests import Guests
from swarm.transport.records import RecordGate
from swarm.transport.settings import NodeSettings

StreamHandler = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""(peer id, reader, writer) of an incoming stream."""


class Node(Protocol):
    """Lives until it fails or is stopped; decides and retries nothing."""

    @property
    def peer_id(self) -> str:
        """Base58 libp2p peer id."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full multiaddresses as last looked at, those through relays first."""

    @property
    def gate(self) -> RecordGate:
        """Where the check of records is set."""

    @property
    def daemon(self) -> int | None:
        """Process id of the daemon below it; None where there is none."""

    async def connect(self, address: str) -> tuple[str, float]:
        """Dial a peer and meet it in the hash table: its id, and its clock in unix seconds.

        Raises:
            PeerUnreachable
        """

    async def find_neighbours(self) -> None:
        """Fill the routing table with the nodes nearest to this one."""

    async def connected(self) -> dict[str, tuple[str, ...]]:
        """Full addresses of the peers connected, by peer id."""

    async def seen_at(self, peer: str) -> tuple[str, ...]:
        """Addresses that a peer's connections come from or go to, whatever it says itself."""

    async def look(self) -> None:
        """Bring the addresses up to date: those through relays come and go."""

    async def disconnect(self, peer: str) -> None:
        """End all connections with a peer, and its streams with them."""

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Whether at least one replica took the record."""

    async def read(self, key: str) -> dict[bytes, bytes]:
        """Records under ``key``, merged over its replicas."""

    async def add_handler(self, protocol: str, handler: StreamHandler) -> None:
        """Serve incoming streams of ``protocol``."""

    async def open_stream(
        self, peer: str, protocol: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream to ``peer``, dialling it if need be.

        Raises:
            PeerUnreachable
        """

    async def call(self, peer: str, name: str, request: bytes) -> bytes:
        """What a peer's handler of that name answers; :class:`Refused` where it does not."""

    def stand_still(self, seconds: float) -> None:
        """Let the threads that it has of its own stand still for a while."""

    def end(self) -> None:
        """Come to an end, so that whoever watches it starts another."""

    async def wait_dead(self) -> str:
        """Return when it has failed, with what happened."""

    async def stop(self) -> None:
        """Leave nothing of it on the machine."""

    def at_same_port(self, settings: NodeSettings) -> NodeSettings:
        """``settings`` with the port that was drawn for ``/tcp/0`` written into ``listen``."""


Launch = Callable[[NodeSettings, Counters, Any, Guests], Awaitable[Node]]
"""Starts a node, in place of a dead one of its kind or None. Raises ``TransportError``."""
