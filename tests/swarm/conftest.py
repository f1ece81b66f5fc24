"""Tests that are coroutines run on an event loop of their own, most of them in a memory swarm."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from tests.swarm.collector_parts import Parts
from tests.swarm.network_parts import MemorySwarm


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine; its fixtures that are asynchronous contexts are entered on its loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def within() -> None:
        async with AsyncExitStack() as stack:
            given = {name: pyfuncitem.funcargs[name] for name in names}
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            async with asyncio.timeout(None if pyfuncitem.get_closest_marker("processes") else 120):
                await pyfuncitem.obj(**given)

    asyncio.run(within())
    return True


@pytest.fixture
def swarm() -> MemorySwarm:
    return MemorySwarm()


@pytest.fixture
def parts(request: pytest.FixtureRequest) -> Parts:
    """A collector; parametrized indirectly where it has limits of its own."""
    return Parts(*getattr(request, "param", ()))
