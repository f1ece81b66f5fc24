"""Fixtures for the tests of a swarm, most of them in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from experiments.virtual_clock import VirtualClock
from swarm.journal import Journal
from tests.swarm.collector_parts import Author, Parts
from tests.swarm.network_parts import MemorySwarm, Node


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


@asynccontextmanager
async def joined(swarm: MemorySwarm, name: str) -> AsyncIterator[Node]:
    """Yield a node that joins the swarm when its test begins."""
    yield await swarm.join(name)


def joining(name: str) -> object:
    return pytest.fixture(name=name)(lambda swarm: joined(swarm, name))


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
