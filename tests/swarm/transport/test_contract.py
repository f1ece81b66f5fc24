"""The contract of all transports, and of real connections; one loop per test."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.memory_transport import MemoryTransport
from protocol.codec import MAX_FRAME_BYTES
from protocol.messages import MAX_PULL_RESPONSE_BYTES
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.node import Libp2pNode, Libp2pTransport
from swarm.transport.node import PortTaken, TransportNode
from swarm.transport.node_transport import NodeTransport
from swarm.transport.transport import (
    ClockSkew,
    DeadlineExceeded,
    HandlerLimits,
    PeerUnreachable,
    RecordTooLarge,
    RecordView,
    Refusal,
    Refused,
    ResponseTooLarge,
    Transport,
)
from tests.swarm.network_parts import identity
from tests.swarm.transport.over import (
    ECHO,
    LOOPBACK,
    InMemory,
    OnWires,
    be_patient,
    key_of,
    lasting_place,
    network_processes,
    until,
)

pytestmark = pytest.mark.processes

SMALL = HandlerLimits(64, concurrent=8, concurrent_per_peer=4)


class WrongClock(SystemClock):
    def time(self) -> float:
        return time.time() - 10


def active() -> list[object]:
    """Return the daemons and threads of running networks."""
    threads = [thread for thread in threading.enumerate() if thread.name == "libp2p"]
    return [*network_processes("p2pd"), *threads]


class Swarm:
    def __init__(self, folder: Path, over: OnWires | InMemory) -> None:
        self.folder, self.over = folder, over
        self.open: list[Transport] = []

    def in_a_minute(self) -> float:
        """Return a unix time."""
        return self.over.clock.time() + 60

    async def member(self, name: str, check: Callable[[RecordView], bool] | None = None, **options):
        transport = self.over.make(key_of(self.folder, name), **{"listen": LOOPBACK, **options})
        transport.use_validator(check or (lambda record: True))
        await transport.start()
        self.open.append(transport)
        return transport

    async def __aenter__(self) -> Swarm:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await asyncio.gather(*(transport.close() for transport in self.open))


ON_WIRES = (HivemindTransport, pytest.param(Libp2pTransport, marks=pytest.mark.alone("libp2p")))


@pytest.fixture(params=[*ON_WIRES, MemoryTransport])
def swarm(request, tmp_path, monkeypatch) -> Iterator[Swarm]:
    """Yield transports of every kind, and check that they leave nothing behind.

    The check covers only this process's sockets, because other swarms may run on the machine.
    """
    kind: type[Transport] = request.param
    tokens: list[str] = []

    def token(size: int) -> str:
        tokens.append(os.urandom(size).hex())
        return tokens[-1]

    be_patient(monkeypatch)
    if kind is HivemindTransport:
        monkeypatch.setattr("hivemind.p2p.p2p_daemon.secrets.token_urlsafe", token)
    yield Swarm(tmp_path, InMemory() if kind is MemoryTransport else OnWires(kind))
    assert not active()
    stale = [path for name in tokens for path in Path("/tmp").glob(f"hivemind-p2p*{name}.sock")]
    assert not [path for path in stale if has_no_listener(path)]


wires = pytest.mark.parametrize("swarm", ON_WIRES, indirect=True)
"""For behavior that needs ports, daemons, threads or lost peers."""


def has_no_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return False
        except ConnectionRefusedError:
            return True
    return False


async def break_down(transport: NodeTransport) -> None:
    """Kill the transport's daemon, or stop its node if it has none."""
    if transport.daemon:
        os.kill(transport.daemon, signal.SIGKILL)
    else:
        await transport.node.stop()


async def both(swarm: Swarm, **options: object) -> tuple[Transport, Transport]:
    anna = await swarm.member("anna", **options)
    return anna, await swarm.member("bert", peers=anna.addresses())


def echo_on(transport: Transport) -> None:
    async def echo(peer: str, request: bytes) -> bytes:
        if request == b"no":
            raise Refusal("not_today")
        return peer.encode() + b":" + request

    transport.handle(ECHO, echo, HandlerLimits(1 << 20, concurrent=8, concurrent_per_peer=4))


async def test_two_nodes_exchange_records_and_streams(swarm):
    anna, bert = await both(swarm)
    echo_on(anna)
    await until(lambda: anna.peer_id in bert.peers())
    assert anna.peer_id == identity("anna").peer_id
    expiry = swarm.in_a_minute()
    assert await bert.read("a key") == {}
    assert await anna.store("a key", b"anna", b"first", expiry)
    assert await bert.store("a key", b"bert", b"other", expiry)
    assert await anna.store("a key", b"anna", b"second", expiry + 1)
    assert not await anna.store("a key", b"anna", b"too late", expiry + 1)
    expected = {b"anna": b"second", b"bert": b"other"}
    assert await bert.read("a key") == expected
    assert await anna.read("a key") == expected
    blob = os.urandom(300_000)
    answer = await bert.request(anna.peer_id, ECHO, blob, limit=1 << 20, deadline=60)
    assert answer == bert.peer_id.encode() + b":" + blob
    assert (bert.bytes_out, bert.bytes_in) == (len(blob), len(answer))
    # Anna counts an answer once all of it is sent, which may be after bert receives it.
    await until(lambda: (anna.bytes_in, anna.bytes_out) == (len(blob), len(answer)))
    with pytest.raises(Refused):
        await bert.request(anna.peer_id, ECHO, b"no", limit=100, deadline=60)
    with pytest.raises(ResponseTooLarge):
        await bert.request(anna.peer_id, ECHO, b"x" * 200, limit=100, deadline=60)
    with pytest.raises(PeerUnreachable):
        await bert.request(anna.peer_id, "swarm-node/test/none", b"", limit=9, deadline=60)


async def test_largest_protocol_frame_arrives_complete(swarm):
    anna = await swarm.member("anna")
    frame = os.urandom(MAX_FRAME_BYTES)

    async def serve(peer: str, request: bytes) -> bytes:
        return b"\0" + frame

    anna.handle(ECHO, serve, SMALL)
    bert = await swarm.member("bert", peers=anna.addresses())
    pending = bert.request(anna.peer_id, ECHO, b"", limit=MAX_PULL_RESPONSE_BYTES, deadline=60)
    assert await pending == b"\0" + frame


async def test_record_is_validated_on_store_and_on_read(swarm):
    def only_good(record: RecordView) -> bool:
        return record.value.startswith(b"good") and len(record.key) == 20

    anna = await swarm.member("anna", only_good)
    mallory = await swarm.member("mallory", peers=anna.addresses())
    expiry = swarm.in_a_minute()
    await mallory.store("k", b"mallory", b"bad", expiry)
    await anna.store("k", b"anna", b"good", expiry)
    assert b"mallory" in await mallory.read("k")
    assert b"mallory" not in await anna.read("k")
    with pytest.raises(RecordTooLarge):
        await mallory.store("k", b"mallory", bytes(1025), expiry)


async def test_watcher_receives_valid_records_stored_by_other_peers(swarm):
    anna = await swarm.member("anna", lambda record: record.value.startswith(b"good"))
    received: list[bytes] = []
    anna.watch(["a key"], received.append)
    bert = await swarm.member("bert", peers=anna.addresses())
    expiry = swarm.in_a_minute()
    await bert.store("a key", b"bert", b"bad", expiry)
    await bert.store("another", b"bert", b"good elsewhere", expiry)
    await bert.store("a key", b"bert", b"good", expiry + 1)
    await bert.store("a key", b"bert", b"good but earlier", expiry)
    await bert.store("a key", b"bert", b"good again", expiry + 2)
    await until(lambda: received == [b"good", b"good again"])


@wires
async def test_watch_continues_after_the_node_is_restarted(swarm):
    anna = await swarm.member("anna")
    received: list[bytes] = []
    anna.watch(["a key"], received.append)
    before = anna.node
    await break_down(anna)
    await until(lambda: anna.node is not before)
    bert = await swarm.member("bert", peers=anna.addresses())
    await until(lambda: bert.peers())
    await bert.store("a key", b"bert", b"good", swarm.in_a_minute())
    await until(lambda: received == [b"good"])


@wires
async def test_restarted_node_keeps_its_identity_port_and_handlers(swarm):
    counters = Counters()
    anna, bert = await both(swarm, counters=counters)
    echo_on(anna)
    addresses, peer = anna.addresses(), anna.peer_id
    await anna.store("k", b"anna", b"kept", swarm.in_a_minute())
    failed = anna.node
    await break_down(anna)
    await until(lambda: counters.snapshot().get("daemon_restarts"))
    await until(lambda: anna.peers() == (bert.peer_id,))
    assert (anna.peer_id, anna.addresses()) == (peer, addresses)
    assert anna.node is not failed
    assert (await bert.request(peer, ECHO, b"again", limit=100, deadline=60)).endswith(b"again")
    assert await anna.read("k") == {b"anna": b"kept"}


@wires
async def test_node_that_fails_during_restart_is_restarted_again(swarm, monkeypatch):
    failed: list[TransportNode] = []

    def failing(start):
        async def started(settings, counters, dead=None, *others) -> TransportNode:
            node = await start(settings, counters, dead, *others)
            if dead and not failed:
                failed.append(node)
                node.end()
                await node.wait_dead()
            return node

        return started

    for kind in (HivemindNode, Libp2pNode):
        monkeypatch.setattr(kind, "start", failing(kind.start))
    anna, bert = await both(swarm)
    echo_on(anna)
    peer, first = anna.peer_id, anna.node
    await break_down(anna)
    await until(lambda: failed and anna.node not in (first, *failed))
    await until(lambda: anna.peers() == (bert.peer_id,))
    assert (await bert.request(peer, ECHO, b"again", limit=100, deadline=60)).endswith(b"again")


@wires
async def test_node_is_replaced_even_if_its_stop_fails(swarm, caplog):
    anna = await swarm.member("anna")
    failed = anna.node
    stop = failed.stop

    async def broken() -> None:
        await stop()
        raise ValueError("what no library should raise")

    failed.stop = broken
    failed.end()
    await until(lambda: anna.node is not failed)
    assert "what no library should raise" in caplog.text


@wires
async def test_connection_check_continues_after_an_error(swarm):
    anna = await swarm.member("anna")
    look, failed = anna.node.look, []

    async def broken() -> None:
        if len(failed) < 2:
            failed.append(1)
            raise ValueError("what no library should raise")
        await look()

    anna.node.look = broken
    await until(lambda: len(failed) == 2)
    bert = await swarm.member("bert", peers=anna.addresses())
    await until(lambda: anna.peers() == (bert.peer_id,))


async def test_missing_bootstrap_peer_is_dialed_until_it_starts(swarm):
    place = lasting_place()
    late = await swarm.member("late", listen=place)
    address = late.addresses()
    await late.close()
    early = await swarm.member("early", peers=address)
    assert early.peers() == ()
    assert await early.store("k", b"early", b"alone", swarm.in_a_minute())
    late = await swarm.member("late", listen=place)
    await until(lambda: early.peers() == (late.peer_id,))
    await until(lambda: late.peers() == (early.peer_id,))
    assert await late.read("k") == {b"early": b"alone"}


async def test_node_rejoins_the_swarm_from_its_peer_cache(swarm):
    cache = swarm.folder / "peers"
    anna = await swarm.member("anna")
    bert = await swarm.member("bert", peers=anna.addresses(), peer_cache=cache)
    await until(bert.peers)
    await bert.close()
    bert = await swarm.member("bert", peer_cache=cache)
    await until(lambda: bert.peers() == (anna.peer_id,))


@wires
async def test_recently_met_peer_is_redialed_while_others_are_connected(swarm):
    cache, place = swarm.folder / "peers", lasting_place()
    anna = await swarm.member("anna", peer_cache=cache)
    bert = await swarm.member("bert", listen=place, peers=anna.addresses())
    carl = await swarm.member("carl", peers=anna.addresses())
    await until(lambda: set(anna.peers()) == {bert.peer_id, carl.peer_id})
    await until(lambda: cache.exists() and bert.peer_id in cache.read_text())
    await bert.close()
    await until(lambda: set(anna.peers()) == {carl.peer_id})
    bert = await swarm.member("bert", listen=place)
    await until(lambda: bert.peer_id in anna.peers())


@wires
async def test_port_in_use_is_reported_before_startup(swarm):
    taken = (await swarm.member("anna")).addresses()[0].split("/p2p/")[0]
    with pytest.raises(PortTaken, match="choose another port"):
        await swarm.member("bert", listen=(taken,))


@wires
async def test_clock_10_seconds_off_is_reported_at_startup(swarm):
    anna = await swarm.member("anna")
    with pytest.raises(ClockSkew, match="set the clock"):
        await swarm.member("bert", peers=anna.addresses(), clock=WrongClock())


@wires
async def test_unread_stream_does_not_block_other_streams(swarm):
    anna = await swarm.member("anna")
    answered = asyncio.Event()

    async def large(peer: str, request: bytes) -> bytes:
        answered.set()
        return bytes(4 << 20)

    anna.handle(ECHO + "/large", large, SMALL)
    echo_on(anna)
    bert = await swarm.member("bert", peers=anna.addresses())
    _, writer = await bert.node.open_stream(anna.peer_id, ECHO + "/large")
    writer.write(bytes(4))
    await answered.wait()
    answer = await bert.request(anna.peer_id, ECHO, bytes(1 << 19), limit=1 << 20, deadline=60)
    assert len(answer) > 1 << 19
    writer.close()


async def test_peer_known_only_by_its_id_is_found_through_another(swarm):
    anna, bert = await both(swarm)
    echo_on(bert)
    carl = await swarm.member("carl")
    await carl.connect(anna.addresses()[0])
    answer = await carl.request(bert.peer_id, ECHO, b"found", limit=100, deadline=60)
    assert answer == carl.peer_id.encode() + b":found"


@wires
async def test_cancelled_start_leaves_nothing_running(swarm):
    starting = asyncio.ensure_future(swarm.member("anna"))
    async with asyncio.timeout(120):
        while not active():
            await asyncio.sleep(0)  # The first sign is enough: the rest takes no time.
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not active())


async def test_one_peer_cannot_occupy_all_request_slots(swarm):
    counters, done = Counters(), asyncio.Event()
    anna = await swarm.member("anna", counters=counters)

    async def long(peer: str, request: bytes) -> bytes:
        await done.wait()
        return b"done"

    anna.handle(ECHO, long, HandlerLimits(64, concurrent=8, concurrent_per_peer=2))
    flo = await swarm.member("flo", peers=anna.addresses())
    ben = await swarm.member("ben", peers=anna.addresses())

    def ask(who: Transport) -> asyncio.Task[bytes]:
        pending = who.request(anna.peer_id, ECHO, b"", limit=9, deadline=120)
        return asyncio.ensure_future(pending)

    asking = [ask(flo) for _ in range(6)]
    await until(lambda: sum(task.done() for task in asking) == 4)
    also = ask(ben)
    await asyncio.sleep(0.1)
    done.set()
    assert await also == b"done"
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert sum(answer == b"done" for answer in answers) == 2
    assert sum(isinstance(answer, Refused) for answer in answers) == 4
    assert counters.snapshot()[f"requests_refused{{protocol={ECHO},reason=busy}}"] == 4


async def test_a_request_over_the_limit_is_refused_and_never_handled(swarm):
    counters, handled = Counters(), []
    anna = await swarm.member("anna", counters=counters)

    async def small(peer: str, request: bytes) -> bytes:
        handled.append(len(request))
        return b""

    anna.handle(ECHO, small, SMALL)
    mallory = await swarm.member("mallory", peers=anna.addresses())
    assert await mallory.request(anna.peer_id, ECHO, bytes(64), limit=9, deadline=60) == b""
    with pytest.raises((Refused, PeerUnreachable)):
        await mallory.request(anna.peer_id, ECHO, bytes(65), limit=9, deadline=60)
    assert handled == [64]
    assert counters.snapshot()[f"requests_refused{{protocol={ECHO},reason=too_large}}"] == 1


async def test_request_to_a_silent_peer_times_out(swarm, monkeypatch):
    monkeypatch.setattr("swarm.transport.streams.HEADER_SECONDS", 1.0)
    sid = await swarm.member("sid")

    async def silent(peer: str, request: bytes) -> bytes:
        await swarm.over.clock.sleep(1e6)
        return b""

    sid.handle(ECHO, silent, SMALL)
    ben = await swarm.member("ben", peers=sid.addresses())
    with pytest.raises(DeadlineExceeded):
        await swarm.over.outlast(ben.request(sid.peer_id, ECHO, b"", limit=9, deadline=1e5))


async def test_record_expires_on_time(swarm):
    anna = await swarm.member("anna")
    ben = await swarm.member("ben", peers=anna.addresses())
    clock = swarm.over.clock
    assert not await anna.store("k", b"late", b"gone", clock.time() - 10)
    assert await anna.store("k", b"long", b"later", clock.time() + 600)
    expiry = clock.time() + 10
    assert await anna.store("k", b"short", b"soon", expiry)
    await swarm.over.outlast(clock.sleep(expiry + 0.5 - clock.time()))
    assert await ben.read("k") == {b"long": b"later"}
