"""Run coroutine tests on their own event loops, most of them in a memory swarm."""

import asyncio
import inspect
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from experiments.virtual_clock import VirtualClock
from swarm.journal import Journal
from tests.swarm.collector_parts import Author, Parts
from tests.swarm.network_parts import MemorySwarm, Node


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine; enter its fixtures that are asynchronous contexts on its loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def within() -> None:
        async with AsyncExitStack() as stack:
            kwargs = {name: pyfuncitem.funcargs[name] for name in names}
            for name, value in kwargs.items():
                if isinstance(value, AbstractAsyncContextManager):
                    kwargs[name] = await stack.enter_async_context(value)
            async with asyncio.timeout(None if pyfuncitem.get_closest_marker("processes") else 120):
                await pyfuncitem.obj(**kwargs)

    asyncio.run(within())
    return True


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path, clock: VirtualClock) -> Journal:
    return Journal(path, clock)


@pytest.fixture
def swarm() -> MemorySwarm:
    return MemorySwarm()


class Joining(AbstractAsyncContextManager):
    """A node that joins the swarm when its test begins."""

    def __init__(self, swarm: MemorySwarm, name: str) -> None:
        self._swarm, self._name = swarm, name

    async def __aenter__(self) -> Node:
        return await self._swarm.join(self._name)

    async def __aexit__(self, *failure: object) -> None:
        """Close nothing: the network is in memory."""


def joining(name: str) -> object:
    return pytest.fixture(name=name)(lambda swarm: Joining(swarm, name))


anna, ben, eve, flo, mallory, old, stranger = map(
    joining, ("anna", "ben", "eve", "flo", "mallory", "old", "stranger")
)


@pytest.fixture
def parts(request: pytest.FixtureRequest) -> Parts:
    """Return a collector; an indirect parameter sets its limits."""
    return Parts(*getattr(request, "param", ()))


@pytest.fixture
def cleo(parts: Parts) -> Author:
    return Author(parts, "cleo")
