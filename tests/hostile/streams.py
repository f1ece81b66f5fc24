"""Peers that impersonate authors, create keys or break the stream protocols."""

import asyncio
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import closing, suppress

from protocol import envelope
from protocol.announcement import record_key
from protocol.identity import Identity
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
SMALL_ORDER = bytes((1,)) + bytes(31)
"""The curve's neutral element as a public key: one signature fits any message."""


def signed_as(author: bytes, peer: Peer) -> bytes:
    """Return a good frame of the peer under another author's name."""
    frame = peer.frame(peer.group(0))
    return frame[:40] + author + frame[72:]


class Mallory(Behaviour, penalties=5.0, bad_signature=1):
    """Forges an honest author's frame; once barred, continues with honest frames."""

    async def begin(self, peer: Peer, world: World) -> None:
        peer.offer(signed_as(world.honest.author, peer))

    async def turn(self, peer: Peer, world: World) -> None:
        if len(peer.offers) == 1 and world.target.reputation(peer.author).barred:
            peer.offer(peer.frame(peer.group(1), peer.group(2)))
        await super().turn(peer, world)


class Wendy(Behaviour, penalties=5.0, counted=("records_refused",), bad_key=1):
    """Uses a weak key, under which anyone can sign, for a frame and a record."""

    async def begin(self, peer: Peer, world: World) -> None:
        peer.offer(signed_as(SMALL_ORDER, peer))

    async def turn(self, peer: Peer, world: World) -> None:
        await super().turn(peer, world)
        made, record = peer.record(peer.offers)
        weak = record[:40] + SMALL_ORDER + SMALL_ORDER + bytes(32) + record[envelope.HEAD_BYTES :]
        peer.gossips.append(weak)
        await peer.put(world.target.peer_id, peer.key_of(made), SMALL_ORDER, weak, made.expiry)


class Carl(Behaviour, penalties=5.0, wrong_author=1):
    """Announces an honest author's frame as its own."""

    async def turn(self, peer: Peer, world: World) -> None:
        if frame := await peer.takes_from(world.honest.author, world.target.peer_id):
            peer.offer(frame)
        await super().turn(peer, world)


class Rita(Behaviour, counted=("records_refused",)):
    """Stores records under others' names and keys, too long, too early, or invalid."""

    async def turn(self, peer: Peer, world: World) -> None:
        manifest, swarm = peer.terms.manifest, peer.terms.swarm
        honest, author = world.honest.author, peer.author
        made, record = peer.record(())
        key, soon = peer.key_of(made), made.expiry
        others = world.honest.gossips[0] if world.honest.gossips else record
        far, later = peer.record((), expiry=soon + 99 * manifest.epoch_seconds), soon + 5.0
        epoch = made.epoch + 1000
        ahead, early = peer.record((), epoch=epoch, expiry=(epoch + 1) * manifest.epoch_seconds)
        stored = [
            await peer.put(world.target.peer_id, *each)
            for each in (
                (key, honest, record, soon),
                (key, honest, others, later),
                (record_key(swarm, made.epoch, 2, 1), author, record, soon),
                (key, author, far[1], far[0].expiry),
                (peer.key_of(ahead), author, early, ahead.expiry),
                (key, author, record, later),
                (key, author, b"\x90" * 900, soon),
                (key, bytes(60), record, soon),
            )
        ]
        assert not any(stored), f"the target accepted bad records: {stored}"


COUNTED = ("announcements_by_gossip", "pulls_failed{reason=unreachable}")


class Sybil(Behaviour, counted=COUNTED):
    """Creates keys without nodes, and announces some by gossip, some in the DHT."""

    async def begin(self, peer: Peer, world: World) -> None:
        self.minted = [Identity.generate() for _ in range(3)]
        peer.offer(peer.frame(peer.group(0)))

    async def turn(self, peer: Peer, world: World) -> None:
        await peer.announce(world.target.peer_id, ())
        own = peer.identity
        for number, identity in enumerate(self.minted):
            peer.identity = identity
            made, record = peer.record(peer.offers)
            if number % 2:
                key = peer.key_of(made)
                await peer.put(world.target.peer_id, key, identity.author, record, made.expiry)
            else:
                peer.gossips.append(record)
        peer.identity = own


def says(answer: Callable[[], bytes]) -> Answer:
    async def say(asker: str, request: bytes) -> bytes:
        return answer()

    return say


class Offering(Behaviour):
    """Offers one good frame, which its streams then do not return."""

    async def begin(self, peer: Peer, world: World) -> None:
        peer.offer(peer.frame(peer.group(0), peer.group(1)))


class Otto(Offering, penalties=1.0, wrong_content=1):
    """Serves a frame of the announced size that differs in one bit."""

    def answers(self, peer: Peer) -> Mapping[str, Answer]:
        (frame,) = peer.frames.values()
        other = frame[:-1] + bytes((frame[-1] ^ 1,))

        def serve() -> bytes:
            peer.note(other)
            return encode_pull_response(PullStatus.OK, other)

        return {PULL_STREAM: says(serve)}


class Olga(Offering, penalties=1.0, response_too_large=1):
    """Declares an answer of 4 GiB, and sends up to 64 MiB of it."""

    def raw(self, peer: Peer) -> Mapping[str, StreamHandler]:
        async def pour(asker: str, _: object, writer: asyncio.StreamWriter) -> None:
            with closing(writer), suppress(OSError):
                writer.write(struct.pack(">I", 0xFFFFFFFF))
                for _ in range(1 << 10):
                    writer.write(bytes(1 << 16))
                    await writer.drain()

        return {PULL_STREAM: pour}


class Sid(Offering, penalties=None, counted=("pulls_failed{reason=deadline}",)):
    """Accepts requests, sends nothing, and keeps the streams open."""

    def raw(self, peer: Peer) -> Mapping[str, StreamHandler]:
        async def keep(asker: str, *stream: object) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(FOR_EVER)

        return {PULL_STREAM: keep, GOSSIP_STREAM: keep}


DECLINED = tuple(f"pulls_failed{{reason={reason}}}" for reason in ("not_found", "busy"))


class Nell(Offering, penalties=None, counted=DECLINED):
    """Announces a frame, but answers pulls with NOT_FOUND or BUSY."""

    def answers(self, peer: Peer) -> Mapping[str, Answer]:
        turns = iter([PullStatus.NOT_FOUND, PullStatus.BUSY] * 1000)
        return {PULL_STREAM: says(lambda: encode_pull_response(next(turns)))}


class Sam(Offering, penalties=None, counted=("pulls_failed{reason=too_slow}",)):
    """Sends an announced frame at one byte per second."""

    def raw(self, peer: Peer) -> Mapping[str, StreamHandler]:
        (frame,) = peer.frames.values()

        async def trickle(asker: str, _: object, writer: asyncio.StreamWriter) -> None:
            with closing(writer), suppress(OSError):
                writer.write(struct.pack(">I", len(frame) + 1))
                for byte in encode_pull_response(PullStatus.OK, frame):
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(1.0)

        return {PULL_STREAM: trickle}


class Gina(Behaviour, counted=("gossip_failed",)):
    """Answers gossip and manifest requests with garbage."""

    def answers(self, peer: Peer) -> Mapping[str, Answer]:
        turns = iter([b"\x90" * 100_000, b"\xdd\xff\xff\xff\xff", os.urandom(4000), b""] * 1000)
        babble = says(lambda: next(turns))
        return {GOSSIP_STREAM: babble, MANIFEST_STREAM: babble}


STREAMS = (PULL_STREAM, GOSSIP_STREAM, MANIFEST_STREAM)
GARBLED = (*(f"requests_refused{{protocol={each}" for each in STREAMS), "streams_lost")


class Gus(Behaviour, counted=GARBLED):
    """Sends garbage requests on every stream: wrong lengths, random or partial bytes."""

    async def turn(self, peer: Peer, world: World) -> None:
        for protocol in (*STREAMS, "/swarm-node/9/none"):
            for request in (
                b"",
                b"\x00\x00",
                struct.pack(">I", 0xFFFFFFFF) + bytes(4096),
                struct.pack(">I", 32) + bytes(3),
                struct.pack(">I", 3) + b"abc",
                struct.pack(">I", 64) + os.urandom(64),
                struct.pack(">I", 64) + b"\x91" * 64,
                os.urandom(1000),
            ):
                await self._ask(peer, world.target, protocol, request)

    async def _ask(self, peer: Peer, target: NodeView, protocol: str, request: bytes) -> None:
        with suppress(TransportError):
            reader, writer = await peer.node.open_stream(target.peer_id, protocol)
            with closing(writer), suppress(OSError, TimeoutError):
                writer.write(request)
                async with asyncio.timeout(0.3):
                    await writer.drain()
                    await reader.read(1 << 16)
