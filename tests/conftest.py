"""Property tests judge results, never how long a busy machine took; keys that end can be tested.

Files whose tests start processes, which take minutes, come first: begun last, one would keep
a single worker busy while the others have nothing left to do.
"""

import asyncio
import getpass
import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
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
    """Leave out what the fast tier would import and not run; None lets others decide."""
    return needless(collection_path, config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tiers, and put the long files first, each whole and in its own order."""
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
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def local_network() -> Iterator[None]:
    """The loopback network's multicast group, which tests of other processes leave alone."""
    path = Path(tempfile.gettempdir()) / f"swarm-node-tests-multicast-{getpass.getuser()}"
    with path.open("ab") as file:
        lock(file)
        yield


# As in an activated environment: what the program prints names it as swarm-node.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# What a script starts with "&" ignores both; every process of a test would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGQUIT") and signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
