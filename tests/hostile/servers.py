"""Peers whose streams answer something else, nothing, or too slowly; and who ask in garbage."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Mapping
from contextlib import closing, suppress
from types import MappingProxyType

from protocol.messages import (
    GOSSIP_STREAM,
    MANIFEST_STREAM,
    PULL_STREAM,
    PullStatus,
    encode_pull_response,
)
from swarm.transport.node import StreamHandler
from swarm.transport.transport import TransportError
from tests.hostile.behaviour import Behaviour, NodeView, World
from tests.hostile.peer import Answer, Peer

FOR_EVER = 3600.0


class Offering(Behaviour):
    """Offers one good frame, which her streams then do not give."""

    async def begin(self, peer: Peer, world: World) -> None:
        peer.offer(peer.frame(peer.group(0), peer.group(1)))


class Otto(Offering):
    """He serves another frame than the one he announced, as good and as large as that."""

    threat = "other-frame"
    refused = MappingProxyType({"wrong_content": 1})
    strikes = 1.0

    async def begin(self, peer: Peer, world: World) -> None:
        await super().begin(peer, world)
        (offer,) = peer.offers
        frame = bytearray(peer.frames[offer.content_id])
        frame[-1] ^= 1
        self._other = bytes(frame)

    def answers(self, peer: Peer) -> Mapping[str, Answer]:
        async def other(asker: str, request: bytes) -> bytes:
            peer.note(self._other)
            return encode_pull_response(PullStatus.OK, self._other)

        return {PULL_STREAM: other}


class Olga(Offering):
    """She declares an answer of 4 GiB, and sends as much of it as anybody takes."""

    threat = "bombs"
    refused = MappingProxyType({"response_too_large": 1})
    strikes = 1.0

    def raw(self, peer: Peer) -> Mapping[str, StreamHandler]:
        async def pour(
            asker: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            with closing(writer), suppress(OSError):
                writer.write(struct.pack(">I", 0xFFFFFFFF))
                for _ in range(1 << 10):
                    writer.write(bytes(1 << 16))
                    await writer.drain()

        return {PULL_STREAM: pour}


class Sid(Offering):
    """He is silent: takes the request, says nothing, keeps the stream."""

    threat = "silence"
    strikes = None
    counted = ("pulls_failed{reason=deadline}",)

    def raw(self, peer: Peer) -> Mapping[str, StreamHandler]:
        async def keep(
            asker: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(FOR_EVER)

        return {PULL_STREAM: keep, GOSSIP_STREAM: keep}


class Nell(Offering):
    """She announces and does not serve: nothing there, no time, hanging up."""

    threat = "announced-not-served"
    strikes = None
    counted = ("pulls_failed{reason=not_found}", "pulls_failed{reason=busy}")

    def answers(self, peer: Peer) -> Mapping[str, Answer]:
        turns = iter([PullStatus.NOT_FOUND, PullStatus.BUSY] * 1000)

        async def decline(asker: str, request: bytes) -> bytes:
            return encode_pull_response(next(turns))

        return {PULL_STREAM: decline}


class Sam(Offering):
    """Slow Sam trickles: a byte a second of an answer that he announced in full."""

    threat = "trickle"
    strikes = None
    counted = ("pulls_failed{reason=too_slow}",)

    def raw(self, peer: Peer) -> Mapping[str, StreamHandler]:
        async def trickle(
            asker: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            with closing(writer), suppress(OSError):
                (offer,) = peer.offers
                writer.write(struct.pack(">I", offer.size + 1))
                for byte in encode_pull_response(PullStatus.OK, peer.frames[offer.content_id]):
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(1.0)

        return {PULL_STREAM: trickle}


class Gina(Behaviour):
    """She gossips garbage: nesting, random bytes, records without end."""

    threat = "garbage-gossip"
    counted = ("gossip_failed",)

    def answers(self, peer: Peer) -> Mapping[str, Answer]:
        turns = iter([b"\x90" * 100_000, b"\xdd\xff\xff\xff\xff", os.urandom(4000), b""] * 1000)

        async def babble(asker: str, request: bytes) -> bytes:
            return next(turns)

        return {GOSSIP_STREAM: babble, MANIFEST_STREAM: babble}


class Gus(Behaviour):
    """He asks in garbage on every stream: wrong lengths, random bytes, half requests, hang-ups."""

    threat = "garbage-requests"
    counted = (
        f"requests_refused{{protocol={PULL_STREAM}",
        f"requests_refused{{protocol={GOSSIP_STREAM}",
        f"requests_refused{{protocol={MANIFEST_STREAM}",
        "streams_lost",
    )

    def requests(self) -> tuple[bytes, ...]:
        """What he writes on a stream before he listens."""
        return (
            b"",
            b"\x00\x00",
            struct.pack(">I", 0xFFFFFFFF) + bytes(4096),
            struct.pack(">I", 32) + bytes(3),
            struct.pack(">I", 3) + b"abc",
            struct.pack(">I", 64) + os.urandom(64),
            struct.pack(">I", 64) + b"\x91" * 64,
            os.urandom(1000),
        )

    async def turn(self, peer: Peer, world: World) -> None:
        streams = (PULL_STREAM, GOSSIP_STREAM, MANIFEST_STREAM, "/swarm-node/9/none")
        for protocol in streams:
            for request in self.requests():
                await self._ask(peer, world.target, protocol, request)

    async def _ask(self, peer: Peer, target: NodeView, protocol: str, request: bytes) -> None:
        try:
            reader, writer = await peer.node.open_stream(target.peer_id, protocol)
        except TransportError:
            return
        try:
            writer.write(request)
            async with asyncio.timeout(0.3):
                await writer.drain()
                await reader.read(1 << 16)
        except (OSError, TimeoutError):
            pass
        finally:
            writer.close()
