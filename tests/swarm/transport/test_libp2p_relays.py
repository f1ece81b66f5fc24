"""Hivemind and libp2p nodes on both ends of a relay."""

import asyncio
import shutil
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from node.conformance.peer import find, meet
from node.conformance.records import RECORD_CASES
from protocol.manifest import sign_manifest
from protocol.messages import MANIFEST_STREAM
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p import relays
from swarm.transport.libp2p.addresses import peer_id_bytes
from swarm.transport.libp2p.node import Libp2pNode, Libp2pTransport
from swarm.transport.libp2p.relays import LEAST_SECONDS, MOST_SECONDS
from swarm.transport.node import NodeSettings, Role, TransportNode
from swarm.transport.protobuf import decode, encode
from swarm.transport.records import RecordRule
from swarm.transport.request_limits import PeerLimits
from swarm.transport.streams import LENGTH_VARINT, ask
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.transport.transport import PeerUnreachable, Transport, is_relayed
from tests.swarm.network_parts import CREATOR, identity, manifest
from tests.swarm.transport.over import ECHO, LOOPBACK, be_patient, key_of, started, until

pytestmark = pytest.mark.processes

PATIENCE = 300.0
ROOT = Path(__file__).parents[3]
PUBLIC = "ip link set lo up && ip address add 8.8.4.4/32 dev lo"
OWN_NETWORK = ("unshare", "--map-root-user", "--net", "sh", "-c", f'{PUBLIC} && exec "$@"', "sh")
BLOB_BYTES = 50_000
"""Fewer bytes than a daemon relays that starts on a busy machine."""


@asynccontextmanager
async def node(kind: type, folder: Path, name: str, role: Role, *relays: str):
    settings = NodeSettings(key_of(folder, name), LOOPBACK, (), 60.0, role, relays)
    counters = Counters()
    started = await kind.start(settings, counters, None, PeerLimits(SystemClock(), counters))
    await started.add_handler(ECHO, echo)
    try:
        yield started
    finally:
        await started.stop()


def isolated(over: type, folder: Path, name: str, **settings: object):
    """Start a transport in its own process: the two libraries do not work together."""
    transport = SubprocessTransport(key_of(folder, name), listen=LOOPBACK, over=over, **settings)
    rule = RecordRule(sign_manifest(manifest(), CREATOR), SystemClock(), Counters())
    transport.use_validator(rule)
    return started(transport)


async def echo(peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.set_write_buffer_limits(high=0)  # After a drain the data is sent.
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer = peer.encode() + await reader.readexactly(size)
    writer.write(len(answer).to_bytes(4, "big") + answer)
    await writer.drain()
    writer.close()


async def dialed(visitor: Transport | TransportNode, address: str) -> object:
    """Dial until the relay has accepted the reservation."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await visitor.connect(address)
        except PeerUnreachable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


@asynccontextmanager
async def relayed_daemon(folder: Path):
    """Start rita and anna; yield them and the address of anna through rita."""
    async with (
        node(HivemindNode, folder, "rita", "public") as rita,
        node(HivemindNode, folder, "anna", "private", rita.addresses[0]) as anna,
    ):
        yield rita, anna, f"{rita.addresses[0]}/p2p-circuit/p2p/{anna.peer_id}"


async def test_daemon_behind_a_relay_accepts_dials_and_requests(tmp_path: Path) -> None:
    async with (
        relayed_daemon(tmp_path) as (rita, anna, circuit),
        isolated(Libp2pTransport, tmp_path, "ben") as ben,
    ):
        assert await dialed(ben, circuit) == anna.peer_id
        blob = bytes(BLOB_BYTES)
        answer = await ben.request(anna.peer_id, ECHO, blob, limit=1 << 20, deadline=60)
        assert answer == ben.peer_id.encode() + blob
        routes = {anna.peer_id: "relayed", rita.peer_id: "direct"}
        await until(lambda: ben.reach().links == routes, PATIENCE)


VISITORS = {
    "daemon": partial(node, HivemindNode, name="ben", role="public"),
    "libp2p": partial(isolated, Libp2pTransport, name="ben"),
}


@pytest.mark.parametrize("visitor", VISITORS.values(), ids=VISITORS)
async def test_missing_relay_reservation_is_reported_in_one_line(visitor, tmp_path):
    async with node(HivemindNode, tmp_path, "rita", "public") as rita, visitor(tmp_path) as ben:
        nobody = identity("nobody").peer_id
        with pytest.raises(PeerUnreachable, match="join through another peer") as told:
            await ben.connect(f"{rita.addresses[0]}/p2p-circuit/p2p/{nobody}")
        assert "\n" not in str(told.value)


async def test_relayed_member_reports_its_time_and_enters_no_routing_table(tmp_path):
    async with (
        relayed_daemon(tmp_path) as (rita, anna, circuit),
        node(HivemindNode, tmp_path, "ben", "public") as ben,
    ):
        peer, clock = await dialed(ben, circuit)
        assert peer == anna.peer_id
        assert abs(clock - time.time()) < 60.0
        (address,) = (await ben.connected())[anna.peer_id][:1]
        assert is_relayed(address)
        table = ben.dht.protocol.routing_table.peer_id_to_uid
        assert anna.peer_id not in map(str, table)
        await ben.connect(rita.addresses[0])
        assert rita.peer_id in map(str, table), "a peer that can be dialed is in the table"


async def test_relayed_client_skips_the_dht_conformance_cases(tmp_path):
    async def serve(peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        signed = sign_manifest(manifest(), CREATOR)
        writer.write(len(signed).to_bytes(4, "big") + signed)
        await writer.drain()
        writer.close()

    async with (
        relayed_daemon(tmp_path) as (_, anna, circuit),
        node(HivemindNode, tmp_path, "ben", "public") as ben,
    ):
        await anna.add_handler(MANIFEST_STREAM, serve)
        await dialed(ben, circuit)
        async with meet(circuit, tmp_path, "hivemind") as peer:
            outcomes = {(await find(case, peer)).outcome for case in RECORD_CASES}
    assert outcomes == {"skip"}


async def test_store_by_a_client_without_neighbors_returns_false(tmp_path):
    async with node(HivemindNode, tmp_path, "anna", "private") as anna:
        anna.gate.check = lambda record: True
        assert not await anna.hash_table.store("key", b"subkey", b"value", time.time() + 60.0)


def test_unreachable_public_node_starts_before_it_has_a_relay(tmp_path):
    probe = shutil.which("unshare") and subprocess.run([*OWN_NETWORK, "true"], capture_output=True)
    if not probe or probe.returncode:
        pytest.skip("no network of its own can be had here")
    command = [*OWN_NETWORK, sys.executable, "-m", "tests.swarm.transport.unseen"]
    run = subprocess.run(
        [*command, tmp_path / "anna"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.stdout.splitlines() == ["()", "()"], run.stderr


@pytest.mark.alone("libp2p")
@pytest.mark.parametrize("kind", [HivemindTransport, Libp2pTransport])
async def test_unreachable_node_is_reached_through_a_daemon_relay(kind: type, tmp_path: Path):
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        rita = await enter(isolated(HivemindTransport, tmp_path, "rita", relay=True))
        anna = await enter(node(Libp2pNode, tmp_path, "anna", "private", *rita.addresses()))
        deadline = time.monotonic() + PATIENCE
        while not is_relayed(anna.addresses[0]):
            assert time.monotonic() < deadline, "the relay granted no reservation"
            await asyncio.sleep(0.1)
            await anna.look()
        assert anna.addresses[0].startswith(f"{rita.addresses()[0]}/p2p-circuit/")
        ben = await enter(isolated(kind, tmp_path, "ben"))
        assert await dialed(ben, anna.addresses[0]) == anna.peer_id
        blob = bytes(BLOB_BYTES)
        answer = await ben.request(anna.peer_id, ECHO, blob, limit=1 << 20, deadline=60)
        assert answer == ben.peer_id.encode() + blob
        assert all(map(is_relayed, (await anna.connected())[ben.peer_id]))


@pytest.mark.alone("libp2p")
async def test_node_rejects_a_relay_without_a_reservation(tmp_path, monkeypatch) -> None:
    be_patient(monkeypatch)
    async with (
        node(Libp2pNode, tmp_path, "rita", "public") as rita,
        node(Libp2pNode, tmp_path, "anna", "private", rita.addresses[0]) as anna,
        node(Libp2pNode, tmp_path, "mallory", "public") as mallory,
    ):
        await mallory.connect(anna.addresses[0])
        message = encode({1: 0, 2: encode({1: peer_id_bytes(rita.peer_id)})})
        reader, writer = await mallory.open_stream(anna.peer_id, relays.STOP)
        reply = await ask(reader, writer, message, peer="", limit=64, framing=LENGTH_VARINT)
        writer.close()
        assert decode(reply)[4] == [relays.UNEXPECTED_MESSAGE]
        assert not is_relayed(anna.addresses[0]), "anna uses rita, who granted no reservation"


@pytest.mark.alone("libp2p")
def test_messages_match_the_libp2p_schema() -> None:
    from libp2p.relay.circuit_v2.pb import circuit_pb2

    anna = identity("anna").peer_id
    asked = circuit_pb2.HopMessage.FromString(relays.connect(anna))
    assert (asked.type, asked.peer.id) == (circuit_pb2.HopMessage.CONNECT, peer_id_bytes(anna))
    assert circuit_pb2.HopMessage.FromString(relays.reserve()).type == 0
    told = circuit_pb2.StopMessage.FromString(relays.answer(relays.OK))
    assert (told.type, told.status) == (circuit_pb2.StopMessage.STATUS, circuit_pb2.OK)
    bringing = circuit_pb2.StopMessage(type=0, peer=circuit_pb2.PeerId(id=peer_id_bytes(anna)))
    assert relays.taken(bringing.SerializeToString()) == anna
    grant = circuit_pb2.HopMessage(type=2, status=circuit_pb2.OK)
    grant.reservation.expire = 1600
    assert relays.reservation_seconds(grant.SerializeToString(), now=1000.0) == 600.0
    full = circuit_pb2.HopMessage(type=2, status=circuit_pb2.RESOURCE_LIMIT_EXCEEDED)
    with pytest.raises(ConnectionError, match="full"):
        relays.relayed(full.SerializeToString())


@pytest.mark.parametrize("expire", [0, 1, 1 << 60])
def test_relay_reservation_time_is_bounded(expire: int) -> None:
    said = encode({1: 2, 3: encode({1: expire}), 5: relays.OK})
    assert LEAST_SECONDS <= relays.reservation_seconds(said, now=1000.0) <= MOST_SECONDS


@pytest.mark.parametrize(
    "said", [b"", b"\xff" * 8, encode({1: 1}), encode({1: 0, 2: 7}), encode({1: b""})]
)
def test_malformed_relay_message_is_rejected(said: bytes) -> None:
    for read in (relays.relayed, relays.taken):
        with pytest.raises(ValueError):
            read(said)
