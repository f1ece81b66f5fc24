"""What is done about hivemind: one id a node, checked records, calls that are answered late."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

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


async def test_flo_has_one_place_in_the_routing_table_however_many_ids_she_claims(clock) -> None:
    table, one, counters, made = routing(clock)
    for n in range(500):
        await one.update(made(f"flo {n}"), "flo")
    assert (len(table.uid_to_peer_id), counters.snapshot()["routing_refused"]) == (1, 499)
    await clock.advance(SAME_ID_SECONDS)
    await one.update(made("restarted"), "flo")
    assert list(table.uid_to_peer_id) == [made("restarted")]


async def test_mallory_does_not_take_the_id_of_another_peer() -> None:
    table, one, _, made = routing(VirtualClock())
    await one.update(made("ben"), "ben")
    await one.update(made("ben"), "mallory")
    assert table.uid_to_peer_id == {made("ben"): "ben"}


async def test_a_crowd_of_peers_waits_in_a_bounded_list() -> None:
    table, one, _, made = routing(VirtualClock())
    for n in range(3000):
        await one.update(made(f"sybil {n}"), f"sybil {n}")
    waiting = sum(len(bucket.replacement_nodes) for bucket in table.buckets)
    assert waiting <= 20 * len(table.buckets)
    assert len(table.peer_id_to_uid) <= 2 * 20 * len(table.buckets)


def test_a_fresh_record_is_checked_once_however_many_were_checked_in_weeks_before():
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


LOADED = "print(sorted({'torch', 'scipy'} & set(sys.modules)))"
NODE = Path(__file__).parents[3] / "swarm/transport/hivemind/node.py"


def python(script: str) -> str:
    """What a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    light = "import sys; from swarm.transport.hivemind.transport import import_network as light; "
    run = subprocess.run(
        [sys.executable, "-c", light + script], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_all_that_a_node_uses_is_imported_without_torch_and_scipy() -> None:
    used = [line.strip() for line in NODE.read_text().splitlines() if "from hivemind." in line]
    assert "from hivemind.dht.node import DHTNode" in used
    imports = "\n".join(used)
    assert python(f"light()\n{imports}\n{LOADED}") == "[]"


def test_names_of_the_package_are_those_of_its_modules() -> None:
    same = "utils.MSGPackSerializer is storage.MSGPackSerializer is serializer.MSGPackSerializer"
    modules = "from hivemind.utils import serializer; from hivemind.dht import storage"
    assert python(f"light(); import hivemind.utils as utils; {modules}; print({same})") == "True"


def test_only_what_is_stored_under_the_latest_keys_is_told() -> None:
    heard: list[bytes] = []
    watch = Watch(Counters())
    watch.stored(dht_key_of("first"), b"before anybody watches")
    watch.begin(["first"], heard.append)
    watch.stored(dht_key_of("first"), b"one")
    watch.stored(dht_key_of("other"), b"elsewhere")
    watch.begin(["second"], heard.append)
    watch.stored(dht_key_of("first"), b"too late")
    watch.stored(dht_key_of("second"), b"two")
    assert heard == [b"one", b"two"]


def test_flo_who_floods_a_key_is_heard_so_many_times_and_then_no_more(counters) -> None:
    heard: list[bytes] = []
    watch = Watch(counters)
    watch.begin(["a key"], heard.append)
    for number in range(1000):
        watch.stored(dht_key_of("a key"), b"flo %d" % number)
    not_reported = counters.snapshot()["records_not_reported"]
    assert (len(heard), not_reported) == (MAX_REPORTS, 1000 - MAX_REPORTS)
    watch.begin(["a key"], heard.append)
    watch.stored(dht_key_of("a key"), b"anna")
    assert heard[-1] == b"anna"


def stub(caller: HivemindNode, called: HivemindNode):
    return caller.dht.protocol.get_stub(called.dht.peer_id)


@asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[list[HivemindNode]]:
    """Anna and ben, who do not know each other."""
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
async def test_an_answer_that_comes_while_its_call_is_given_up_leaves_the_daemon_alone(tmp_path):
    given_up, answered = asyncio.Event(), asyncio.Event()
    async with two_nodes(tmp_path) as (anna, ben):

        async def late(request: bytes, peer: object) -> bytes:
            await given_up.wait()
            return request

        async def echo(request: bytes, peer: object) -> bytes:
            return request

        await add_handler(ben, "late", late)
        await add_handler(ben, "echo", echo)
        await anna.connect(ben.addresses[0])

        async def cancel(call: object) -> None:
            if not given_up.is_set():
                given_up.set()
                await answered.wait()
            await tell_daemon(call)

        tell_daemon = cancel_with(anna, cancel)
        call = asyncio.ensure_future(anna.call(ben.peer_id, "late", b"question"))
        await anna.call(ben.peer_id, "echo", b"1")
        call.cancel()
        # The answer to this one comes behind the answer that nobody waits for.
        await asyncio.gather(given_up.wait(), asyncio.sleep(0.5))
        second = await anna.call(ben.peer_id, "echo", b"2")
        answered.set()
        assert second == b"2"
        with pytest.raises(asyncio.CancelledError):
            await call
        assert still_reads(anna)


@pytest.mark.processes
async def test_the_daemon_looks_for_four_lost_peers_a_minute_wherever_they_claim_to_be(tmp_path):
    cache = tmp_path / "peers"
    at = {"listen": LOOPBACK, "peer_cache": cache, "clock": OneMinute()}
    async with third_party() as (ports, seen):
        async with started(HivemindTransport(key_of(tmp_path, "anna"), **at)) as anna:
            keys = await claim(HivemindTransport, tmp_path, anna, ports)
            causes = [await refused(anna, key) for key in keys]
            assert ["not dialed" in cause for cause in causes] == [False] * MOST_DIALS + [True]
        before = len(seen)
        await start_again(HivemindTransport, tmp_path, cache)
        assert len(seen) == before, "a restart dials no claim"


@pytest.mark.processes
async def test_a_record_that_its_sender_calls_cached_is_bounded_like_any_other(tmp_path) -> None:
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
async def test_who_names_an_id_of_another_length_is_a_client(tmp_path, caplog, length) -> None:
    async with two_nodes(tmp_path) as (anna, ben):
        await ben.connect(anna.addresses[0])
        table = anna.dht.protocol.routing_table.uid_to_peer_id
        table.clear()
        claimed = NodeInfo(node_id=b"\1" * length)
        call = stub(ben, anna)
        pinged = await call.rpc_ping(PingRequest(peer=claimed, validate=True), timeout=20)
        found = await call.rpc_find(FindRequest(keys=[bytes(20)], peer=claimed), timeout=20)
        await call.rpc_store(StoreRequest(peer=claimed), timeout=20)
        assert not pinged.available and len(found.results) == 1
        assert not table
        # The same id in answers.
        ben.dht.protocol.node_info = claimed
        await anna.dht.protocol.call_ping(ben.dht.peer_id, validate=False)
        assert (await anna.connect(ben.addresses[0]))[0] == ben.peer_id
        await asyncio.sleep(0.1)  # the ping's task
        assert not table
    assert "never retrieved" not in caplog.text
