"""A heal is timed where groups can come over, and judged by what was usual before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from swarm.accounts import Accounts
from swarm.common.clock import VirtualClock
from swarm.journal import Journal
from tests.chaos import healing
from tests.chaos.evidence import Evidence
from tests.chaos.healing import LONGEST_SECONDS, Healing


@dataclass(slots=True)
class Member:
    """What a heal needs of a node."""

    name: str
    side: int
    run_folder: Path
    able: bool = True


def account_of(node: Member) -> Accounts:
    node.run_folder.mkdir()
    clock = VirtualClock()
    return Accounts(Journal(node.run_folder / "journal.sqlite", clock), clock)


class Scene:
    """Anna on this side, ben and carl on the other, carl not at work; their journals are real, time
    is a number."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(healing.time, "monotonic", lambda: self.now)
        self.anna, self.ben = Member("anna", 0, folder / "a"), Member("ben", 1, folder / "b")
        self.carl = Member("carl", 1, folder / "c", able=False)
        self.nodes = [self.anna, self.ben, self.carl]
        self.accounts = [account_of(node) for node in self.nodes]
        self.evidence = Evidence(folder / "evidence.sqlite")
        self.healing = Healing(
            self.nodes,
            [b"anna", b"ben", b"carl"],
            self.evidence,
            lambda node: node.able,
            lambda line: None,
        )

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.healing.look()

    def cross(self) -> None:
        """Everybody takes a group of the other side."""
        for account, node in zip(self.accounts, self.nodes, strict=True):
            account.admit(b"anna" if node.side else b"ben", 1)

    def usual(self, seconds: float) -> None:
        """Groups come over at such intervals."""
        for _ in range(3):
            self.wait(seconds)
            self.cross()
        self.wait(1)

    def restart(self, node: Member) -> None:
        """Somebody is gone for a moment."""
        node.able = False
        self.wait(1)
        node.able = True

    def told(self) -> list[tuple]:
        return self.evidence.rows("SELECT node, seconds, usual FROM heals ORDER BY node")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_heal_is_noted_beside_the_longest_wait_before_the_cut(scene: Scene) -> None:
    for pause in (1, 6, 2):
        scene.wait(pause)
        scene.cross()
    scene.wait(1)
    scene.healing.cut()
    scene.wait(60)
    assert scene.healing.healed() == 2 and scene.healing.watching
    scene.wait(3)
    scene.cross()
    scene.wait(1)
    assert scene.told() == [("anna", 4.0, 6.0), ("ben", 4.0, 6.0)]
    assert scene.healing.over


def test_who_gets_nothing_after_a_heal_counts_as_not_healed(scene: Scene) -> None:
    scene.usual(2)
    scene.healing.cut()
    scene.healing.healed()
    scene.wait(LONGEST_SECONDS + 1)
    assert scene.told() == [("anna", None, 2.0), ("ben", None, 2.0)]


def test_a_wait_while_the_other_side_cannot_work_does_not_count(scene: Scene) -> None:
    scene.usual(2)
    scene.healing.cut()
    scene.healing.healed()
    scene.wait(2)
    scene.ben.able = False
    scene.wait(100)
    scene.ben.able = True
    scene.wait(1)
    scene.cross()
    scene.wait(1)
    assert scene.told() == [("anna", 4.0, 2.0)]


def test_nobody_is_watched_of_whom_nothing_usual_is_known(scene: Scene) -> None:
    scene.wait(20)
    scene.cross()
    scene.wait(1)
    scene.healing.cut()
    assert scene.healing.healed() == 0


def test_nobody_is_watched_where_a_side_has_nobody_at_work(scene: Scene) -> None:
    scene.usual(2)
    assert scene.healing.met
    scene.ben.able = False
    scene.wait(1)
    assert not scene.healing.met
    scene.healing.cut()
    assert scene.healing.healed() == 0


def test_who_started_while_the_network_was_cut_is_not_watched(scene: Scene) -> None:
    scene.usual(2)
    scene.healing.cut()
    scene.restart(scene.ben)
    assert scene.healing.healed() == 0
    assert not scene.healing.watching and scene.healing.over


def test_who_started_while_the_network_was_cut_does_not_hinder_others_who_heal(
    scene: Scene,
) -> None:
    scene.carl.able = True
    scene.usual(2)
    scene.healing.cut()
    scene.restart(scene.carl)
    assert scene.healing.healed() == 2
    scene.wait(3)
    scene.cross()
    scene.wait(1)
    assert [node for node, *_ in scene.told()] == ["anna", "ben"]
