"""Slow sam, flo, sid and sybil attack over real p2p daemons during honest calls."""

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
from tests.swarm.network_parts import Node, identity, manifest, running, signed_record
from tests.swarm.transport.over import APART_LIBP2P, be_patient, key_of, until

pytestmark = pytest.mark.processes

CALLS = 50
ANSWERED = 0.95 * CALLS
ANSWERED_APART = 0.7 * CALLS
"""Minimum for a network in a subprocess, whose own limits the tests do not raise."""
MAX_MEMORY = 50e6

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
    """Yield a node to attack, its network in this process or apart, and a caller."""
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
    """Return the bytes of this process and of the networks of all its nodes."""
    current = psutil.Process()
    found = current.memory_info().rss
    for process in current.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += process.memory_info().rss if is_network(process) else 0
    return float(found)


def is_network(process: psutil.Process) -> bool:
    """Return whether it is a node's network or daemon and not an attacker's daemon."""
    if process.name() == "p2pd":
        process = process.parent()
        return process.pid == os.getpid() or is_network(process)
    return "swarm.transport.subprocess.child" in process.cmdline()


async def answered(anna: Node, ben: Node) -> int:
    done, target = 0, (anna.transport.peer_id, PULL_STREAM)
    for attempt in range(CALLS):
        if attempt - done > CALLS - ANSWERED_APART:
            break  # These are too few even if all remaining calls succeed.
        with suppress(TransportError):
            answer = await ben.transport.request(*target, os.urandom(32), limit=9, deadline=30)
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
async def test_node_answers_while_eight_keys_hold_open_streams(kind, tmp_path, monkeypatch):
    be_patient(monkeypatch)
    async with two(tmp_path, kind) as (anna, ben), under("half", anna, keys=8, streams=4):
        assert await answered(anna, ben) >= enough(kind)
        await until_refused(anna, "gave_way")


@KINDS
async def test_node_survives_3000_open_streams(kind: Kind, tmp_path: Path, monkeypatch) -> None:
    be_patient(monkeypatch)
    async with two(tmp_path, kind) as (anna, ben):
        await answered(anna, ben)
        before = memory()
        async with under("half", anna, keys=1, streams=3000, seconds=300):
            assert await answered(anna, ben) >= enough(kind)
            await until_refused(anna, "busy")
            assert memory() - before < MAX_MEMORY


async def test_node_serves_dht_calls_while_eight_keys_flood(tmp_path: Path, monkeypatch) -> None:
    # With these limits the peers use up their allowance on a busy machine too.
    monkeypatch.setattr("swarm.transport.request_limits.RPC_BYTES_PER_SECOND", 1 << 17)
    monkeypatch.setattr("swarm.transport.request_limits.RPC_LARGEST", 1 << 17)
    async with two(tmp_path) as (anna, ben), under("calls", anna, keys=8, streams=1, rate=1 << 20):
        protocol = ben.transport.node.dht.protocol
        peer = PeerID.from_base58(anna.transport.peer_id)
        protocol.wait_timeout = 30.0
        served = 0
        for _ in range(CALLS):
            served += await protocol.call_ping(peer) is not None
            await asyncio.sleep(0.1)  # An honest peer uses at most a ninth of the allowance.
        assert served >= ANSWERED
        assert anna.count("dht_calls_refused") > 0


@asynccontextmanager
async def bare(folder: Path, name: str, anna: Node) -> AsyncIterator[HivemindNode]:
    """Yield a daemon without a member, connected to anna's."""
    settings = NodeSettings(key_of(folder, name), LISTEN, (), 60.0)
    node = await HivemindNode.start(settings, Counters())
    try:
        await node.connect(anna.transport.addresses()[0])
        yield node
    finally:
        await node.stop()


async def test_full_shard_still_stores_a_proven_author(tmp_path, monkeypatch):
    be_patient(monkeypatch)
    async with two(tmp_path, epoch_seconds=600.0) as (anna, ben):
        anna.accounts.prove([(ben.identity.author, 1.0)] * 8)
        await asyncio.sleep(REMEMBERED_SECONDS)  # Anna's cache still lists ben as unproven.
        async with bare(tmp_path, "sybil", anna) as sybil:
            protocol, peer = sybil.dht.protocol, PeerID.from_base58(anna.transport.peer_id)
            epoch = anna.directory.epoch  # The next one may begin during the test.
            for begin in range(0, 1200, 100):
                keys = [Identity.from_seed(b"sybil %026d" % n) for n in range(begin, begin + 100)]
                records = [signed_record(anna, key, epoch=epoch) for key in keys]
                call = partial(
                    protocol.call_store,
                    peer,
                    [DHTID.generate(record.key) for record in records],
                    [protocol.serializer.dumps(record.value) for record in records],
                    [record.announcement.expiry for record in records],
                    subkeys=[key.author for key in keys],
                )
                async with asyncio.timeout(120):
                    while await call() is None:  # On a busy machine a call may fail.
                        await asyncio.sleep(0.5)
            where, signed, made = signed_record(anna, ben.identity, epoch=epoch)
            # The returned value comes from the first peer to answer, which may be sybil.
            await ben.transport.store(where, ben.identity.author, signed, made.expiry)
            storage = anna.transport.node.dht.protocol.storage
            held = storage.get(DHTID.generate(where)).value
            await until(lambda: held.get(ben.identity.author) is not None, 120)
            assert len(held) > 900
            found = await anna.directory.read()
            assert ben.identity.author in {known.author for known in found}


async def test_sixty_silent_keys_do_not_stop_pulls(tmp_path: Path) -> None:
    async def never(peer: str, reader: object, writer: object) -> None:
        await asyncio.sleep(1e6)

    async with (
        two(tmp_path, epoch_seconds=6.0) as (anna, ben),
        bare(tmp_path, "sid 0", anna) as sid,
    ):
        await sid.add_handler(PULL_STREAM, never)
        async with running(anna, ben):
            started, published = time.monotonic(), 0
            while published < 3:
                for n in range(60):
                    silent = identity(f"sid {n}")
                    record = signed_record(anna, silent, offer(os.urandom(32)))
                    anna.directory.accept(record.value)
                ben.publish()
                published += 1
                while anna.count("frames_pulled") < published:
                    assert time.monotonic() < started + 120
                    await asyncio.sleep(0.2)
            assert sum(n for name, n in anna.counters.snapshot().items() if "pulls_failed" in name)
