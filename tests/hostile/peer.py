"""A peer over a real p2p daemon that can break each rule of the protocol.

It signs any bytes into frames and records, stores them in the DHT itself, and answers every stream
in its own way. It records what it served, which determines what a node may have trained on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgpack

from node.tasks.scorer import score
from node.tasks.task import Task, TaskSource
from node.tasks.task_set import Allowed, open_envs
from protocol import envelope
from protocol.announcement import (
    Announcement,
    Offer,
    epoch_of,
    offer_of,
    open_announcement,
    record_key,
    shard_of,
    sign_announcement,
    task_seed,
)
from protocol.envelope import compress_body
from protocol.frame import content_id, open_frame, seal
from protocol.identity import Identity, peer_id_of
from protocol.manifest import Manifest, open_manifest, swarm_id
from protocol.messages import (
    GOSSIP_STREAM,
    MANIFEST_STREAM,
    MAX_GOSSIP,
    MAX_GOSSIP_REQUEST_BYTES,
    MAX_GOSSIP_RESPONSE_BYTES,
    MAX_PULL_RESPONSE_BYTES,
    PULL_STREAM,
    GossipRequest,
    PullStatus,
    decode_gossip_response,
    decode_pull_response,
    encode_gossip_request,
    encode_gossip_response,
    encode_pull_response,
)
from protocol.rollout import Batch, Group, Tokens, encode_batch
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.node import StreamHandler
from swarm.transport.transport import HandlerLimits, TransportError
from tests.swarm.experience_parts import group

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
RIGHT = "<the right answer>"
NO_ENCODING = bytes(32)
EASY = "chain_sum"
START_SECONDS = 120.0
LIMITS = HandlerLimits(MAX_GOSSIP_REQUEST_BYTES, concurrent=64, concurrent_per_peer=64)

Answer = Callable[[str, bytes], Awaitable[bytes]]
"""(peer id, request) -> the complete answer."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A swarm's manifest, signed and opened, and its tasks."""

    signed: bytes
    manifest: Manifest
    swarm: bytes
    sources: Mapping[str, TaskSource]

    @classmethod
    def of(cls, signed: bytes) -> Terms:
        manifest = open_manifest(signed)
        return cls(signed, manifest, swarm_id(signed), open_envs(manifest.catalogue, Allowed())[0])

    @property
    def epoch(self) -> int:
        return epoch_of(time.time(), self.manifest.epoch_seconds)


@dataclass(frozen=True, slots=True)
class Served:
    """A frame that a peer served."""

    author: bytes
    frame: bytes
    at: float


class Peer:
    """One key and one daemon; all coroutines belong to one event loop."""

    def __init__(self, name: str, folder: Path, terms: Terms, served: list[Served]) -> None:
        key = folder / f"{name}.key"
        self.name = name
        self.terms = terms
        self.identity = Identity.load(key) if key.exists() else Identity.create(key)
        self.transport = HivemindTransport(
            key, listen=LISTEN, start_timeout=START_SECONDS, counters=Counters()
        )
        self.transport.use_validator(lambda record: True)
        self.frames: dict[bytes, bytes] = {}
        self.offers: list[Offer] = []
        self.gossips: list[bytes] = []
        self.sequence = count(int(time.time() * 1000))
        self._served = served

    @property
    def author(self) -> bytes:
        return self.identity.author

    @property
    def node(self) -> HivemindNode:
        """The daemon's client, for calls that bypass the transport's checks."""
        return self.transport.node

    async def start(
        self,
        addresses: Sequence[str],
        answers: Mapping[str, Answer] = MappingProxyType({}),
        raw: Mapping[str, StreamHandler] = MappingProxyType({}),
    ) -> None:
        """Start and dial; ``answers`` and ``raw`` replace the honest streams."""
        honest: dict[str, Answer] = {
            PULL_STREAM: self.answer_pull,
            GOSSIP_STREAM: self.answer_gossip,
            MANIFEST_STREAM: self.answer_manifest,
        }
        for protocol, answer in {**honest, **answers}.items():
            if protocol not in raw:
                self.transport.handle(protocol, answer, LIMITS)
        await self.transport.start()
        for protocol, handler in raw.items():
            await self.node.add_handler(protocol, handler)
        await asyncio.gather(*map(self._dial, addresses))

    async def _dial(self, address: str) -> None:
        """Connect, and retry while a busy machine does not answer."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return await self.transport.connect(address)
            except TransportError:
                if time.monotonic() > deadline:
                    raise

    async def answer_pull(self, peer: str, request: bytes) -> bytes:
        frame = self.frames.get(request)
        if frame is None:
            return encode_pull_response(PullStatus.NOT_FOUND)
        self.note(frame)
        return encode_pull_response(PullStatus.OK, frame)

    async def answer_gossip(self, peer: str, request: bytes) -> bytes:
        return encode_gossip_response(self.gossips)

    async def answer_manifest(self, peer: str, request: bytes) -> bytes:
        return self.terms.signed

    def note(self, frame: bytes) -> None:
        self._served.append(Served(self.author, frame, time.time()))

    def task(self, index: int, *, env: str = EASY, level: int = 0, epoch: int) -> Task:
        return self.terms.sources[env].build(level, task_seed(self.author, epoch, index))

    def group(
        self,
        index: int,
        texts: Sequence[str] = (RIGHT, "no idea"),
        *,
        claims: Sequence[float] = (),
        env: str = EASY,
        level: int = 0,
        epoch: int | None = None,
    ) -> Group:
        """Answer a task of this author, with true rewards unless others are claimed."""
        epoch = self.terms.epoch if epoch is None else epoch
        if RIGHT in texts or not claims:
            task = self.task(index, env=env, level=level, epoch=epoch)
            texts = [str(task.entry["answer"]) if text == RIGHT else text for text in texts]
            claims = claims or score(self.terms.sources[env], task, texts).rewards
        options = {"epoch": epoch, "env": env, "level": level, "texts": texts}
        return group(index, claims, tokens=False, **options)

    def batch(self, *groups: Group, encoding: bytes = NO_ENCODING) -> Batch:
        sequence = next(self.sequence)
        return Batch(sequence, 1, time.time(), "tiny", encoding, 1.0, 16, groups)

    def frame(self, *groups: Group, encoding: bytes = NO_ENCODING, compress: bool = True) -> bytes:
        batch = self.batch(*groups, encoding=encoding)
        return seal(batch, self.identity, self.terms.swarm, compress=compress)

    def bare(self, plain: bytes, *, packed: bytes | None = None) -> bytes:
        """Sign a frame around any plain bytes, or around any ``packed`` body."""
        body = compress_body(plain, compress=False) if packed is None else packed
        return envelope.close(envelope.FRAME, self.terms.swarm, self.identity, body)

    def bent(self, group: Group, bend: Callable[[dict[str, Any]], None]) -> bytes:
        """Sign a frame of a group after ``bend`` changed the map of its batch."""
        wire = msgpack.unpackb(encode_batch(self.batch(group)), unicode_errors="surrogateescape")
        bend(wire)
        plain = msgpack.packb(wire, use_bin_type=True, unicode_errors="surrogateescape")
        return self.bare(plain)

    def offer(self, frame: bytes, *, groups: int = 1) -> Offer:
        """Announce a frame from now on, with its true contents if it can be opened."""
        try:
            batch = open_frame(frame, self.terms.swarm, self.terms.manifest).batch
            offer = offer_of(frame, batch, self.terms.manifest)
        except ValueError:
            offer = Offer(content_id(frame), len(frame), groups, bytes(8), groups)
        self.frames[offer.content_id] = frame
        self.offers.append(offer)
        return offer

    def record(self, offers: Sequence[Offer], **changes: Any) -> tuple[Announcement, bytes]:
        """Sign a current announcement, with ``changes`` to its fields."""
        epoch = changes.get("epoch", self.terms.epoch)
        manifest = self.terms.manifest
        shard, expiry = shard_of(self.author, epoch, 0), time.time() + 2 * manifest.epoch_seconds
        made = Announcement(epoch, 0, shard, next(self.sequence), 1, expiry, 0, tuple(offers))
        made = replace(made, **changes)
        return made, sign_announcement(made, self.identity, self.terms.swarm)

    def key_of(self, made: Announcement) -> str:
        return record_key(self.terms.swarm, made.epoch, made.depth, made.shard)

    async def announce(self, at: str, offers: Sequence[Offer] | None = None) -> None:
        """Store this peer's record with one replica, and return it to gossip requests."""
        made, record = self.record(self.offers[-4:] if offers is None else offers)
        self.gossips = [record]
        await self.put(at, self.key_of(made), self.author, record, made.expiry)

    async def put(self, peer: str, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Store any record with one DHT node; return whether the node accepted it."""
        from hivemind.dht.routing import DHTID
        from hivemind.p2p import PeerID

        protocol = self.node.dht.protocol
        answer = await protocol.call_store(
            PeerID.from_base58(peer),
            keys=[DHTID.generate(key)],
            values=[msgpack.packb(value, use_bin_type=True)],
            expiration_time=[expiry],
            subkeys=[subkey],
        )
        return bool(answer and answer[0])

    async def heard(self, author: bytes, peer: str) -> Announcement | None:
        """Return the latest announcement of an author that another peer knows."""
        query = encode_gossip_request(GossipRequest(max(0, self.terms.epoch - 9), MAX_GOSSIP))
        limits = {"limit": MAX_GOSSIP_RESPONSE_BYTES, "deadline": 30.0}
        answer = await self.transport.request(peer, GOSSIP_STREAM, query, **limits)
        swarm, manifest = self.terms.swarm, self.terms.manifest
        known = dict(open_announcement(r, swarm, manifest) for r in decode_gossip_response(answer))
        return known.get(author)

    async def takes_from(self, author: bytes, teller: str) -> bytes | None:
        """Pull an author's frame that another peer knows, if this peer offers none yet."""
        heard = None if self.offers else await self.heard(author, teller)
        if not heard or not heard.offers:
            return None
        pull = (peer_id_of(author), PULL_STREAM, heard.offers[0].content_id)
        answer = await self.transport.request(*pull, limit=MAX_PULL_RESPONSE_BYTES, deadline=30.0)
        return decode_pull_response(answer)[1]


def with_tokens(group: Group, ids: Sequence[int], logprob: float) -> Group:
    """Return the group with these token ids and this log-prob in each completion."""
    tokens = Tokens(tuple(ids), (logprob,) * len(ids), (1,) * len(ids))
    completions = tuple(
        replace(c, segments=(replace(c.segments[0], tokens=tokens),)) for c in group.completions
    )
    return replace(group, completions=completions)
