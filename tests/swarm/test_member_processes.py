"""Members over real p2p daemons, each on an event loop of its own thread, as nodes run them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from protocol.profile import Profile
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.apart.transport import ApartTransport
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.transport import Transport
from tests.swarm.network_parts import Node, identity, manifest
from tests.swarm.transport.over import APART_LIBP2P

pytestmark = pytest.mark.processes


Kind = type[HivemindTransport] | type[ApartTransport]
KINDS = (HivemindTransport, ApartTransport)


@contextmanager
def running(
    name: str,
    folder: Path,
    *peers: str,
    kind: Kind = HivemindTransport,
    profile: Profile | None = None,
    instead: Callable[[Transport], None] = lambda transport: None,
) -> Iterator[Node]:
    """A member that runs on a thread of its own until the block ends.

    Args:
        instead: serves other things than the member does.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    key = folder / f"{name}.key"
    key.write_bytes(identity(name).export())
    key.chmod(0o600)
    clock, counters = SystemClock(), Counters()
    transport = kind(key, listen=("/ip4/127.0.0.1/tcp/0",), peers=peers, counters=counters)
    agreed = manifest(epoch_seconds=2.0)
    node = Node(name, transport, clock, counters, agreed, profile=profile)
    instead(transport)
    call(transport.start())
    task = asyncio.run_coroutine_threadsafe(node.member.run(), loop)
    try:
        yield node
    finally:
        task.cancel()
        call(transport.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def daemons() -> set[int]:
    return {p.pid for p in psutil.Process().children(recursive=True) if p.name() == "p2pd"}


@pytest.mark.parametrize("kind", [*KINDS, APART_LIBP2P])
def test_two_members_pool_each_others_groups(kind: Kind, tmp_path: Path) -> None:
    with ExitStack() as stack:
        anna = stack.enter_context(running("anna", tmp_path, kind=kind))
        ben = stack.enter_context(running("ben", tmp_path, *anna.transport.addresses()))
        anna.publish(2)
        ben.publish()
        eventually(lambda: len(ben.pool.fresh()) == 2 and len(anna.pool.fresh()) == 1)
        assert ben.authors() == {anna.identity.author}
        assert ben.member.status().bytes_in > 0
        assert {peer.author for peer in anna.member.status().peers} == {ben.identity.author}
    assert not daemons()


@pytest.mark.parametrize("kind", [*KINDS, APART_LIBP2P])
def test_members_hear_of_what_is_stored_with_them(kind: Kind, tmp_path: Path) -> None:
    with ExitStack() as stack:
        anna = stack.enter_context(running("anna", tmp_path, kind=kind))
        ben = stack.enter_context(running("ben", tmp_path, *anna.transport.addresses()))
        eventually(lambda: all(node.count("announcements_by_store") for node in (anna, ben)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_whose_daemon_is_killed_goes_on_exchanging(kind: Kind, tmp_path: Path) -> None:
    with ExitStack() as stack:
        anna = stack.enter_context(running("anna", tmp_path, kind=kind))
        annas = daemons()
        ben = stack.enter_context(running("ben", tmp_path, *anna.transport.addresses()))
        anna.publish()
        eventually(lambda: ben.authors())
        os.kill(annas.pop(), signal.SIGKILL)
        eventually(lambda: anna.count("daemon_restarts"))
        anna.publish()
        eventually(lambda: len(ben.pool.fresh()) == 2)
        assert anna.member.failure is None
    assert not daemons()


def test_a_member_whose_network_process_is_killed_goes_on_exchanging(tmp_path: Path) -> None:
    with ExitStack() as stack:
        anna = stack.enter_context(running("anna", tmp_path, kind=ApartTransport))
        (process,) = network_processes()
        ben = stack.enter_context(running("ben", tmp_path, *anna.transport.addresses()))
        anna.publish()
        eventually(lambda: ben.authors())
        before = anna.transport.peer_id, anna.transport.addresses()
        moved = anna.transport.bytes_out
        # As beyond its allowance: a daemon that goes on standing still would keep the port.
        for daemon in process.children():
            daemon.suspend()
        process.kill()
        eventually(lambda: anna.count("network_restarts"))
        eventually(
            lambda: (
                anna.member.status().peer_id == before[0]
                and anna.transport.peers() == (ben.transport.peer_id,)
            )
        )
        assert (anna.transport.peer_id, anna.transport.addresses()) == before
        assert anna.transport.bytes_out >= moved
        anna.publish()
        eventually(lambda: len(ben.pool.fresh()) == 2)
        assert anna.member.failure is None
    assert not daemons()
    assert not network_processes()


def network_processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [p for p in children if "swarm.transport.apart.child" in p.cmdline()]
