"""Members over real p2p daemons, each with its event loop in its own thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from protocol.profile import Profile
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.transport.transport import Transport
from tests.node.programs import until
from tests.swarm.network_parts import Node, manifest
from tests.swarm.transport.over import APART_LIBP2P, LOOPBACK, key_of, network_processes

pytestmark = pytest.mark.processes

Kind = type[HivemindTransport] | type[SubprocessTransport]
KINDS = (HivemindTransport, SubprocessTransport)
ANNA = Profile("anna", "Two old laptops.", "tiny", "0.1.0", 1.7e9)
BEN = Profile("ben 安", "", "", "0.1.0", 1.7e9)
AGREED = manifest(epoch_seconds=2.0, max_age_epochs=150)
PATIENCE = 120.0
eventually = partial(until, seconds=PATIENCE)


@contextmanager
def running(
    name: str,
    folder: Path,
    *peers: str,
    kind: Kind = HivemindTransport,
    profile: Profile | None = None,
    instead: Callable[[Transport], None] = lambda transport: None,
) -> Iterator[Node]:
    """Run a member in its own thread until the block ends.

    Args:
        instead: replaces some of the member's stream handlers.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)

    clock, counters = SystemClock(), Counters()
    transport = kind(key_of(folder, name), listen=LOOPBACK, peers=peers, counters=counters)
    node = Node(name, transport, clock, counters, AGREED, profile=profile)
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


def told(node: Node) -> dict[str, Profile | None]:
    return {peer.peer_id: peer.profile for peer in node.member.status().peers}


@pytest.fixture(scope="module", params=[*KINDS, APART_LIBP2P])
def three(request, tmp_path_factory) -> Iterator[tuple[Node, Node, Node]]:
    """Yield anna over each kind of transport, ben, and a member without a profile."""
    folder, before = tmp_path_factory.mktemp("three"), network_processes("p2pd")
    with ExitStack() as stack:
        anna = stack.enter_context(running("anna", folder, kind=request.param, profile=ANNA))
        addresses = anna.transport.addresses()
        ben = stack.enter_context(running("ben", folder, *addresses, profile=BEN))
        yield anna, ben, stack.enter_context(running("old", folder, *addresses))
    assert network_processes("p2pd") <= before


def test_members_exchange_groups(three: tuple[Node, Node, Node]) -> None:
    anna, ben, old = three
    anna.publish(2)
    ben.publish()
    eventually(lambda: len(ben.pool.fresh()) == 2 and len(anna.pool.fresh()) == 1)
    assert ben.authors() == {anna.identity.author}
    assert ben.member.status().bytes_in > 0
    others = {ben.identity.author, old.identity.author}
    eventually(lambda: {peer.author for peer in anna.member.status().peers} == others)


def test_members_receive_stored_announcements(three: tuple[Node, Node, Node]) -> None:
    eventually(lambda: all(node.count("announcements_by_store") for node in three[:2]))


def test_members_exchange_profiles_over_any_transport(three: tuple[Node, Node, Node]):
    anna, ben, old = three
    a, b, o = (node.identity.peer_id for node in three)
    eventually(lambda: told(anna).get(b) == BEN and told(ben).get(a) == ANNA)
    eventually(lambda: told(old).get(a) == ANNA and o in told(anna))
    assert told(anna)[o] is None
    for node in (anna, ben):
        account = node.accounts.get(old.identity.author)
        assert (account.penalties, dict(account.refused)) == (0, {})
        assert not [n for n in node.counters.snapshot() if n.startswith("profiles")]


@contextmanager
def exchanging(folder: Path, kind: Kind) -> Iterator[tuple[Node, Node, set[psutil.Process]]]:
    """Yield anna and ben between two exchanges, and anna's network processes."""
    before = network_processes()
    with ExitStack() as stack:
        anna = stack.enter_context(running("anna", folder, kind=kind))
        annas = network_processes() - before
        ben = stack.enter_context(running("ben", folder, *anna.transport.addresses()))
        anna.publish()
        eventually(lambda: ben.authors())
        yield anna, ben, annas
        anna.publish()
        eventually(lambda: len(ben.pool.fresh()) == 2)
        assert anna.member.failure is None
    assert network_processes() <= before


@pytest.mark.parametrize("kind", KINDS)
def test_member_keeps_exchanging_after_its_daemon_is_killed(kind: Kind, tmp_path: Path) -> None:
    with exchanging(tmp_path, kind) as (anna, _, annas):
        (annas & network_processes("p2pd")).pop().kill()
        eventually(lambda: anna.count("daemon_restarts"))


def test_member_keeps_exchanging_after_network_process_is_killed(tmp_path: Path) -> None:
    with exchanging(tmp_path, SubprocessTransport) as (anna, ben, annas):
        (process,) = annas & network_processes("python")
        original = anna.transport.peer_id, anna.transport.addresses()
        sent = anna.transport.bytes_out
        # A network over its CPU allowance stops its daemon. If still stopped, it keeps the port.
        for daemon in process.children():
            daemon.suspend()
        process.kill()
        eventually(lambda: anna.count("network_restarts"))
        eventually(lambda: anna.member.status().peer_id == original[0])
        eventually(lambda: anna.transport.peers() == (ben.transport.peer_id,))
        assert (anna.transport.peer_id, anna.transport.addresses()) == original
        assert anna.transport.bytes_out >= sent
