"""The recomputation that checks real nodes finds forbidden training groups."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.identity import Identity
from protocol.rollout import Group
from swarm.common.clock import SystemClock
from swarm.journal import Journal
from tests.hostile.behaviour import NodeView
from tests.hostile.peer import RIGHT, Peer, Served, Terms
from tests.hostile.recomputation import Recomputation, digest
from tests.hostile.siege import create
from tests.hostile.streams import signed_as


@dataclass(frozen=True)
class Case:
    """Larry served a lie and a good group, mallory a forgery and then a good group."""

    authors: dict[str, bytes]
    groups: dict[str, Group]
    recomputed: Recomputation


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("keys")
    terms = Terms.of(create(Identity.generate()))
    served: list[Served] = []
    larry, mallory = (Peer(name, folder, terms, served) for name in ("larry", "mallory"))
    lie, good = larry.group(0, ("none", "no idea"), claims=(1.0, 0.0)), larry.group(1)
    groups = {
        "lie": lie,
        "good": good,
        "another telling": larry.group(1, ("none", RIGHT), epoch=good.epoch),
        "of a forger": mallory.group(0),
    }
    larry.note(larry.frame(lie, good))
    mallory.note(signed_as(larry.author, mallory))
    mallory.note(mallory.frame(groups["of a forger"]))
    authors = {"larry": larry.author, "mallory": mallory.author}
    return Case(authors, groups, Recomputation(terms, served))


def node(folder: Path, author: bytes, groups: Sequence[Group]) -> NodeView:
    """Return a node whose journal lists these groups, but its records only one."""
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
    (folder / "metrics.jsonl").write_text(json.dumps({"groups_external": 1}) + "\n")
    return NodeView(folder, "", "")


@pytest.mark.parametrize(
    ("author", "groups", "expected"),
    [
        ("larry", ["good"], []),
        ("larry", ["lie"], [r"\w+ \d+/0 was learned from"]),
        ("larry", ["another telling"], [r"\w+ \d+/1 was learned from"]),
        ("mallory", ["of a forger"], [r"\w+ \d+/0 was learned from"]),
        (
            "larry",
            ["good", "good"],
            [
                r"\w+ \d+/1 was learned from 2 times",
                "the journal knows of 2 external groups, the records of 1",
            ],
        ),
    ],
    ids=["good", "a false reward", "another version", "from a forger", "twice, with one record"],
)
def test_recomputation_finds_forbidden_training_data(case, tmp_path, author, groups, expected):
    assert case.recomputed.forgers == {case.authors["mallory"]}
    learned = [case.groups[name] for name in groups]
    faults = case.recomputed.faults(node(tmp_path, case.authors[author], learned))
    assert len(faults) == len(expected)
    assert all(map(re.fullmatch, expected, faults)), faults
