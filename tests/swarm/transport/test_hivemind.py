"""Fixes around hivemind: one id per node, checked records, cancelled calls."""

import asyncio
import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.proto.dht_pb2 import FindRequest, NodeInfo, PingRequest, StoreRequest

from experiments.virtual_clock import VirtualClock
from protocol.announcement import dht_key_of
from swarm.common.counters import Counters
from swarm.transport.dial_limits import MOST_DIALS
from swarm.transport.hivemind.dht import SAME_ID_SECONDS, OneIdEach
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.node import NodeSettings
from swarm.transport.records import (
    DICTIONARY_CODE,
    FRESH_SECONDS,
    MAX_REPORTS,
    REMEMBERED_CHECKS,
    DictionaryRecord,
    RecordGate,
    StrictSerializer,
    Watch,
)
from swarm.transport.request_limits import PeerLimits
from tests.library_privates import add_handler, cancel_with, still_reads
from tests.swarm.experience_parts import START
from tests.swarm.transport.over import LOOPBACK, key_of, started
from tests.swarm.transport.third_party import OneMinute, claim, refused, start_again, third_party


def routing(clock: VirtualClock):
    from hivemind.dht.routing import DHTID, RoutingTable

    table = RoutingTable(DHTID.generate("anna"), 20, 5)

    async def update(node_id, peer_id, responded=True) -> None:
        if responded:
            table.add_or_update_node(node_id, peer_id)
        elif node_id in table:
            del table[node_id]

    counters = Counters()
    protocol = SimpleNamespace(routing_table=table, update_routing_table=update)
    one = OneIdEach(protocol, counters, PeerLimits(clock, counters))
    return table, one, counters, DHTID.generate


async def test_peer_with_many_ids_gets_one_routing_table_entry(clock) -> None:
    table, one, counters, make_id = routing(clock)
    for n in range(500):
        await one.update(make_id(f"flo {n}"), "flo")
    assert (len(table.uid_to_peer_id), counters.snapshot()["routing_refused"]) == (1, 499)
    await clock.advance(SAME_ID_SECONDS)
    await one.update(make_id("restarted"), "flo")
    assert list(table.uid_to_peer_id) == [make_id("restarted")]


async def test_peer_cannot_take_over_another_peers_id() -> None:
    table, one, _, make_id = routing(VirtualClock())
    await one.update(make_id("ben"), "ben")
    await one.update(make_id("ben"), "mallory")
    assert table.uid_to_peer_id == {make_id("ben"): "ben"}


async def test_replacement_list_for_peers_is_bounded() -> None:
    table, one, _, make_id = routing(VirtualClock())
    for n in range(3000):
        await one.update(make_id(f"sybil {n}"), f"sybil {n}")
    waiting = sum(len(bucket.replacement_nodes) for bucket in table.buckets)
    assert waiting <= 20 * len(table.buckets)
    assert len(table.peer_id_to_uid) <= 2 * 20 * len(table.buckets)


def test_fresh_record_is_checked_once_despite_many_earlier_checks():
    serializer = StrictSerializer(DictionaryDHTValue)
    checked, now = [], [0.0]
    gate = RecordGate(serializer, Counters(), lambda: now[0])

    def check(*record: object) -> bool:
        checked.append(record)
        return True

    gate.check = check
    subkey = serializer.dumps(b"anna")

    def asked(number: int) -> None:
        value = serializer.dumps(b"%d" % number)
        assert gate.validate(DictionaryRecord(b"shard", subkey, value, START))

    for number in range(3 * REMEMBERED_CHECKS):
        asked(number)
    now[0] += FRESH_SECONDS
    before = len(checked)
    for _ in range(3):
        for number in range(-50, 0):
            asked(number)
    assert len(checked) - before == 50


@pytest.mark.parametrize(
    "entry",
    [("anna", 1.0), *(("ben", bad) for bad in (math.nan, math.inf, True, None, b"1", "1"))],
)
def test_dictionary_has_each_subkey_once_and_finite_expirations(entry):
    def loaded(name: str, expiry: object) -> Any:
        entries = [[b"anna", b"value", 2**40], [name.encode(), b"value", expiry]]
        data = msgpack.ExtType(DICTIONARY_CODE, msgpack.packb([None, 1.0, entries]))
        return StrictSerializer(DictionaryDHTValue).loads(msgpack.packb(data))

    assert len(loaded("ben", 2.0**40)) == 2
    with pytest.raises(
        ValueError, match=r"is repeated|finite number|bytes to bytes|exceeds|dictionary of"
    ):
        loaded(*entry)


LOADED = "print(sorted({'torch', 'scipy'} & set(sys.modules)))"
NODE = Path(__file__).parents[3] / "swarm/transport/hivemind/node.py"


def python(script: str) -> str:
    """Return what a new interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    light = "import sys; from swarm.transport.hivemind.transport import import_network as light; "
    run = subprocess.run(
        [sys.executable, "-c", light + script], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_hivemind_imports_load_neither_torch_nor_scipy() -> None:
    used = [line.strip() for line in NODE.read_text().splitlines() if "from hivemind." in line]
    assert "from hivemind.dht.node import DHTNode" in used
    imports = "\n".join(used)
    assert python(f"light()\n{imports}\n{LOADED}") == "[]"


def test_package_exports_match_its_modules() -> None:
    same = "utils.MSGPackSerializer is storage.MSGPackSerializer is serializer.MSGPackSerializer"
    modules = "from hivemind.utils import serializer; from hivemind.dht import storage"
    assert python(f"light(); import hivemind.utils as utils; {modules}; print({same})") == "True"


def test_watch_reports_only_records_for_the_latest_keys() -> None:
    received: list[bytes] = []
    watch = Watch(Counters())
    watch.stored(dht_key_of("first"), b"before anybody watches")
    watch.begin(["first"], received.append)
    watch.stored(dht_key_of("first"), b"one")
    watch.stored(dht_key_of("other"), b"elsewhere")
    watch.begin(["second"], received.append)
    watch.stored(dht_key_of("first"), b"too late")
    watch.stored(dht_key_of("second"), b"two")
    assert received == [b"one", b"two"]


def test_watch_limits_reports_for_a_flooded_key(counters) -> None:
    received: list[bytes] = []
    watch = Watch(counters)
    watch.begin(["a key"], received.append)
    for number in range(1000):
        watch.stored(dht_key_of("a key"), b"flo %d" % number)
    not_reported = counters.snapshot()["records_not_reported"]
    assert (len(received), not_reported) == (MAX_REPORTS, 1000 - MAX_REPORTS)
    watch.begin(["a key"], received.append)
    watch.stored(dht_key_of("a key"), b"anna")
    assert received[-1] == b"anna"


def stub(caller: HivemindNode, called: HivemindNode):
    return caller.dht.protocol.get_stub(called.dht.peer_id)


@asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[list[HivemindNode]]:
    """Yield anna and ben, who are not connected."""
    nodes = list[HivemindNode]()
    try:
        for name in ("anna", "ben"):
            settings = NodeSettings(key_of(folder, name), LOOPBACK, (), 60.0)
            nodes.append(await HivemindNode.start(settings, Counters()))
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


@pytest.mark.processes
async def test_answer_during_call_cancellation_keeps_the_daemon_connection(tmp_path):
    cancelled, answered = asyncio.Event(), asyncio.Event()
    async with two_nodes(tmp_path) as (anna, ben):

        async def late(request: bytes, peer: object) -> bytes:
            await cancelled.wait()
            return request

        async def echo(request: bytes, peer: object) -> bytes:
            return request

        await add_handler(ben, "late", late)
        await add_handler(ben, "echo", echo)
        await anna.connect(ben.addresses[0])

        async def cancel(call: object) -> None:
            if not cancelled.is_set():
                cancelled.set()
                await answered.wait()
            await tell_daemon(call)

        tell_daemon = cancel_with(anna, cancel)
        call = asyncio.ensure_future(anna.call(ben.peer_id, "late", b"question"))
        await anna.call(ben.peer_id, "echo", b"1")
        call.cancel()
        # The next answer arrives after the answer to the cancelled call.
        await asyncio.gather(cancelled.wait(), asyncio.sleep(0.5))
        second = await anna.call(ben.peer_id, "echo", b"2")
        answered.set()
        assert second == b"2"
        with pytest.raises(asyncio.CancelledError):
            await call
        assert still_reads(anna)


@pytest.mark.processes
async def test_daemon_dials_four_lost_peers_per_minute_at_claimed_addresses(tmp_path):
    cache = tmp_path / "peers"
    args = {"listen": LOOPBACK, "peer_cache": cache, "clock": OneMinute()}
    async with third_party() as (ports, seen):
        async with started(HivemindTransport(key_of(tmp_path, "anna"), **args)) as anna:
            keys = await claim(HivemindTransport, tmp_path, anna, ports)
            causes = [await refused(anna, key) for key in keys]
            assert ["not dialed" in cause for cause in causes] == [False] * MOST_DIALS + [True]
        before = len(seen)
        await start_again(HivemindTransport, tmp_path, cache)
        assert len(seen) == before, "a restart dials no claimed address"


@pytest.mark.processes
async def test_record_marked_as_cached_uses_the_same_storage(tmp_path) -> None:
    key, expiry = dht_key_of("a key"), time.time() + 60
    records = [(bytes([n]), b"\xc4\x02" + bytes([n, n])) for n in range(2)]
    async with two_nodes(tmp_path) as (anna, ben):
        anna.gate.check = lambda record: True
        await ben.connect(anna.addresses[0])
        asked = StoreRequest(
            keys=[key] * 2,
            subkeys=[b"\xc4\x01" + author for author, _ in records],
            values=[value for _, value in records],
            expiration_time=[expiry] * 2,
            in_cache=[True, False],
        )
        done = await stub(ben, anna).rpc_store(asked, timeout=20)
        assert list(done.store_ok) == [True, True]
        assert len(anna.dht.protocol.storage.get(DHTID.from_bytes(key)).value) == 2


@pytest.mark.processes
@pytest.mark.parametrize("length", [19, 21])
async def test_peer_with_a_wrong_id_length_is_a_client(tmp_path, caplog, length) -> None:
    async with two_nodes(tmp_path) as (anna, ben):
        await ben.connect(anna.addresses[0])
        table = anna.dht.protocol.routing_table.uid_to_peer_id
        table.clear()
        claimed = NodeInfo(node_id=b"\1" * length)
        call = stub(ben, anna)
        pong = await call.rpc_ping(PingRequest(peer=claimed, validate=True), timeout=20)
        result = await call.rpc_find(FindRequest(keys=[bytes(20)], peer=claimed), timeout=20)
        await call.rpc_store(StoreRequest(peer=claimed), timeout=20)
        assert not pong.available and len(result.results) == 1
        assert not table
        # The same id now comes in answers.
        ben.dht.protocol.node_info = claimed
        await anna.dht.protocol.call_ping(ben.dht.peer_id, validate=False)
        assert (await anna.connect(ben.addresses[0]))[0] == ben.peer_id
        await asyncio.sleep(0.1)  # The task of the ping needs time.
        assert not table
    assert "never retrieved" not in caplog.text
