"""Slow sam, flo, sid and sybil at their work over real p2p daemons, and honest calls meanwhile."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID

from protocol.announcement import Announcement, record_key, shard_of, sign_announcement
from protocol.identity import Identity
from protocol.messages import PULL_STREAM, PullStatus
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.common.fair_limits import REMEMBERED_SECONDS
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.node import NodeSettings
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.transport.transport import TransportError
from tests.hostile.flooders import LISTEN, attacking
from tests.hostile.test_hostile_peers import offer
from tests.swarm.network_parts import Node, identity, manifest, running
from tests.swarm.transport.over import APART_LIBP2P, be_patient, key_of, until

pytestmark = pytest.mark.processes

CALLS = 50
ANSWERED = 0.95 * CALLS
ANSWERED_APART = 0.7 * CALLS
"""By a network apart, whose own limits no test lifts for a busy machine."""
MOST_MEMORY = 50e6

Kind = type[HivemindTransport] | type[SubprocessTransport]


async def member(
    name: str, folder: Path, *peers: str, kind: Kind = HivemindTransport, **agreed: object
) -> Node:
    counters, key = Counters(), key_of(folder, name)
    transport = kind(key, listen=LISTEN, peers=peers, counters=counters)
    node = Node(name, transport, SystemClock(), counters, manifest(**agreed))
    await transport.start()
    return node


@asynccontextmanager
async def two(
    folder: Path, kind: Kind = HivemindTransport, **agreed: object
) -> AsyncIterator[tuple[Node, Node]]:
    """A node to be attacked, its network beside its learner or apart, and an honest caller."""
    anna = await member("anna", folder, kind=kind, **agreed)
    ben = await member("ben", folder, *anna.transport.addresses(), **agreed)
    try:
        yield anna, ben
    finally:
        await asyncio.gather(anna.transport.close(), ben.transport.close())


@asynccontextmanager
async def under(kind: str, anna: Node, **options: float) -> AsyncIterator[None]:
    attack = attacking(kind, anna.transport.addresses()[0], **options)
    await asyncio.to_thread(attack.__enter__)
    try:
        await asyncio.sleep(1)
        yield
    finally:
        await asyncio.to_thread(attack.__exit__, None, None, None)


def memory() -> float:
    """Bytes of this process, and of the networks of all its nodes."""
    here = psutil.Process()
    found = here.memory_info().rss
    for process in here.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += process.memory_info().rss if is_network(process) else 0
    return float(found)


def is_network(process: psutil.Process) -> bool:
    """Whether it is a node's network or its daemon; an attacker's daemon has another parent."""
    if process.name() == "p2pd":
        process = process.parent()
        return process.pid == os.getpid() or is_network(process)
    return "swarm.transport.subprocess.child" in process.cmdline()


async def answered(anna: Node, ben: Node) -> int:
    done, anna_s = 0, (anna.transport.peer_id, PULL_STREAM)
    for asked in range(CALLS):
        if asked - done > CALLS - ANSWERED_APART:
            break  # too few, whatever became of the others
        with suppress(TransportError):
            answer = await ben.transport.request(*anna_s, os.urandom(32), limit=9, deadline=30)
            done += answer[0] in (PullStatus.NOT_FOUND, PullStatus.BUSY)
        await asyncio.sleep(0.02)
    return done


def enough(kind: Kind) -> float:
    return ANSWERED if kind is HivemindTransport else ANSWERED_APART


KINDS = pytest.mark.parametrize("kind", [HivemindTransport, SubprocessTransport, APART_LIBP2P])


async def until_refused(anna: Node, reason: str) -> None:
    name = f"requests_refused{{protocol={PULL_STREAM},reason={reason}}}"
    await until(lambda: anna.count(name), 120)


@KINDS
async def test_slow_sam_holds_four_streams_of_each_of_eight_keys(kind, tmp_path, monkeypatch):
    be_patient(monkeypatch)
    async with two(tmp_path, kind) as (anna, ben), under("half", anna, keys=8, streams=4):
        assert await answered(anna, ben) >= enough(kind)
        await until_refused(anna, "gave_way")


@KINDS
async def test_flo_opens_three_thousand_streams(kind: Kind, tmp_path: Path, monkeypatch) -> None:
    be_patient(monkeypatch)
    async with two(tmp_path, kind) as (anna, ben):
        await answered(anna, ben)
        before = memory()
        async with under("half", anna, keys=1, streams=3000, seconds=300):
            assert await answered(anna, ben) >= enough(kind)
            await until_refused(anna, "busy")
            assert memory() - before < MOST_MEMORY


async def test_eight_keys_of_flo_use_up_the_allowance_of_calls(tmp_path: Path, monkeypatch) -> None:
    # So that they use it up on a busy machine too.
    monkeypatch.setattr("swarm.transport.request_limits.RPC_BYTES_PER_SECOND", 1 << 17)
    monkeypatch.setattr("swarm.transport.request_limits.RPC_LARGEST", 1 << 17)
    async with two(tmp_path) as (anna, ben), under("calls", anna, keys=8, streams=1, rate=1 << 20):
        protocol = ben.transport.node.dht.protocol
        peer = PeerID.from_base58(anna.transport.peer_id)
        protocol.wait_timeout = 30.0
        served = 0
        for _ in range(CALLS):
            served += await protocol.call_ping(peer) is not None
            await asyncio.sleep(0.1)  # an honest peer keeps within a ninth of the allowance
        assert served >= ANSWERED
        assert anna.count("dht_calls_refused") > 0


@asynccontextmanager
async def bare(folder: Path, name: str, anna: Node) -> AsyncIterator[HivemindNode]:
    """A daemon without a member, connected with anna's."""
    settings = NodeSettings(key_of(folder, name), LISTEN, (), 60.0)
    node = await HivemindNode.start(settings, Counters())
    try:
        await node.connect(anna.transport.addresses()[0])
        yield node
    finally:
        await node.stop()


def announced(node: Node, epoch: int, author: Identity, offers: tuple = ()) -> tuple:
    swarm = node.directory.swarm_id
    expiry = time.time() + 1.5 * node.directory.manifest.epoch_seconds
    shard = shard_of(author.author, epoch, 0)
    made = Announcement(epoch, 0, shard, 1, 1, expiry, 0, offers)
    return record_key(swarm, epoch, 0, shard), sign_announcement(made, author, swarm), expiry


async def test_sybil_fills_a_shard_and_a_proven_author_is_still_held(tmp_path, monkeypatch):
    be_patient(monkeypatch)
    async with two(tmp_path, epoch_seconds=600.0) as (anna, ben):
        anna.accounts.prove([(ben.identity.author, 1.0)] * 8)
        await asyncio.sleep(REMEMBERED_SECONDS)  # for so long she takes him for a stranger yet
        async with bare(tmp_path, "sybil", anna) as sybil:
            protocol, peer = sybil.dht.protocol, PeerID.from_base58(anna.transport.peer_id)
            epoch = anna.directory.epoch  # the next one may begin meanwhile
            for begin in range(0, 1200, 100):
                keys = [Identity.from_seed(b"sybil %026d" % n) for n in range(begin, begin + 100)]
                records = [announced(anna, epoch, key) for key in keys]
                call = partial(
                    protocol.call_store,
                    peer,
                    [DHTID.generate(where) for where, _, _ in records],
                    [protocol.serializer.dumps(signed) for _, signed, _ in records],
                    [expiry for _, _, expiry in records],
                    subkeys=[key.author for key in keys],
                )
                async with asyncio.timeout(120):
                    while await call() is None:  # on a busy machine a call may break off
                        await asyncio.sleep(0.5)
            where, signed, expiry = announced(anna, epoch, ben.identity)
            # What comes back is the word of whoever answers first, sybil's perhaps.
            await ben.transport.store(where, ben.identity.author, signed, expiry)
            storage = anna.transport.node.dht.protocol.storage
            held = storage.get(DHTID.generate(where)).value
            await until(lambda: held.get(ben.identity.author) is not None, 120)
            assert len(held) > 900
            found = await anna.directory.read()
            assert ben.identity.author in {known.author for known in found}


async def test_sixty_keys_announce_and_never_answer(tmp_path: Path) -> None:
    async def never(peer: str, reader: object, writer: object) -> None:
        await asyncio.sleep(1e6)

    async with (
        two(tmp_path, epoch_seconds=6.0) as (anna, ben),
        bare(tmp_path, "sid 0", anna) as sid,
    ):
        await sid.add_handler(PULL_STREAM, never)
        async with running(anna, ben):
            began, published = time.monotonic(), 0
            while published < 3:
                for n in range(60):
                    silent = identity(f"sid {n}")
                    content = offer(os.urandom(32))
                    said = announced(anna, anna.directory.epoch, silent, (content,))
                    anna.directory.accept(said[1])
                ben.publish()
                published += 1
                while anna.count("frames_pulled") < published:
                    assert time.monotonic() < began + 120
                    await asyncio.sleep(0.2)
            assert sum(n for name, n in anna.counters.snapshot().items() if "pulls_failed" in name)
