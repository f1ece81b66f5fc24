"""A collector made of real parts, and authors that record their requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

from protocol.announcement import Offer
from protocol.messages import (
    GOSSIP_STREAM,
    PULL_STREAM,
    PullStatus,
    decode_gossip_request,
    decode_pull_request,
    encode_gossip_response,
    encode_pull_response,
)
from swarm.collector import Collector, CollectorLimits
from swarm.groups import PooledGroup
from swarm.transport.transport import HandlerLimits, Refusal
from tests.swarm.network_parts import MemorySwarm, Node, identity, signed_record

LIMITS = HandlerLimits(1024, concurrent=8, concurrent_per_peer=8)
MANY = CollectorLimits(pulls_per_epoch=1000)


class Gate:
    """Admits the given groups for any frame."""

    def __init__(self, groups: Sequence[PooledGroup] = ()) -> None:
        self.groups = groups

    async def admit(self, frame: bytes, expected_author: bytes, offer: Offer) -> list[PooledGroup]:
        return list(self.groups)


class Author:
    """A peer whose announcements the node knows, and which records its requests."""

    def __init__(self, parts: Parts, name: str) -> None:
        self.key = identity(name).author
        self.asked: list[bytes] = []
        self.gossips = 0
        self.limits: list[int] = []
        self.status = PullStatus.OK
        self.held: asyncio.Event | None = None
        self.dropped = 0
        self.silent = False
        self._parts = parts
        self._name = name
        self.frames: dict[bytes, bytes] = {}
        self._sequence = 0

    async def __aenter__(self) -> Author:
        self.transport = await self._parts.swarm.stranger(self._name)
        self.transport.handle(PULL_STREAM, self._pull, LIMITS)
        self.transport.handle(GOSSIP_STREAM, self._gossip, LIMITS)
        return self

    async def __aexit__(self, *failure: object) -> None:
        """Close nothing: the network is in memory."""

    def offer(self, number: int, *, informative: int = 1, size: int = 500) -> Offer:
        """Offer a frame by number; the bytes differ between authors."""
        frame = b"%s %d " % (self._name.encode(), number) + bytes(size)
        content_id = sha256(frame).digest()
        self.frames[content_id] = frame
        return Offer(content_id, len(frame), 4, bytes(8), informative)

    def announce(self, *offers: Offer) -> None:
        node, author = self._parts.node, identity(self._name)
        self._sequence += 1
        record = signed_record(node, author, *offers, sequence=self._sequence)
        assert node.directory.accept(record.value) is not None

    async def _pull(self, peer: str, request: bytes) -> bytes:
        content_id = decode_pull_request(request)
        self.asked.append(content_id)
        if self.held:
            try:
                await self.held.wait()
            except asyncio.CancelledError:
                self.dropped += 1
                raise
        if self.status is not PullStatus.OK:
            return encode_pull_response(self.status)
        return encode_pull_response(PullStatus.OK, self.frames[content_id])

    async def _gossip(self, peer: str, request: bytes) -> bytes:
        self.gossips += 1
        self.limits.append(decode_gossip_request(request).limit)
        if self.silent:
            raise Refusal("in a bad mood")
        return encode_gossip_response([])


class Parts:
    def __init__(self, limits: CollectorLimits = MANY, seed: int = 0) -> None:
        self.swarm = MemorySwarm()
        self.gate = Gate()
        self._limits = limits
        self._seed = seed
        self.node: Node

    async def __aenter__(self) -> Parts:
        self.node = node = await self.swarm.join("anna")
        self.collector = Collector(
            *(node.transport, node.directory, node.exchange, self.gate, node.pool, node.accounts),
            *(node.counters, self._limits, random.Random(self._seed), node.clock),
        )
        return self

    async def __aexit__(self, *failure: object) -> None:
        """Close nothing: nothing outlives the loop."""

    async def author(self, name: str) -> Author:
        return await Author(self, name).__aenter__()

    def trust(self, author: Author) -> None:
        self.node.accounts.prove([(author.key, 1.0)] * 8)

    async def turn(self) -> None:
        await self.collector.look()
        await self.collector.settle()


def run(scenario: Callable[[Parts], Awaitable[None]], limits=MANY, seed=0) -> None:
    async def main() -> None:
        async with asyncio.timeout(120):
            async with Parts(limits, seed) as parts:
                await scenario(parts)

    asyncio.run(main())
