"""A node's network in a process of its own: what crosses over, and how either side ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.node import NodeSettings, PortTaken
from swarm.transport.node_transport import NodeTransport
from swarm.transport.subprocess import link as link_module
from swarm.transport.subprocess.link import Link, LinkLost, Process
from swarm.transport.subprocess.transport import ApartTransport
from swarm.transport.transport import (
    HandlerLimits,
    PeerUnreachable,
    RecordTooLarge,
    Refusal,
    Refused,
    ResponseTooLarge,
    TransportError,
)
from tests.swarm.transport.over import OVER

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
ECHO = "swarm-node/test/echo"

Scenario = Callable[[Link, Link], Awaitable[None]]


class Methods:
    """What one side lets the other call."""

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


def over_a_link(scenario: Callable[[Link, Link, Methods], Awaitable[None]]) -> None:
    """Run ``scenario`` with both ends of a link and what the second one lets the first call."""

    async def whole() -> None:
        methods = Methods()
        ends = socket.socketpair()
        links = [
            Link(*(await asyncio.open_unix_connection(sock=end)), methods.table()) for end in ends
        ]
        running = [asyncio.ensure_future(link.run()) for link in links]
        try:
            await scenario(links[0], links[1], methods)
        finally:
            for link in links:
                link.close()
            await asyncio.gather(*running)

    asyncio.run(whole())


def test_both_sides_call_each_other_at_the_same_time() -> None:
    async def scenario(one: Link, other: Link, methods: Methods) -> None:
        calls = [link.call("add", n, 1) for n in range(50) for link in (one, other)]
        assert await asyncio.gather(*calls) == [n + 1 for n in range(50) for _ in range(2)]
        assert one.notify("note", "first") and one.notify("note", b"second")
        await one.call("add", 0, 0)
        assert methods.told == ["first", b"second"]

    over_a_link(scenario)


def test_an_error_is_raised_again_on_the_other_side(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(one: Link, other: Link, methods: Methods) -> None:
        with pytest.raises(Refusal, match="busy"):
            await one.call("refuse", "busy")
        with pytest.raises(PortTaken, match="choose another"):
            await one.call("taken")
        with pytest.raises(TransportError, match="ZeroDivisionError: by zero"):
            await one.call("broken")

    over_a_link(scenario)
    assert "by zero" in caplog.text


def test_a_call_that_is_given_up_is_given_up_on_the_other_side() -> None:
    async def scenario(one: Link, other: Link, methods: Methods) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await one.call("never")
        await one.call("add", 1, 1)
        assert methods.given_up == 1

    over_a_link(scenario)


def test_a_call_to_a_side_that_goes_away_fails() -> None:
    async def scenario(one: Link, other: Link, methods: Methods) -> None:
        call = asyncio.ensure_future(one.call("never"))
        await one.call("add", 1, 1)
        other.close()
        with pytest.raises(LinkLost):
            await call
        with pytest.raises(LinkLost):
            await one.call("add", 1, 1)
        assert not one.notify("note", "lost")
        assert methods.given_up == 1

    over_a_link(scenario)


async def test_notes_to_a_side_that_does_not_listen_are_dropped_and_said_to_be() -> None:
    ours, deaf = socket.socketpair()
    with deaf:
        link = Link(*(await asyncio.open_unix_connection(sock=ours)), {})
        told = [link.notify("note", bytes(1 << 16)) for _ in range(100)]
        assert told[0] and not told[-1]
        link.close()


def identity(folder: Path, name: str) -> Path:
    key = folder / f"{name}.key"
    Identity.create(key)
    return key


def network_processes() -> list[psutil.Process]:
    below = psutil.Process().children(recursive=True)
    return [
        p for p in below if p.name() == "p2pd" or "swarm.transport.subprocess.child" in p.cmdline()
    ]


def libraries_of_the_network() -> set[str]:
    """Files that its processes have mapped."""
    python = [p for p in network_processes() if p.name() != "p2pd"]
    assert python
    return {each.path for p in python for each in p.memory_maps()} if psutil.LINUX else set()


@OVER
@pytest.mark.processes
def test_requests_and_errors_cross_to_the_network_process_and_back(over, tmp_path, caplog):
    async def echo(peer: str, request: bytes) -> bytes:
        if request == b"no":
            raise Refusal("not_today")
        if request == b"odd":
            raise ZeroDivisionError("by zero")
        return peer.encode() + b":" + request

    async def scenario() -> None:
        counters = Counters()
        anna = ApartTransport(
            identity(tmp_path, "anna"), listen=LOOPBACK, counters=counters, over=over
        )
        with pytest.raises(PeerUnreachable, match="not started"):
            _ = anna.peer_id
        with pytest.raises(PeerUnreachable, match="not started"):
            await anna.connect("/ip4/127.0.0.1/tcp/1/p2p/x")
        nobody = Identity.load(identity(tmp_path, "nobody")).peer_id
        limits = HandlerLimits(100_000, concurrent=8, concurrent_per_peer=4)
        anna.handle(ECHO, echo, limits)
        await anna.start()
        ben = HivemindTransport(identity(tmp_path, "ben"), listen=LOOPBACK)
        ben.handle(ECHO, echo, limits)
        await ben.start()
        try:
            assert await anna.connect(ben.addresses()[0]) == ben.peer_id
            assert ben.peer_id in anna.peers()
            assert not any("torch" in library for library in libraries_of_the_network())
            blob = bytes(90_000)
            answer = await ben.request(anna.peer_id, ECHO, blob, limit=1 << 20, deadline=10)
            assert answer == ben.peer_id.encode() + b":" + blob
            answer = await anna.request(ben.peer_id, ECHO, b"you", limit=1 << 20, deadline=10)
            assert answer == anna.peer_id.encode() + b":you"
            assert anna.bytes_in == len(blob) + len(answer)
            for refused in (b"no", b"odd", b"odd", b"odd"):
                with pytest.raises(Refused):
                    await ben.request(anna.peer_id, ECHO, refused, limit=100, deadline=10)
            with pytest.raises(Refused):
                await anna.request(ben.peer_id, ECHO, b"no", limit=100, deadline=10)
            with pytest.raises(ResponseTooLarge):
                await anna.request(ben.peer_id, ECHO, blob, limit=100, deadline=10)
            with pytest.raises(PeerUnreachable, match="no stream"):
                await anna.request(ben.peer_id, "swarm-node/test/none", b"", limit=9, deadline=10)
            with pytest.raises(PeerUnreachable, match="no peer answers"):
                await anna.connect(f"/ip4/127.0.0.1/tcp/1/p2p/{nobody}")
            with pytest.raises(RecordTooLarge):
                await anna.store("k", b"anna", bytes(1025), 2.0**31)
            with pytest.raises(TypeError, match="RecordRule"):
                anna.use_validator(lambda record: True)
            with pytest.raises(TypeError, match="OwnFirst"):
                anna.use_standing(lambda author: 1.0)
            taken = anna.addresses()[0].split("/p2p/")[0]
            other = ApartTransport(identity(tmp_path, "other"), listen=(taken,), over=over)
            with pytest.raises(PortTaken, match="choose another port"):
                await other.start()
            async with asyncio.timeout(120):
                while not counters.snapshot().get(REFUSED):
                    await asyncio.sleep(0.05)
        finally:
            await ben.close()
            await anna.close()
            await anna.close()
        with pytest.raises(PeerUnreachable, match="not started"):
            await anna.connect("/ip4/127.0.0.1/tcp/1/p2p/x")

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    (told,) = (record for record in caplog.records if "handler of" in record.getMessage())
    assert "by zero" in told.getMessage() and "Traceback" not in told.getMessage()
    assert not network_processes()


REFUSED = "requests_refused{protocol=swarm-node/test/echo,reason=not_today}"


@OVER
@pytest.mark.processes
async def test_a_start_that_is_given_up_leaves_no_process(over, tmp_path):
    anna = ApartTransport(identity(tmp_path, "anna"), listen=LOOPBACK, over=over)
    starting = asyncio.ensure_future(anna.start())
    async with asyncio.timeout(120):
        while not begun(over):
            await asyncio.sleep(0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not network_processes()


@pytest.mark.processes
async def test_a_start_that_is_given_up_while_the_daemon_comes_up_leaves_neither_it_nor_its_socket(
    tmp_path: Path,
) -> None:
    settings = NodeSettings(identity(tmp_path, "anna"), LOOPBACK, (), 60.0)
    starting = asyncio.ensure_future(HivemindNode.start(settings, Counters()))
    async with asyncio.timeout(120):
        while not (sockets := sockets_of_daemons()):
            await asyncio.sleep(0.001)
    starting.cancel()
    try:
        await (await starting).stop()  # it was up just then
    except asyncio.CancelledError:
        assert not network_processes()
    assert not any(path.exists() for path in sockets)


def sockets_of_daemons() -> list[Path]:
    """Sockets that the daemons below this process have made so far."""
    told = [
        part for p in network_processes() for part in p.cmdline() if part.startswith("-listen=")
    ]
    paths = [Path(part.removeprefix("-listen=/unix")) for part in told]
    return [path for path in paths if path.exists()]


def begun(over: type[NodeTransport]) -> bool:
    """Whether a network's process is there, and has come as far as its daemon where it has one."""
    processes = network_processes()
    return any(over is Libp2pTransport or p.name() == "p2pd" for p in processes)


WAITING = """
import asyncio, sys
from pathlib import Path
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.subprocess.transport import ApartTransport

async def main():
    over = {k.__name__: k for k in (HivemindTransport, Libp2pTransport)}[sys.argv[2]]
    listen = ("/ip4/127.0.0.1/tcp/0",)
    await ApartTransport(Path(sys.argv[1]), listen=listen, over=over).start()
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@OVER
@pytest.mark.processes
def test_a_node_that_is_killed_leaves_no_process(over: type[NodeTransport], tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, str(identity(tmp_path, "anna")), over.__name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None and node.stdout.readline() == "up\n"
        left = network_processes()
        assert len(left) == (2 if over is HivemindTransport else 1)
        node.send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(left, timeout=120)[1]


async def test_a_process_that_prints_an_endless_line_is_waited_for_like_any_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = "import sys; sys.stderr.write('x' * 200_000 + '\\n' + 'and then\\n')"
    monkeypatch.setattr(link_module, "COMMAND", (sys.executable, "-c", program))
    assert await (await Process.start(Methods())).ended() == "ended with exit status 0"
    assert "says: a line that is too long to be shown" in caplog.text
    assert "says: and then" in caplog.text
