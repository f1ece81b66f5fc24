"""The recomputation that real nodes are held against finds what must not have been learned from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.identity import Identity
from protocol.rollout import Group
from swarm.common.clock import SystemClock
from swarm.journal import Journal
from tests.hostile.behaviour import NodeView
from tests.hostile.forgers import signed_as
from tests.hostile.peer import RIGHT, Peer
from tests.hostile.recomputation import Recomputation, digest
from tests.hostile.siege import found
from tests.hostile.terms import Served, Terms


@dataclass(frozen=True)
class Case:
    """Larry served a lie and a good group, Mallory a forgery and then a good group."""

    larry: Peer
    mallory: Peer
    lie: Group
    good: Group
    forgers: Group
    recomputed: Recomputation


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("keys")
    terms = Terms.of(found(Identity.generate()))
    served: list[Served] = []
    larry, mallory = (Peer(name, folder, terms, served) for name in ("larry", "mallory"))
    lie = larry.group(0, ("none", "no idea"), claims=(1.0, 0.0))
    good, forgers = larry.group(1), mallory.group(0)
    larry.note(larry.frame(lie, good))
    mallory.note(signed_as(larry.author, mallory))
    mallory.note(mallory.frame(forgers))
    return Case(larry, mallory, lie, good, forgers, Recomputation(terms, served))


def node(folder: Path, author: bytes, groups: Sequence[Group], told: int) -> NodeView:
    """A node whose journal says that it learned from these groups."""
    journal = Journal(folder / "journal.sqlite", SystemClock())
    with journal.transaction() as connection:
        for group in groups:
            draw = (author, group.epoch, group.index)
            connection.execute("REPLACE INTO seen VALUES (?, ?, ?, ?)", (*draw, digest(group)))
            connection.execute(
                "INSERT INTO used (author, epoch, number, step, trained) VALUES (?, ?, ?, 1, 1)",
                draw,
            )
    journal.close()
    (folder / "metrics.jsonl").write_text(json.dumps({"groups_external": told}) + "\n")
    return NodeView(folder, "", "")


def faults(folder: Path, case: Case, author: Peer, groups: Sequence[Group], told: int) -> list[str]:
    return case.recomputed.faults(node(folder, author.author, groups, told))


def test_good_groups_are_no_fault(case: Case, tmp_path: Path) -> None:
    assert faults(tmp_path, case, case.larry, [case.good], 1) == []


def test_a_group_with_a_false_reward_is_found(case: Case, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, case, case.larry, [case.lie], 1)
    assert fault.endswith("was learned from")


def test_a_draw_told_in_another_way_than_served_is_found(case: Case, tmp_path: Path) -> None:
    other = case.larry.group(1, ("none", RIGHT), epoch=case.good.epoch)
    (fault,) = faults(tmp_path, case, case.larry, [other], 1)
    assert fault.endswith("was learned from")


def test_a_forgers_good_group_is_found(case: Case, tmp_path: Path) -> None:
    assert case.recomputed.forgers == {case.mallory.author}
    (fault,) = faults(tmp_path, case, case.mallory, [case.forgers], 1)
    assert fault.endswith("was learned from")


def test_a_group_learned_from_twice_and_a_record_too_few_are_found(
    case: Case, tmp_path: Path
) -> None:
    twice, untold = faults(tmp_path, case, case.larry, [case.good, case.good], 1)
    assert twice.endswith("was learned from 2 times")
    assert untold == "the journal knows of 2 external groups, the records of 1"
