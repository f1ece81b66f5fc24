"""Mallory runs a DHT node over real daemons, without the project's checks."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.node import NodeSettings
from swarm.transport.transport import PeerUnreachable
from tests.library_privates import WebDaemon
from tests.swarm.transport.over import be_patient, until

pytestmark = pytest.mark.processes

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
GOOD = {b"anna": b"good one"}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


class Unchecked:
    def validate(self, record: object) -> bool:
        return True

    def sign_value(self, record) -> bytes:
        return record.value

    strip_value = sign_value


class Honest(HivemindTransport):
    """A node that accepts only good records, and its counters."""

    def __init__(self, name: str, folder: Path, *others: HivemindTransport) -> None:
        Identity.create(folder / f"{name}.key")
        self.counted = Counters()
        peers = [address for other in others for address in other.addresses()]
        super().__init__(folder / f"{name}.key", listen=LISTEN, peers=peers, counters=self.counted)
        self.use_validator(lambda record: record.value.startswith(b"good"))

    async def keeps(self) -> bool:
        return await self.store("k", b"anna", b"good one", time.time() + 60)


async def unchecked(folder: Path, address: str) -> HivemindNode:
    """Start a node with hivemind's own parts in place of the strict ones."""
    Identity.create(folder / "mallory.key")
    settings = NodeSettings(folder / "mallory.key", LISTEN, (), 30.0)
    node = await HivemindNode.start(settings, Counters())
    protocol = node.dht.protocol
    protocol.serializer = MSGPackSerializer
    protocol.storage = DHTLocalStorage()
    protocol.record_validator = Unchecked()
    node.gate.check = lambda record: True
    await node.connect(address)
    await node.hash_table.find_neighbours()
    return node


@asynccontextmanager
async def joined(folder: Path, *names: str) -> AsyncIterator[list[Any]]:
    """Yield honest nodes around the first one, and mallory, connected to that one."""
    honest: list[Honest] = []
    for name in names:
        honest.append(Honest(name, folder, *honest[:1]))
        await honest[-1].start()
    mallory = await unchecked(folder, honest[0].addresses()[0])
    try:
        yield [*honest, mallory]
    finally:
        await asyncio.gather(*(node.close() for node in honest), mallory.stop())


def answers(node: HivemindNode, call: str, answer: Callable[[bytes], Any]) -> None:
    """Replace a node's answer to one of hivemind's calls."""

    async def raw(request: bytes, remote: object) -> bytes:
        return answer(request).SerializeToString()

    handlers = node.control.unary_handlers
    handlers[next(name for name in handlers if name.endswith(call))] = raw


def finds(node: HivemindNode, found: Callable[[Any], Any]) -> list[Any]:
    """Answer searches with one result per key; return the list of requests."""
    requests = []

    def answer(data: bytes) -> dht_pb2.FindResponse:
        requests.append(request := dht_pb2.FindRequest.FromString(data))
        results = [dht_pb2.FindResult(**found(request))] * len(request.keys)
        return dht_pb2.FindResponse(results=results, peer=node.dht.protocol.node_info)

    answers(node, "rpc_find", answer)
    return requests


async def test_nodes_store_and_read_only_valid_records(tmp_path: Path) -> None:
    async with joined(tmp_path, "anna", "ben") as (anna, ben, mallory):
        dht, expiry = mallory.dht, time.time() + 60
        assert await anna.keeps()
        for key, value, subkey in (
            ("k", b"no record", b"mallory"),
            ("k", b"good" + bytes(5000), b"large"),
            ("k", [[[]]] * 1000, b"nested"),
            ("k", b"good", "text"),
            ("k", b"good", b"x" * 500),
            ("whole", b"good", None),
        ):
            assert not await dht.store(key, value, expiry, subkey=subkey, exclude_self=True)
        assert await anna.read("k") == await ben.read("k") == GOOD
        assert await ben.read("whole") == {}
        assert any(node.counted.snapshot().get("records_refused") for node in (anna, ben))


@pytest.mark.parametrize(
    "answer",
    [
        b"\x90" * 1_000_000,
        os.urandom(5000),
        msgpack.packb(msgpack.ExtType(0x50, b"\x90" * 1_000_000)),
        msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([None, 1.0, [[b"a", b"b"]]]))),
        msgpack.packb(msgpack.ExtType(0x40, msgpack.packb([1, 2]))),
    ],
    ids=["nested", "random", "nested-inside", "short-entry", "tuple"],
)
async def test_read_ignores_malformed_search_answers(tmp_path, answer):
    result = {"value": answer, "expiration_time": float("inf"), "type": dht_pb2.FOUND_DICTIONARY}
    async with joined(tmp_path, "anna") as (anna, mallory):
        await anna.keeps()
        requests = finds(mallory, lambda request: result)
        assert await anna.read("k") == GOOD
        assert requests


@pytest.mark.parametrize("crowd", [1, 20_000])
async def test_nodes_store_records_despite_fake_neighbors(tmp_path, caplog, crowd):
    offline = Identity.from_seed(b"nobody is listening under this!!")
    async with joined(tmp_path, "anna", "ben") as (anna, ben, mallory):
        us = PeerID.from_base58(anna.peer_id).to_bytes()
        nodes = [DHTID.generate().to_bytes() for _ in range(crowd)]
        peers = [us, us, *[PeerID.from_base58(offline.peer_id).to_bytes()] * crowd]

        def listed(request: Any) -> dict[str, list[bytes]]:
            ids = [request.peer.node_id, bytes(20), *nodes]
            return {"nearest_node_ids": ids, "nearest_peer_ids": peers}

        requests = finds(mallory, listed)
        assert await anna.keeps()
        assert requests
        assert await ben.read("k") == await anna.read("k") == GOOD
        assert anna.counted.snapshot()["neighbours_refused"] >= 2
        assert "failed" not in caplog.text


@pytest.mark.parametrize("led", ["to-herself", "to-nobody"])
async def test_read_finds_record_despite_fake_nearer_neighbors(tmp_path, led):
    nearer = count(1 << 100, -1)
    async with joined(tmp_path, "anna", "ben") as (anna, ben, mallory):

        def named() -> PeerID:
            offline = PeerID.from_base58(Identity.from_seed(os.urandom(32)).peer_id)
            return mallory.p2p.peer_id if led == "to-herself" else offline

        def nearest(request: Any) -> dict[str, list[bytes]]:
            key = DHTID.from_bytes(request.keys[0])
            nodes = [DHTID(key ^ next(nearer)).to_bytes() for _ in range(20)]
            peers = [named().to_bytes() for _ in nodes]
            return {"nearest_node_ids": nodes, "nearest_peer_ids": peers}

        requests = finds(mallory, nearest)
        await mallory.connect(ben.addresses()[0])
        assert holds(anna.node, b"anna", b"good one")
        assert await ben.read("k") == GOOD
        assert [request.keys[0] for request in requests].count(DHTID.generate("k").to_bytes()) == 1


async def test_one_bad_record_in_a_replica_does_not_hide_the_good_ones(tmp_path: Path) -> None:
    async with joined(tmp_path, "anna") as (anna, mallory):
        holds(mallory, b"ben", b"good too")
        holds(mallory, b"mallory", b"no record")
        assert await anna.read("k") == {b"ben": b"good too"}


async def test_peer_with_unnamed_transport_does_not_block_others(tmp_path):
    anna = Honest("anna", tmp_path)
    await anna.start()
    mallory = Identity.create(tmp_path / "mallory.key").peer_id
    bad = await WebDaemon.start(tmp_path / "mallory.key")
    try:
        await bad.dial(anna.addresses()[0])
        await until(lambda: anna.peers() == (mallory,))
        async with asyncio.timeout(60):
            while anna.peers():
                await bad.hang_up(anna.peer_id)
                await asyncio.sleep(0.2)
        with pytest.raises(PeerUnreachable):
            await anna.request(mallory, "hello", b"", limit=1, deadline=60.0)
        ben = Honest("ben", tmp_path, anna)
        await ben.start()
        try:
            await until(lambda: {mallory, ben.peer_id} == set(anna.peers()))
        finally:
            await ben.close()
        await until(lambda: anna.peers() == (mallory,))
        assert "transport_failures" not in anna.counted.snapshot()
    finally:
        await asyncio.gather(anna.close(), bad.stop())


def holds(node: HivemindNode, subkey: bytes, value: bytes) -> bool:
    packed = msgpack.packb(value, use_bin_type=True)
    storage = node.dht.protocol.storage
    return storage.store_subkey(DHTID.generate("k"), subkey, packed, time.time() + 600)


async def test_dht_reads_work_during_a_call_flood(tmp_path, monkeypatch):
    # With these limits flo uses up the allowance on a busy machine too.
    monkeypatch.setattr("swarm.transport.request_limits.RPC_BYTES_PER_SECOND", 1 << 14)
    monkeypatch.setattr("swarm.transport.request_limits.RPC_LARGEST", 1 << 17)
    async with joined(tmp_path, "anna", "ben") as (anna, ben, flo):
        await ben.keeps()
        protocol, peer = flo.dht.protocol, PeerID.from_base58(anna.peer_id)
        for _ in range(10):
            await asyncio.gather(*(protocol.call_ping(peer) for _ in range(200)))
        assert anna.counted.snapshot()["dht_calls_refused"] > 0
        assert await ben.read("k") == GOOD
