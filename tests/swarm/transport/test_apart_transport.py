"""A node's network in a subprocess: its messages, and how either side ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil
import pytest

from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.node import NodeSettings, PortTaken
from swarm.transport.subprocess import link as link_module
from swarm.transport.subprocess.link import Link, LinkLost, Process
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.transport.transport import (
    HandlerLimits,
    PeerUnreachable,
    RecordTooLarge,
    Refusal,
    Refused,
    ResponseTooLarge,
    TransportError,
)
from tests.swarm.network_parts import identity
from tests.swarm.transport.over import (
    ECHO,
    LOOPBACK,
    OVER,
    be_patient,
    key_of,
    network_processes,
    until,
)


class Methods:
    def __init__(self) -> None:
        self.told: list[object] = []
        self.given_up = 0

    def add(self, a: int, b: int) -> int:
        return a + b

    async def refuse(self, reason: str) -> None:
        raise Refusal(reason)

    async def taken(self) -> None:
        raise PortTaken("port 1: choose another")

    async def broken(self) -> None:
        raise ZeroDivisionError("by zero")

    async def never(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up += 1

    def note(self, value: object) -> None:
        self.told.append(value)

    def table(self) -> dict[str, Callable[..., object]]:
        named = (self.add, self.refuse, self.taken, self.broken, self.never, self.note)
        return {method.__name__: method for method in named}


class Joined(AbstractAsyncContextManager):
    async def __aenter__(self) -> tuple[Link, Link, Methods]:
        methods = Methods()
        self.links = [
            Link(*(await asyncio.open_unix_connection(sock=end)), methods.table())
            for end in socket.socketpair()
        ]
        self.running = [asyncio.ensure_future(link.run()) for link in self.links]
        return *self.links, methods

    async def __aexit__(self, *failure: object) -> None:
        for link in self.links:
            link.close()
        await asyncio.gather(*self.running)


@pytest.fixture
def joined() -> Joined:
    return Joined()


async def test_both_sides_call_each_other_at_the_same_time(joined):
    one, other, methods = joined
    calls = [link.call("add", n, 1) for n in range(50) for link in (one, other)]
    assert await asyncio.gather(*calls) == [n + 1 for n in range(50) for _ in range(2)]
    assert one.notify("note", "first") and one.notify("note", b"second")
    await one.call("add", 0, 0)
    assert methods.told == ["first", b"second"]


async def test_an_error_is_raised_again_on_the_other_side(joined, caplog):
    one, *_ = joined
    with pytest.raises(Refusal, match="busy"):
        await one.call("refuse", "busy")
    with pytest.raises(PortTaken, match="choose another"):
        await one.call("taken")
    with pytest.raises(TransportError, match="ZeroDivisionError: by zero"):
        await one.call("broken")
    assert "by zero" in caplog.text


async def test_cancelled_call_ends_remotely_and_a_call_to_a_lost_side_fails(joined):
    one, other, methods = joined
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await one.call("never")
    await one.call("add", 1, 1)
    assert methods.given_up == 1
    call = asyncio.ensure_future(one.call("never"))
    await one.call("add", 1, 1)
    other.close()
    with pytest.raises(LinkLost):
        await call
    with pytest.raises(LinkLost):
        await one.call("add", 1, 1)
    assert not one.notify("note", "lost")
    assert methods.given_up == 2


async def test_notify_drops_messages_when_the_receiver_does_not_read() -> None:
    ours, deaf = socket.socketpair()
    with deaf:
        link = Link(*(await asyncio.open_unix_connection(sock=ours)), {})
        told = [link.notify("note", bytes(1 << 16)) for _ in range(100)]
        assert told[0] and not told[-1]
        link.close()


def libraries_of_the_network() -> set[str]:
    python = network_processes("python")
    assert python
    return {each.path for p in python for each in p.memory_maps()} if psutil.LINUX else set()


@OVER
@pytest.mark.processes
async def test_requests_and_errors_cross_between_the_processes(over, tmp_path, caplog, monkeypatch):
    be_patient(monkeypatch)
    caplog.set_level(logging.INFO)

    async def echo(peer: str, request: bytes) -> bytes:
        if request == b"no":
            raise Refusal("not_today")
        if request == b"odd":
            raise ZeroDivisionError("by zero")
        return peer.encode() + b":" + request

    key, counters = key_of(tmp_path, "anna"), Counters()
    anna = SubprocessTransport(key, listen=LOOPBACK, counters=counters, over=over)
    with pytest.raises(PeerUnreachable, match="not started"):
        _ = anna.peer_id
    with pytest.raises(PeerUnreachable, match="not started"):
        await anna.connect("/ip4/127.0.0.1/tcp/1/p2p/x")
    nobody = identity("nobody").peer_id
    limits = HandlerLimits(100_000, concurrent=8, concurrent_per_peer=4)
    anna.handle(ECHO, echo, limits)
    await anna.start()
    ben = HivemindTransport(key_of(tmp_path, "ben"), listen=LOOPBACK)
    ben.handle(ECHO, echo, limits)
    await ben.start()
    try:
        assert await anna.connect(ben.addresses()[0]) == ben.peer_id
        assert ben.peer_id in anna.peers()
        assert not any("torch" in library for library in libraries_of_the_network())
        blob = bytes(90_000)
        answer = await ben.request(anna.peer_id, ECHO, blob, limit=1 << 20, deadline=60)
        assert answer == ben.peer_id.encode() + b":" + blob
        answer = await anna.request(ben.peer_id, ECHO, b"you", limit=1 << 20, deadline=60)
        assert answer == anna.peer_id.encode() + b":you"
        assert anna.bytes_in == len(blob) + len(answer)
        for refused in (b"no", b"odd", b"odd", b"odd"):
            with pytest.raises(Refused):
                await ben.request(anna.peer_id, ECHO, refused, limit=100, deadline=60)
        with pytest.raises(Refused):
            await anna.request(ben.peer_id, ECHO, b"no", limit=100, deadline=60)
        with pytest.raises(ResponseTooLarge):
            await anna.request(ben.peer_id, ECHO, blob, limit=100, deadline=60)
        with pytest.raises(PeerUnreachable, match="no stream"):
            await anna.request(ben.peer_id, "swarm-node/test/none", b"", limit=9, deadline=60)
        with pytest.raises(PeerUnreachable, match="no peer answers"):
            await anna.connect(f"/ip4/127.0.0.1/tcp/1/p2p/{nobody}")
        with pytest.raises(RecordTooLarge):
            await anna.store("k", b"anna", bytes(1025), 2.0**31)
        with pytest.raises(TypeError, match="RecordRule"):
            anna.use_validator(lambda record: True)
        with pytest.raises(TypeError, match="OwnFirst"):
            anna.use_reputation(lambda author: 1.0)
        taken = anna.addresses()[0].split("/p2p/")[0]
        other = SubprocessTransport(key_of(tmp_path, "other"), listen=(taken,), over=over)
        with pytest.raises(PortTaken, match="choose another port"):
            await other.start()
        await until(lambda: counters.snapshot().get(REFUSED))
    finally:
        await ben.close()
        await anna.close()
        await anna.close()
    with pytest.raises(PeerUnreachable, match="not started"):
        await anna.connect("/ip4/127.0.0.1/tcp/1/p2p/x")
    (told,) = (record for record in caplog.records if "handler of" in record.getMessage())
    assert "by zero" in told.getMessage() and "Traceback" not in told.getMessage()
    assert not network_processes()


REFUSED = "requests_refused{protocol=swarm-node/test/echo,reason=not_today}"


@OVER
@pytest.mark.processes
async def test_cancelled_start_leaves_no_process(over, tmp_path):
    anna = SubprocessTransport(key_of(tmp_path, "anna"), listen=LOOPBACK, over=over)
    starting = asyncio.ensure_future(anna.start())
    await until(lambda: network_processes("python" if over is Libp2pTransport else "p2pd"))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not network_processes()


@pytest.mark.processes
async def test_a_cancelled_start_leaves_neither_a_daemon_nor_its_socket(tmp_path: Path) -> None:
    settings = NodeSettings(key_of(tmp_path, "anna"), LOOPBACK, (), 60.0)
    starting = asyncio.ensure_future(HivemindNode.start(settings, Counters()))
    async with asyncio.timeout(120):
        while not (sockets := sockets_of_daemons()):
            await asyncio.sleep(0.001)
    starting.cancel()
    try:
        await (await starting).stop()  # The start had just completed.
    except asyncio.CancelledError:
        assert not network_processes()
    assert not any(path.exists() for path in sockets)


@pytest.mark.processes
async def test_settings_made_during_startup_reach_the_network_process(tmp_path, monkeypatch):
    anna = SubprocessTransport(key_of(tmp_path, "anna"), listen=LOOPBACK)
    call, notify, sent = Link.call, Link.notify, []

    async def call_and_set(link: Link, method: str, *given: object, **options: object) -> object:
        answer = await call(link, method, *given, **options)
        if method == "start":
            anna.watch(["a key"], sent.append)
        return answer

    def note(link: Link, method: str, *given: object, **options: object) -> bool:
        sent.append((method, *given))
        return notify(link, method, *given, **options)

    monkeypatch.setattr(Link, "call", call_and_set)
    monkeypatch.setattr(Link, "notify", note)
    await anna.start()
    await anna.close()
    assert ("watch", ["a key"]) in sent


def sockets_of_daemons() -> list[Path]:
    words = [word for p in network_processes("p2pd") for word in p.cmdline()]
    paths = [Path(w.removeprefix("-listen=/unix")) for w in words if w.startswith("-listen=")]
    return [path for path in paths if path.exists()]


WAITING = """
import asyncio, sys
from pathlib import Path
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.subprocess.transport import SubprocessTransport

async def main():
    over = {k.__name__: k for k in (HivemindTransport, Libp2pTransport)}[sys.argv[2]]
    listen = ("/ip4/127.0.0.1/tcp/0",)
    await SubprocessTransport(Path(sys.argv[1]), listen=listen, over=over).start()
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@OVER
@pytest.mark.processes
def test_a_node_that_is_killed_leaves_no_process(over, tmp_path):
    command = [sys.executable, "-c", WAITING, str(key_of(tmp_path, "anna")), over.__name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None and node.stdout.readline() == "up\n"
        procs = network_processes()
        assert len(procs) == (2 if over is HivemindTransport else 1)
        node.send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(procs, timeout=120)[1]


async def test_process_with_an_overlong_output_line_is_awaited_normally(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = "import sys; sys.stderr.write('x' * 200_000 + '\\n' + 'and then\\n')"
    monkeypatch.setattr(link_module, "COMMAND", (sys.executable, "-c", program))
    assert await (await Process.start(Methods())).ended() == "ended with exit status 0"
    assert "process: a line that is too long to be shown" in caplog.text
    assert "process: and then" in caplog.text
