"""Mallory runs a DHT node of her own, over real daemons, without any of the checks of ours."""

from __future__ import annotations

import asyncio
import os
import time
from itertools import count
from pathlib import Path

import msgpack
import pytest

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.node import NodeSettings
from swarm.transport.transport import PeerUnreachable, RecordView
from tests.library_privates import WebDaemon
from tests.swarm.transport.mallory import until

pytestmark = pytest.mark.processes

LISTEN = ("/ip4/127.0.0.1/tcp/0",)


def only_good(record: RecordView) -> bool:
    return record.value.startswith(b"good")


class Unchecked:
    """A validator that passes everything."""

    def validate(self, record: object) -> bool:
        return True

    def sign_value(self, record) -> bytes:
        return record.value

    strip_value = sign_value


async def honest(name: str, folder: Path, counters: Counters, **options) -> HivemindTransport:
    key = folder / f"{name}.key"
    Identity.create(key)
    transport = HivemindTransport(key, listen=LISTEN, counters=counters, **options)
    transport.use_validator(only_good)
    await transport.start()
    return transport


async def mallory(folder: Path, address: str) -> HivemindNode:
    """A node with hivemind's own parts in place of the strict ones."""
    from hivemind.dht.storage import DHTLocalStorage
    from hivemind.utils import MSGPackSerializer

    Identity.create(folder / "mallory.key")
    settings = NodeSettings(folder / "mallory.key", LISTEN, (), 30.0)
    node = await HivemindNode.start(settings, Counters())
    protocol = node.dht.protocol
    protocol.serializer = MSGPackSerializer
    protocol.storage = DHTLocalStorage()
    protocol.record_validator = Unchecked()
    node.gate.check = lambda record: True
    await node.connect(address)
    await node.find_neighbours()
    return node


def test_whatever_mallory_stores_only_good_records_are_held_and_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        counters = Counters()
        first = await honest("anna", tmp_path, counters)
        second = await honest("ben", tmp_path, counters, peers=first.addresses())
        bad = await mallory(tmp_path, first.addresses()[0])
        dht, expiry = bad.dht, time.time() + 60
        try:
            assert await first.store("k", b"anna", b"good one", expiry)
            for key, value, subkey in (
                ("k", b"no record", b"mallory"),
                ("k", b"good" + bytes(5000), b"large"),
                ("k", [[[]]] * 1000, b"nested"),
                ("k", b"good", "text"),
                ("k", b"good", b"x" * 500),
                ("whole", b"good", None),
            ):
                assert not await dht.store(key, value, expiry, subkey=subkey, exclude_self=True)
            assert await first.read("k") == await second.read("k") == {b"anna": b"good one"}
            assert await second.read("whole") == {}
            assert counters.snapshot()["records_refused"] > 0
        finally:
            await asyncio.gather(first.close(), second.close(), bad.stop())

    asyncio.run(scenario())


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
def test_mallory_answers_a_search_with_bytes_that_are_no_records(
    tmp_path: Path, answer: bytes
) -> None:
    from hivemind.proto import dht_pb2

    async def scenario() -> None:
        first = await honest("anna", tmp_path, Counters())
        bad = await mallory(tmp_path, first.addresses()[0])
        asked = []

        async def find(request, context) -> dht_pb2.FindResponse:
            asked.append(request)
            result = dht_pb2.FindResult(
                type=dht_pb2.FOUND_DICTIONARY, value=answer, expiration_time=float("inf")
            )
            peer = bad.dht.protocol.node_info
            return dht_pb2.FindResponse(results=[result] * len(request.keys), peer=peer)

        handlers = bad.control.unary_handlers
        name = next(name for name in handlers if name.endswith("rpc_find"))

        async def raw(request: bytes, remote: object) -> bytes:
            answered = await find(dht_pb2.FindRequest.FromString(request), remote)
            return answered.SerializeToString()

        try:
            await first.store("k", b"anna", b"good one", time.time() + 60)
            handlers[name] = raw
            assert await first.read("k") == {b"anna": b"good one"}
            assert asked
        finally:
            await asyncio.gather(first.close(), bad.stop())

    asyncio.run(scenario())


@pytest.mark.parametrize("crowd", [1, 20_000])
def test_mallory_lists_the_asker_and_a_crowd_as_neighbours_and_records_are_still_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, crowd: int
) -> None:
    from hivemind.dht.routing import DHTID
    from hivemind.p2p import PeerID
    from hivemind.proto import dht_pb2

    async def scenario() -> None:
        counters = Counters()
        first = await honest("anna", tmp_path, counters)
        second = await honest("ben", tmp_path, Counters(), peers=first.addresses())
        bad = await mallory(tmp_path, first.addresses()[0])
        asked = []
        nobody = Identity.from_seed(b"nobody is listening under this!!")
        us = PeerID.from_base58(first.peer_id).to_bytes()
        nodes = [DHTID.generate().to_bytes() for _ in range(crowd)]
        peers = [us, us, *[PeerID.from_base58(nobody.peer_id).to_bytes()] * crowd]

        async def raw(data: bytes, remote: object) -> bytes:
            request = dht_pb2.FindRequest.FromString(data)
            asked.append(request)
            listed = [request.peer.node_id, bytes(20), *nodes]
            result = dht_pb2.FindResult(nearest_node_ids=listed, nearest_peer_ids=peers)
            results = [result] * len(request.keys)
            info = bad.dht.protocol.node_info
            return dht_pb2.FindResponse(results=results, peer=info).SerializeToString()

        handlers = bad.control.unary_handlers
        handlers[next(name for name in handlers if name.endswith("rpc_find"))] = raw
        try:
            assert await first.store("k", b"anna", b"good one", time.time() + 60)
            assert asked
            assert await second.read("k") == await first.read("k") == {b"anna": b"good one"}
            assert counters.snapshot()["neighbours_refused"] >= 2
            assert "failed" not in caplog.text
        finally:
            await asyncio.gather(first.close(), second.close(), bad.stop())

    asyncio.run(scenario())


@pytest.mark.parametrize("led", ["to-herself", "to-nobody"])
def test_mallory_leads_a_search_astray_and_the_record_of_a_farther_node_is_found(
    tmp_path: Path, led: str
) -> None:
    from hivemind.dht.routing import DHTID
    from hivemind.p2p import PeerID
    from hivemind.proto import dht_pb2

    async def scenario() -> None:
        first = await honest("anna", tmp_path, Counters())
        second = await honest("ben", tmp_path, Counters(), peers=first.addresses())
        bad = await mallory(tmp_path, first.addresses()[0])
        nearer = count(1 << 100, -1)
        asked = []

        def named() -> PeerID:
            if led == "to-herself":
                return bad.p2p.peer_id
            return PeerID.from_base58(Identity.from_seed(os.urandom(32)).peer_id)

        async def raw(data: bytes, remote: object) -> bytes:
            request = dht_pb2.FindRequest.FromString(data)
            key = DHTID.from_bytes(request.keys[0])
            nodes = [DHTID(key ^ next(nearer)).to_bytes() for _ in range(20)]
            peers = [named().to_bytes() for _ in nodes]
            asked.append(key)
            result = dht_pb2.FindResult(nearest_node_ids=nodes, nearest_peer_ids=peers)
            info = bad.dht.protocol.node_info
            return dht_pb2.FindResponse(results=[result], peer=info).SerializeToString()

        handlers = bad.control.unary_handlers
        handlers[next(name for name in handlers if name.endswith("rpc_find"))] = raw
        try:
            await bad.connect(second.addresses()[0])
            node = first.node
            assert isinstance(node, HivemindNode)
            packed = msgpack.packb(b"good one", use_bin_type=True)
            held = node.dht.protocol.storage
            assert held.store_subkey(_id("k"), b"anna", packed, time.time() + 600)
            assert await second.read("k") == {b"anna": b"good one"}
            assert asked.count(_id("k")) == 1
        finally:
            await asyncio.gather(first.close(), second.close(), bad.stop())

    asyncio.run(scenario())


def test_one_bad_record_in_a_replica_does_not_hide_the_good_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await honest("anna", tmp_path, Counters())
        bad = await mallory(tmp_path, first.addresses()[0])
        dht, expiry = bad.dht, time.time() + 60
        try:
            for subkey, value in ((b"ben", b"good too"), (b"mallory", b"no record")):
                packed = msgpack.packb(value, use_bin_type=True)
                dht.protocol.storage.store_subkey(_id("k"), subkey, packed, expiry)
            assert await first.read("k") == {b"ben": b"good too"}
        finally:
            await asyncio.gather(first.close(), bad.stop())

    asyncio.run(scenario())


def test_mallory_is_reached_by_a_transport_without_a_name_here_and_others_are_still_met(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        counters = Counters()
        anna = await honest("anna", tmp_path, counters)
        mallory = Identity.create(tmp_path / "mallory.key").peer_id
        bad = await WebDaemon.start(tmp_path / "mallory.key")
        try:
            await bad.dial(anna.addresses()[0])
            await until(lambda: anna.peers() == (mallory,))
            async with asyncio.timeout(60):
                while anna.peers():
                    await bad.hang_up(anna.peer_id)
                    await asyncio.sleep(0.2)
            with pytest.raises(PeerUnreachable):  # whoever asks is answered by nobody
                await anna.request(mallory, "hello", b"", limit=1, deadline=10.0)
            ben = await honest("ben", tmp_path, Counters(), peers=anna.addresses())
            try:
                await until(lambda: {mallory, ben.peer_id} == set(anna.peers()))
            finally:
                await ben.close()
            await until(lambda: anna.peers() == (mallory,))
            assert "transport_failures" not in counters.snapshot()
        finally:
            await asyncio.gather(anna.close(), bad.stop())

    asyncio.run(scenario())


def test_mallory_names_herself_by_an_id_that_is_none_and_counts_as_unreachable(
    tmp_path: Path,
) -> None:
    from hivemind.proto import dht_pb2

    async def ping(request: bytes, remote: object) -> bytes:
        peer = dht_pb2.NodeInfo(node_id=b"\xff" * 21)
        answer = dht_pb2.PingResponse(peer=peer, dht_time=time.time(), available=True)
        return answer.SerializeToString()

    async def scenario() -> None:
        anna = await honest("anna", tmp_path, Counters())
        bad = await mallory(tmp_path, anna.addresses()[0])
        try:
            handlers = bad.control.unary_handlers
            handlers[next(name for name in handlers if name.endswith("rpc_ping"))] = ping
            with pytest.raises(PeerUnreachable):
                await anna.connect(bad.addresses[0])
        finally:
            await asyncio.gather(anna.close(), bad.stop())

    asyncio.run(scenario())


def test_flo_floods_the_hash_table_and_others_still_read_it(tmp_path: Path, monkeypatch) -> None:
    from hivemind.p2p import PeerID

    # So that she uses it up on a busy machine too.
    monkeypatch.setattr("swarm.transport.request_limits.RPC_BYTES_PER_SECOND", 1 << 14)
    monkeypatch.setattr("swarm.transport.request_limits.RPC_LARGEST", 1 << 17)

    async def scenario() -> None:
        counters = Counters()
        first = await honest("anna", tmp_path, counters)
        second = await honest("ben", tmp_path, Counters(), peers=first.addresses())
        flo = await mallory(tmp_path, first.addresses()[0])
        try:
            await second.store("k", b"ben", b"good one", time.time() + 60)
            protocol, peer = flo.dht.protocol, PeerID.from_base58(first.peer_id)
            for _ in range(10):
                await asyncio.gather(*(protocol.call_ping(peer) for _ in range(200)))
            assert counters.snapshot()["dht_calls_refused"] > 0
            assert await second.read("k") == {b"ben": b"good one"}
        finally:
            await asyncio.gather(first.close(), second.close(), flo.stop())

    asyncio.run(scenario())


def _id(key: str):
    from hivemind.dht.routing import DHTID

    return DHTID.generate(key)
