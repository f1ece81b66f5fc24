"""Shared pytest settings, hooks and fixtures.

Property tests have no deadline, because a busy machine is slow. Test files that start processes
take minutes and run first: started last, one file would keep one worker busy while others idle.
"""

import asyncio
import getpass
import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from node.storage.atomic_files import lock
from swarm.common.counters import Counters
from tests.tiers import mark, needless

settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="DIR", help="keep a picture of every view in DIR")
    parser.addoption("--part", metavar="K/N", help="only every N-th test file, from the K-th on")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files whose tests would not run; None defers to other hooks."""
    return needless(collection_path, config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tiers and run long files first, with the order within files unchanged."""
    mark(items)
    if part := config.getoption("--part"):
        number, parts = map(int, part.split("/"))
        chosen = sorted({item.path for item in items})[number - 1 :: parts]
        config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
        items[:] = [item for item in items if item.path in chosen]
    long = {item.path for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: item.path not in long)


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
def counters() -> Counters:
    return Counters()


@pytest.fixture
def local_network() -> Iterator[None]:
    """Lock the loopback multicast group against tests in other processes."""
    path = Path(tempfile.gettempdir()) / f"swarm-node-tests-multicast-{getpass.getuser()}"
    with path.open("ab") as file:
        lock(file)
        yield


# As in an activated environment, so that the program calls itself swarm-node in its output.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# A script's "&" makes pytest ignore both signals, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGQUIT") and signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
