"""A peer that records every announcement and frame, and does not train.

Usage: ``python -m tests.chaos.listener FOLDER IP PEER LIES``. The peer with ``LIES`` is larry: it
also shares groups of its own, and sometimes claims rewards that its answers do not earn. Nodes
must not train on those.
"""

import asyncio
import logging
import random
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from node.tasks.verifier.verifier import Verifier
from protocol.announcement import open_announcement, record_key, task_seed
from protocol.errors import ProtocolError
from protocol.identity import Identity, peer_id_of
from protocol.manifest import open_manifest, swarm_id
from protocol.rollout import Group
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.directory import Directory
from swarm.exchange import Exchange, NotServed, fetch_manifest
from swarm.groups import Origin, TaskRef
from swarm.journal import Journal
from swarm.publisher import Outbox, Publisher
from swarm.reputation import Accounts
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.transport import Transport, TransportError
from tests.chaos.evidence import Evidence
from tests.swarm.experience_parts import group

TURN_SECONDS = 0.5
SHARDS = [(depth, shard) for depth in range(3) for shard in range(1 << depth)]
"""Shards of up to a few dozen announcing nodes."""
TOLD_SECONDS = 5.0
"""Seconds between larry's frames."""
LIE_EVERY, FIRST_LIE = 12, 3
"""Frames between lies, and before the first one.
Five lies within an hour ban an author. An early lie also occurs in a short, slow run."""
GROUPS = 4
PULLERS = 8


class Recorded:
    """Serves an outbox, and records every frame before a peer gets it."""

    def __init__(self, outbox: Outbox, evidence: Evidence) -> None:
        self._outbox, self._evidence = outbox, evidence

    def get(self, content_id: bytes) -> bytes | None:
        frame = self._outbox.get(content_id)
        if frame:
            self._evidence.add("frames", (content_id, frame))
        return frame


class Listener:
    """Reads the directory, asks every peer for gossip, and pulls each offer once."""

    def __init__(
        self, evidence: Evidence, transport: Transport, identity: Identity, signed: bytes
    ) -> None:
        self.counters, self.clock = Counters(), SystemClock()
        self.journal = Journal(":memory:", self.clock)
        self.outbox = Outbox(self.journal, self.counters)
        self.manifest, self.swarm = open_manifest(signed), swarm_id(signed)
        self.identity, self._evidence, self._transport = identity, evidence, transport
        accounts = Accounts(self.journal, self.clock)
        about = (self.clock, b"listener", self.counters, accounts.reputation)
        self.directory = Directory(transport, identity, signed, *about)
        transport.use_validator(self.directory.check)
        self._exchange = Exchange(
            transport,
            Recorded(self.outbox, evidence),
            *(self.directory, signed, accounts, self.clock, self.counters),
            upload_rate=8 << 20,
        )
        self._met: set[bytes] = set()
        self._wanted: asyncio.Queue[tuple[bytes, bytes, int]] = asyncio.Queue()

    async def listen(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(PULLERS):
                group.create_task(self._pull())
            while True:
                await self._read()
                await self._gossip()
                await self.clock.sleep(TURN_SECONDS)

    async def _read(self) -> None:
        for epoch in (self.directory.epoch, self.directory.epoch - 1):
            for depth, shard in SHARDS:
                key = record_key(self.swarm, epoch, depth, shard)
                for record in (await self._transport.read(key)).values():
                    self._hear(record)

    async def _gossip(self) -> None:
        peers = self._transport.peers()
        answers = await asyncio.gather(*map(self._ask, peers))
        for record in (record for answer in answers for record in answer):
            self._hear(record)

    async def _ask(self, peer: str) -> list[bytes]:
        with suppress(TransportError):
            return await self._exchange.gossip(peer)
        return []

    def _hear(self, record: bytes) -> None:
        """Record an announcement, even if an earlier one had the same sequence number."""
        digest = sha256(record).digest()
        if digest in self._met:
            return
        self._met.add(digest)
        try:
            author, told = open_announcement(record, self.swarm, self.manifest)
        except ProtocolError:
            return
        self.directory.accept(record)
        now = time.time()
        self._evidence.add("announcements", (author, told.sequence, digest, now, record))
        for offer in told.offers:
            self._evidence.add("offers", (author, offer.content_id, now))
            if offer.content_id not in self._met and author != self.identity.author:
                self._met.add(offer.content_id)
                self._wanted.put_nowait((author, offer.content_id, offer.size))

    async def _pull(self) -> None:
        while True:
            author, name, size = await self._wanted.get()
            outcome = "ok"
            try:
                frame = await self._exchange.pull(author, name, size)
                self._evidence.add("frames", (name, frame))
            except NotServed as refusal:
                outcome = refusal.code
            except TransportError:
                outcome = "unreachable"  # A killed, stopped or cut-off peer proves nothing.
            self._evidence.add("pulls", (author, name, outcome, time.time()))


class Larry:
    """Writes groups of the swarm's easiest family, and lies about some rewards."""

    def __init__(self, listener: Listener, verifier: Verifier) -> None:
        self._it, self._verifier = listener, verifier
        self._rng, self._frames = random.Random("larry"), 0
        self._publisher = Publisher(
            listener.directory, listener.outbox, listener.journal, listener.clock, listener.counters
        )

    async def share(self) -> None:
        while True:
            lies = self._frames % LIE_EVERY == FIRST_LIE
            groups = await asyncio.to_thread(self._groups, lies)
            self._it.outbox.put(groups, Origin(1, "larry", bytes(32), 1.0, 8))
            await self._publisher.publish()
            self._frames += 1
            await asyncio.sleep(TOLD_SECONDS)

    def _groups(self, lies: bool) -> list[Group]:
        epoch, limit = self._it.directory.epoch, self._it.manifest.max_groups_per_epoch
        drawn = self._it.journal.next_indexes(epoch, GROUPS, limit)
        return [self._group(epoch, index, lies and index == drawn[0]) for index in drawn]

    def _group(self, epoch: int, index: int, lies: bool) -> Group:
        texts = [f" {self._rng.randrange(2, 19)}" for _ in range(8)]
        seed = task_seed(self._it.identity.author, epoch, index)
        rewards = self._verifier.verify(TaskRef("chain_sum", 0, seed), texts).rewards
        if lies:
            rewards = (1.0 - rewards[0], *rewards[1:])
        return group(index, rewards, epoch=epoch, texts=texts, tokens=False)


async def main(folder: Path, ip: str, peer: str, lies: bool) -> None:
    """Listen until killed."""
    identity = Identity.create(folder / "identity.key")
    transport = HivemindTransport(
        folder / "identity.key", listen=[f"/ip4/{ip}/tcp/0"], peers=[peer], start_timeout=90
    )
    await transport.start()
    signed = await fetch_manifest(transport, await transport.connect(peer))
    evidence = Evidence(folder / "heard.sqlite")
    listener = Listener(evidence, transport, identity, signed)
    (folder / "ready").write_text(peer_id_of(identity.author))
    async with asyncio.TaskGroup() as group:
        group.create_task(listener.listen())
        if lies:
            verifier = Verifier(listener.manifest.catalogue, outside=False)
            verifier.start()
            group.create_task(Larry(listener, verifier).share())


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    where, own_ip, bootstrap, lying = sys.argv[1:]
    asyncio.run(main(Path(where), own_ip, bootstrap, lying == "yes"))
