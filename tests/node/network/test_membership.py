"""How a node takes its place in a swarm, what it learns of its own network side, and how it leaves.

The transport is the one of simulations, and no task is judged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.config.config import Config
from node.errors import NodeError
from node.network import membership as module
from node.network.founding import found_swarm
from node.network.membership import MIB, Membership
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import Manifest
from swarm.admission import Admission
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.groups import Origin
from swarm.journal import MEMORY, Journal
from swarm.member import Experience, Member, assemble
from swarm.pool import Pool
from swarm.transport.memory import MemoryNetwork, MemoryTransport
from swarm.verification import Judge
from tests.swarm.experience_parts import group

FRIEND = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{FRIEND}"
ORIGIN = Origin(3, "tiny", b"\x01" * 32, 1.0, 16)


class Judging:
    """In the place of a verifier, whose processes take seconds to start."""

    def __init__(self, *arguments: object, outside: bool, **options: object) -> None:
        self.outside = outside
        self.entered = False

    def __enter__(self) -> Judging:
        self.entered = True
        return self

    def __exit__(self, *error: object) -> None:
        self.entered = False


class Parts:
    """A membership over a network inside this process."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        *,
        takes: bool = True,
        journal: Journal | None = None,
        profile: Mapping[str, str] | None = None,
        **network: object,
    ) -> None:
        self.network = MemoryNetwork(SystemClock())
        self.counters = Counters()
        self.folder = RunFolder(folder)
        if not self.folder.identity.exists():
            self.folder.create()
            Identity.create(self.folder.identity)
        self.told: dict[str, object] = {}
        overrides = {f"network.{name}": value for name, value in network.items()}
        overrides |= {f"profile.{name}": text for name, text in (profile or {}).items()}
        config = Config.with_overrides(overrides)
        clock = SystemClock()
        self.journal = journal or Journal(MEMORY, clock)
        pool = Pool(self.journal, 8, 60.0, clock, self.counters)
        self.experience = Experience.around(pool, self.journal, clock, self.counters)
        self.membership = Membership(
            config,
            self.folder,
            self.experience,
            self.counters,
            takes=takes,
            model="tiny" if takes else "",
        )
        kinds = SimpleNamespace(open=lambda name, options: self)
        monkeypatch.setattr(module, "TRANSPORTS", kinds)
        monkeypatch.setattr(module, "Verifier", Judging)
        monkeypatch.setattr(module, "Admission", self._admission)
        monkeypatch.setattr(module, "assemble", self._assemble)

    def open(self, *arguments: object, beside: bool) -> MemoryTransport:
        """As a kind of transport does."""
        self.told["beside"] = beside
        return MemoryTransport(self.network, "12D3anna", self.counters)

    def meet(self, name: str) -> None:
        self.network.add(MemoryTransport(self.network, name))

    def _admission(
        self, manifest: Manifest, swarm: bytes, judge: Judge, *rest: Any, **options: Any
    ) -> Admission:
        self.told["judge"] = judge
        return Admission(manifest, swarm, judge, *rest, **options)

    def _assemble(self, *arguments: Any, **options: Any) -> Member:
        self.told |= options
        return assemble(*arguments, **options)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


def test_a_node_founds_a_swarm_serves_and_leaves_nothing_behind(monkeypatch, tmp_path) -> None:
    before = set(threading.enumerate())
    parts = Parts(monkeypatch, tmp_path, upload_mib_per_s=2.0, pulls_per_epoch=5, gossip_peers=4)
    with parts.membership as here:
        assert list(parts.network.members) == ["12D3anna"]
        assert here.status().peer_id == "12D3anna"
        assert "founded a swarm" in here.notes[0] and len(here.notes) == 1
        assert parts.told["upload_rate"] == 2.0 * MIB
        assert (parts.told["limits"].pulls_per_epoch, parts.told["limits"].gossip_peers) == (5, 4)
        assert parts.told["beside"] is True
        assert parts.told["judge"].outside and parts.told["judge"].entered
    assert parts.network.members == {}
    assert not parts.told["judge"].entered
    assert not [each for each in set(threading.enumerate()) - before if each.name == "network"]
    assert here.failure is None
    assert parts.counters.snapshot().get("member_stopped", 0) == 0


def test_a_seed_pulls_nothing_and_has_no_learner_to_spare(monkeypatch, tmp_path) -> None:
    parts = Parts(monkeypatch, tmp_path, takes=False, pulls_per_epoch=5)
    with parts.membership:
        assert parts.told["limits"].pulls_per_epoch == 0
        assert parts.told["beside"] is False


@pytest.mark.parametrize("takes", [False, True])
def test_a_node_tells_its_name_with_its_model_and_a_seed_has_none(
    monkeypatch, tmp_path, takes
) -> None:
    parts = Parts(monkeypatch, tmp_path, takes=takes, profile={"name": "Anna’s cellar"})
    with parts.membership:
        told = parts.told["profile"]
    assert (told.name, told.line, told.model) == ("Anna’s cellar", "", "tiny" if takes else "")
    assert told.made > 1.7e9


def test_a_node_of_no_name_tells_nothing_at_all(monkeypatch, tmp_path) -> None:
    parts = Parts(monkeypatch, tmp_path)
    with parts.membership:
        assert parts.told["profile"] is None


@pytest.mark.parametrize("met", [False, True])
def test_a_node_that_meets_none_of_its_peers_says_so(monkeypatch, tmp_path, met) -> None:
    parts = Parts(monkeypatch, tmp_path, peers=[ADDRESS])
    parts.folder.manifest.write_bytes(found_swarm(Identity.generate(), name="test"))
    if met:
        parts.meet(FRIEND)
    with parts.membership as here:
        assert any("none of the peers named answers" in note for note in here.notes) != met


def test_a_note_on_peers_replaces_none_on_the_manifest(monkeypatch, tmp_path) -> None:
    parts = Parts(monkeypatch, tmp_path, peers=[ADDRESS])
    signed = found_swarm(Identity.generate(), name="test")

    async def pinned(*arguments: object) -> tuple[bytes, tuple[str, ...]]:
        return signed, ("the manifest came by post",)

    monkeypatch.setattr(module, "pinned_manifest", pinned)
    with parts.membership as here:
        assert here.notes[0] == "the manifest came by post" and len(here.notes) == 2


@pytest.mark.parametrize("other", ["identity", "swarm"])
def test_a_journal_of_another_identity_or_swarm_is_refused(monkeypatch, tmp_path, other) -> None:
    first = Parts(monkeypatch, tmp_path / "first")
    with first.membership:
        pass
    again = Parts(monkeypatch, tmp_path / "first", journal=first.journal)
    with again.membership:
        pass
    if other == "identity":
        first.folder.identity.unlink()
        Identity.create(first.folder.identity)
    else:
        first.folder.manifest.write_bytes(found_swarm(Identity.generate(), name="other"))
    late = Parts(monkeypatch, tmp_path / "first", journal=first.journal)
    with pytest.raises(NodeError, match=f"belongs to another {other} than"), late.membership:
        pass
    assert late.network.members == {}


def test_groups_are_handed_over_and_none_where_there_are_none(monkeypatch, tmp_path) -> None:
    parts = Parts(monkeypatch, tmp_path)
    put: list[int] = []
    monkeypatch.setattr(
        parts.experience.outbox, "put", lambda groups, origin: put.append(len(groups))
    )
    parts.membership.publish([], ORIGIN)
    parts.membership.publish([group(1), group(2)], ORIGIN)
    assert put == [2]


class Working:
    """A member at work, and what it tells of itself."""

    def __init__(self, error: Exception | None = None) -> None:
        self.failure: Exception | None = None
        self.looks = 0
        self.stopped = False
        self._error = error

    def status(self) -> int:
        self.looks += 1
        return self.looks

    async def run(self) -> None:
        if self._error:
            raise self._error
        try:
            await asyncio.sleep(60)
        finally:
            self.stopped = True


def test_a_network_side_that_ends_is_told_and_counted(monkeypatch, tmp_path) -> None:
    parts = Parts(monkeypatch, tmp_path)
    asyncio.run(parts.membership.follow(Working(OSError("the disk is gone"))))
    assert str(parts.membership.failure) == "the disk is gone"
    assert parts.counters.snapshot() == {"member_stopped": 1}


def test_what_keeps_failing_is_told_while_it_does_and_the_work_ends_with_the_watch(
    monkeypatch, tmp_path
) -> None:
    parts, member = Parts(monkeypatch, tmp_path), Working()
    here = parts.membership

    async def until(failure: Exception | None) -> None:
        member.failure = failure
        looks = member.looks
        while member.looks < looks + 2:
            await asyncio.sleep(0.001)
        assert here.failure is failure
        assert here.status() >= looks

    async def watch() -> None:
        watching = asyncio.ensure_future(here.follow(member))
        for failure in (None, OSError("no route"), None):
            await until(failure)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.sleep(0)
        assert member.stopped

    async def bounded() -> None:
        async with asyncio.timeout(120):
            await watch()

    asyncio.run(bounded())
    assert parts.counters.snapshot() == {}
