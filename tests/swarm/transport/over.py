"""Transport implementations, for tests that try several."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from experiments.memory_transport import MemoryNetwork, MemoryTransport
from experiments.virtual_clock import VirtualClock
from protocol.identity import Identity
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.node_transport import NodeTransport
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.transport.transport import Transport
from tests.ports import lasting_port
from tests.swarm.network_parts import identity

T = TypeVar("T")
Started = TypeVar("Started", bound=Transport)
TICK_SECONDS = 0.25
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
ECHO = "swarm-node/test/echo"


def key_of(folder: Path, name: str) -> Path:
    """Return the file of the key that a name has in all tests."""
    key = folder / f"{name}.key"
    if not key.exists():
        key.write_bytes(identity(name).export())
        key.chmod(0o600)
    return key


LIMITS = (
    *("streams.REQUEST_SECONDS", "streams.HEADER_SECONDS", "node_transport.OPENING_SECONDS"),
    *("supervisor.DIAL_SECONDS", "hivemind.node.RPC_SECONDS", "libp2p.node.RPC_SECONDS"),
    *("search.SEARCH_SECONDS", "search.PLACING_SECONDS", "node_transport.LOOKUP_SECONDS"),
)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give dials, requests and searches the time that they need on a busy machine."""
    for limit in LIMITS:
        monkeypatch.setattr(f"swarm.transport.{limit}", 60.0)


def lasting_place() -> tuple[str]:
    """Return an address to listen on twice, with a port that stays free in between."""
    return (f"/ip4/127.0.0.1/tcp/{lasting_port()}",)


@asynccontextmanager
async def started(transport: Started) -> AsyncIterator[Started]:
    await transport.start()
    try:
        yield transport
    finally:
        await transport.close()


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


def network_processes(kind: str = "") -> set[psutil.Process]:
    """Return the child processes that run networks: daemons and Python processes."""
    by_kind = {"p2pd": set(), "python": set()}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            words = process.as_dict(["cmdline"], ad_value=())["cmdline"]  # A zombie has none.
            if process.name() == "p2pd":
                by_kind["p2pd"].add(process)
            elif "swarm.transport.subprocess.child" in words:
                by_kind["python"].add(process)
    return by_kind[kind] if kind else by_kind["p2pd"] | by_kind["python"]


INSTALLED = pytest.mark.skipif(
    find_spec("libp2p") is None, reason="needs libp2p: pip install 'swarm-node[libp2p]'"
)
OVER = pytest.mark.parametrize(
    "over", [HivemindTransport, pytest.param(Libp2pTransport, marks=INSTALLED)]
)
APART_LIBP2P = pytest.param(
    partial(SubprocessTransport, over=Libp2pTransport), marks=INSTALLED, id="ApartLibp2pTransport"
)


class OnWires:
    """Makes transports over real connections, on the system clock."""

    def __init__(self, kind: type[NodeTransport]) -> None:
        self.clock = SystemClock()
        self._kind = kind

    def make(self, key: Path, **options: object) -> NodeTransport:
        return self._kind(key, **options)

    async def outlast(self, work: Awaitable[T]) -> T:
        return await work


class InMemory:
    """Makes transports of one memory network.

    Two things differ from real connections. All peers are connected, so listen addresses and dials
    have no effect. Time stands still unless a test moves it.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._network = MemoryNetwork(self.clock)

    def make(self, key: Path, *, counters: Counters | None = None, **places: object) -> Transport:
        assert set(places) <= {"listen", "peers", "peer_cache"}, places
        return MemoryTransport(self._network, Identity.load(key).peer_id, counters)

    async def outlast(self, work: Awaitable[T]) -> T:
        waiting = asyncio.ensure_future(work)
        while not waiting.done():
            await self.clock.advance(TICK_SECONDS)
        return waiting.result()
