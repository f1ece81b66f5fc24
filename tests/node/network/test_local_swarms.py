"""Which swarm a node joins that asks its local network, and what it says where it cannot tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from node.config.config import Config
from node.errors import ConfigError, NodeError
from node.network import pinned_manifest as module
from node.network.founding import found_swarm
from node.network.pinned_manifest import NAMED, found_nearby, pinned_manifest
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import swarm_id
from protocol.messages import MANIFEST_STREAM
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.lan.discovery import Discovery
from swarm.lan.multicast import MulticastUnavailable, Sighting
from swarm.transport.memory import MemoryNetwork, MemoryTransport
from swarm.transport.transport import HandlerLimits

T = TypeVar("T")

ANNA = Identity.from_seed(b"anna".ljust(32, b"."))
HERE, THERE = (found_swarm(ANNA, name=name) for name in ("here", "there"))


def peer_id(name: object) -> str:
    return Identity.from_seed(f"peer {name}".encode().ljust(32, b".")).peer_id


def seen(name: object, swarm: str) -> Sighting:
    return Sighting(peer_id(name), swarm, f"10.0.0.{name}", 31337)


class Heard(Discovery):
    """A local network on which some names are heard, each until it was dialled."""

    def __init__(self, transport: MemoryTransport, sightings: list[Sighting]) -> None:
        super().__init__(transport, (), SystemClock(), Counters())
        self._sightings = sightings

    async def look(self, swarm: str = "") -> list[Sighting]:
        now, self._sightings = self._sightings, []
        return [each for each in now if each.swarm.startswith(swarm)]


class Deaf(Heard):
    """A machine without multicast."""

    async def look(self, swarm: str = "") -> list[Sighting]:
        raise MulticastUnavailable(
            "no multicast DNS at 10.0.0.1: no route; set network.lan = false"
        )


Use = Callable[[Discovery, MemoryTransport], Awaitable[T]]


def search(
    *manifests: bytes, wanted: str = "", lies: str = "", kind: type[Heard] = Heard
) -> tuple[bytes, str]:
    """What a node finds where there is a member of each of some swarms; as :func:`among`."""
    return among(lambda lan, node: found_nearby(lan, node, wanted, 2.0), manifests, lies, kind)


def among(use: Use[T], manifests: Sequence[bytes], lies: str = "", kind: type[Heard] = Heard) -> T:
    """What is made of a network with a member of each of some swarms.

    Args:
        lies: swarm that all of them announce.
    """

    async def run() -> T:
        network = MemoryNetwork(SystemClock(), 0)
        sightings = []
        for number, signed in enumerate(manifests, 1):
            peer = MemoryTransport(network, peer_id(number))
            await peer.start()

            async def answer(asker: str, request: bytes, told: bytes = signed) -> bytes:
                return told

            peer.handle(MANIFEST_STREAM, answer, HandlerLimits(64, 8, 8))
            sightings.append(seen(number, lies or swarm_id(signed).hex()))
        node = MemoryTransport(network, "node")
        await node.start()
        return await use(kind(node, sightings), node)

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(module, "LOCAL_LOOK_SECONDS", 0.05)


def test_the_one_swarm_that_is_there_is_joined() -> None:
    signed, address = search(HERE, HERE)
    assert signed == HERE
    assert address in [seen(n, "").address for n in (1, 2)]


def test_of_several_swarms_none_is_chosen_and_all_are_named() -> None:
    with pytest.raises(ConfigError, match="name one with --swarm ID") as refused:
        search(HERE, THERE)
    assert all(swarm_id(each).hex() in str(refused.value) for each in (HERE, THERE))


@pytest.mark.parametrize("digits", [8, 64])
def test_of_several_swarms_the_one_asked_for_is_joined(digits: int) -> None:
    assert search(HERE, THERE, wanted=swarm_id(THERE).hex()[:digits])[0] == THERE


def test_a_peer_that_mallory_has_announce_another_swarm_than_its_own_is_not_joined() -> None:
    with pytest.raises(NodeError, match="no member of any swarm was found on the local network"):
        search(HERE, lies=swarm_id(THERE).hex())
    with pytest.raises(NodeError, match="no member of a swarm"):
        search(HERE, wanted=swarm_id(THERE).hex(), lies=swarm_id(THERE).hex())


@pytest.mark.parametrize("told", [b"", b"nonsense", HERE[:-1]])
def test_a_peer_that_hands_out_no_manifest_keeps_nobody_from_joining_another(told: bytes) -> None:
    assert search(told, HERE, lies=swarm_id(HERE).hex())[0] == HERE


def test_mallory_with_many_swarms_gets_a_bounded_line() -> None:
    swarms = [found_swarm(ANNA, name=f"mallory {n}") for n in range(3 * NAMED)]
    with pytest.raises(ConfigError, match=f"and {2 * NAMED} more") as refused:
        search(*swarms)
    assert sum(swarm_id(each).hex() in str(refused.value) for each in swarms) == NAMED


def test_where_nobody_is_or_nothing_can_be_heard_the_remedy_is_named() -> None:
    with pytest.raises(NodeError, match="swarm-node create --name NAME, then the same command"):
        search()
    with pytest.raises(NodeError, match=r"no multicast DNS at 10\.0\.0\.1.*--peers"):
        search(kind=Deaf)


def test_a_node_is_told_where_its_swarm_was_found_and_stays_in_it(tmp_path: Path) -> None:
    config, folder = Config.with_overrides({"network.lan": True}), RunFolder(tmp_path)
    pin: Use[tuple[bytes, tuple[str, ...]]] = lambda lan, node: pinned_manifest(  # noqa: E731
        config, folder, ANNA, node, lan
    )
    signed, (note,) = among(pin, [HERE])
    assert signed == HERE == folder.manifest.read_bytes()
    assert note == f"found this swarm on the local network, at {seen(1, '').address}"
    assert among(pin, [THERE]) == (HERE, ())
