"""Groups that were refused can be looked at, and nobody fills the memory by being refused."""

from __future__ import annotations

import pytest

from swarm.admission import KEPT, RefusedGroups
from tests.swarm.admission_parts import NOW, Gate, Peer


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_each_is_kept_with_its_author_the_reason_and_what_was_found(gate: Gate) -> None:
    larry = Peer(gate)
    groups = [
        larry.group(0),
        larry.group(1, claims=[1.0, 1.0]),
        larry.group(2, ["refuse:timeout", "wrong"]),
        larry.group(3, epoch=NOW + 9),
    ]
    assert gate.admit(larry.frame(*groups), larry.author) == [0]
    late, lie, hung = gate.shown.take()
    assert {each.author for each in (late, lie, hung)} == {larry.author}
    assert (late.reason, late.group.index, late.prompt) == ("epoch_ahead", 3, "")
    assert (lie.reason, lie.rewards) == ("reward_mismatch", (1.0, 0.0))
    assert lie.prompt.endswith("+ 1") and lie.group.rewards == (1.0, 1.0)
    assert (hung.reason, hung.rewards) == ("timeout", ())
    assert gate.shown.take() == [], "each is handed out once"


def test_flo_is_refused_without_end_and_few_are_kept(gate: Gate) -> None:
    flo = Peer(gate)
    for number in range(4):
        groups = [flo.group(n, epoch=NOW + 9 + number) for n in range(32)]
        gate.admit(flo.frame(*groups, sequence=number + 1), flo.author)
    assert gate.refused() == {"epoch_ahead": 128}
    assert [each.group.index for each in gate.shown.take()] == list(range(32 - KEPT, 32))


def test_what_is_kept_is_taken_by_one_thread_while_another_adds() -> None:
    kept = RefusedGroups()
    kept.add([])
    assert kept.take() == []
