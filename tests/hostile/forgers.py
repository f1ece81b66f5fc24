"""Peers that put names under what was not signed by them who bear these names."""

from __future__ import annotations

from hashlib import sha256
from types import MappingProxyType

from protocol import envelope
from protocol.announcement import record_key
from protocol.identity import Identity
from tests.hostile.behaviour import Behaviour, World
from tests.hostile.peer import Peer

SMALL_ORDER = bytes((1,)) + bytes(31)
"""The neutral element of the curve as a public key: one signature serves for every message."""


def signed_as(author: bytes, peer: Peer) -> bytes:
    """A good group of the peer's under another author's name."""
    frame = peer.frame(peer.group(0))
    return frame[:40] + author + frame[72:]


class Mallory(Behaviour):
    """She forges: her frame says that an honest author wrote it. Barred, she goes on honestly."""

    threat = "forged-authors"
    refused = MappingProxyType({"bad_signature": 1})
    strikes = 5.0

    async def begin(self, peer: Peer, world: World) -> None:
        peer.offer(signed_as(world.honest.author, peer))

    async def turn(self, peer: Peer, world: World) -> None:
        if len(peer.offers) == 1 and world.target.standing(peer.author).barred:
            peer.offer(peer.frame(peer.group(1), peer.group(2)))
        await super().turn(peer, world)


class Wendy(Behaviour):
    """Her frame and a record bear a weak key, under which anybody can sign."""

    threat = "weak-keys"
    refused = MappingProxyType({"bad_key": 1})
    strikes = 5.0
    counted = ("records_refused",)

    async def begin(self, peer: Peer, world: World) -> None:
        peer.offer(signed_as(SMALL_ORDER, peer))

    async def turn(self, peer: Peer, world: World) -> None:
        await super().turn(peer, world)
        made, record = peer.record(peer.offers)
        weak = record[:40] + SMALL_ORDER + SMALL_ORDER + bytes(32) + record[envelope.HEAD_BYTES :]
        peer.gossips.append(weak)
        target = world.target.peer_id
        await peer.put(target, peer.key_of(made), SMALL_ORDER, weak, made.expiry)


class Tom(Behaviour):
    """He tampers with a frame after it was signed: one reward, one bit."""

    threat = "tampering"
    refused = MappingProxyType({"bad_signature": 1})
    strikes = 5.0

    async def begin(self, peer: Peer, world: World) -> None:
        frame = bytearray(peer.frame(peer.group(0)))
        frame[-1] ^= 1
        peer.offer(bytes(frame))


class Carl(Behaviour):
    """He announces an honest author's own frame as his."""

    threat = "copied-rollouts"
    refused = MappingProxyType({"wrong_author": 1})
    strikes = 5.0

    async def turn(self, peer: Peer, world: World) -> None:
        if not peer.offers:
            heard = await peer.heard(world.honest.author, world.target.peer_id)
            if heard and heard.offers:
                peer.offer(await peer.take(world.honest.identity.peer_id, heard.offers[0]))
        await super().turn(peer, world)


class Wanda(Behaviour):
    """She brings a frame that she signed for another swarm."""

    threat = "wrong-swarm"
    refused = MappingProxyType({"wrong_swarm": 1})
    strikes = 1.0

    async def begin(self, peer: Peer, world: World) -> None:
        body = peer.frame(peer.group(0))[envelope.HEAD_BYTES :]
        elsewhere = sha256(b"another swarm").digest()
        peer.offer(envelope.close(envelope.FRAME, elsewhere, peer.identity, body))


class Rita(Behaviour):
    """She stores records: under others' names and keys, too long, too early, and no records."""

    threat = "forged-records"
    counted = ("records_refused",)

    async def turn(self, peer: Peer, world: World) -> None:
        manifest, swarm = peer.terms.manifest, peer.terms.swarm
        target, honest = world.target.peer_id, world.honest.author
        made, record = peer.record(())
        key, soon = peer.key_of(made), made.expiry
        others = world.honest.gossips[0] if world.honest.gossips else record
        far, later = peer.record((), expiry=soon + 99 * manifest.epoch_seconds), soon + 5.0
        epoch = made.epoch + 1000
        ahead = peer.record((), epoch=epoch, expiry=(epoch + 1) * manifest.epoch_seconds)
        elsewhere = record_key(swarm, made.epoch, 2, 1)
        stored = [
            await peer.put(target, key, honest, record, soon),
            await peer.put(target, key, honest, others, later),
            await peer.put(target, elsewhere, peer.author, record, soon),
            await peer.put(target, key, peer.author, far[1], far[0].expiry),
            await peer.put(target, peer.key_of(ahead[0]), peer.author, ahead[1], ahead[0].expiry),
            await peer.put(target, key, peer.author, record, later),
            await peer.put(target, key, peer.author, b"\x90" * 900, soon),
            await peer.put(target, key, bytes(60), record, soon),
        ]
        assert not any(stored), f"the target keeps {stored}"


class Sybil(Behaviour):
    """She mints keys and tells of them, of some by gossip and of some in the hash table; nobody is
    behind them.
    """

    threat = "minted-keys"
    counted = ("announcements_by_gossip", "pulls_failed{reason=unreachable}")
    keys = 3

    async def begin(self, peer: Peer, world: World) -> None:
        self.minted = [Identity.generate() for _ in range(self.keys)]
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
