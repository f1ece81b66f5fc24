"""The pool at its edges: the last use of a group, full pools, and shares of their room."""

from __future__ import annotations

from pathlib import Path

from swarm.groups import GroupKey
from tests.swarm.experience_parts import ANNA, BEN, START, pooled
from tests.swarm.test_pool import Parts, keys, proved

FULL_SYNC = 2
"""What SQLite calls a commit that is on the disk when it returns."""


def minted(count: int) -> list[bytes]:
    return [number.to_bytes(32) for number in range(count)]


def test_a_group_that_was_used_as_often_as_it_may_takes_no_room() -> None:
    parts = Parts(max_groups=2)
    parts.pool.add([pooled(1), pooled(2)])
    parts.pool.consume(parts.pool.fresh(), 1)
    parts.pool.add([pooled(3), pooled(4)])
    assert keys(parts.pool.fresh()) == [3, 4]
    assert parts.counters.snapshot() == {}


def test_the_last_use_of_a_group_takes_no_other_of_its_author() -> None:
    pool = Parts(max_uses=2).pool
    pool.add([pooled(1), pooled(2), pooled(1, epoch=8)])
    for step in (1, 2):
        pool.consume(pool.fresh()[:1], step)
    assert [(c.key.number, c.key.epoch, c.uses) for c in pool.fresh()] == [(2, 7, 0), (1, 8, 0)]


def test_a_bound_on_uses_that_was_lowered_holds_for_what_was_listed_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    parts = Parts(path, max_uses=2)
    parts.pool.add([pooled(1)])
    listed = parts.pool.fresh()
    parts.pool.consume(listed, 1)
    parts.journal.close()
    parts = Parts(path, max_uses=1)
    assert parts.pool.consume(listed, 2) == []
    assert parts.counters.snapshot() == {"pool_gone": 1}


def test_that_groups_are_used_is_on_the_disk_before_they_are_handed_out(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "journal.sqlite")
    parts.pool.add([pooled(1)])
    parts.pool.consume(parts.pool.fresh(), 1)
    assert parts.journal.read("PRAGMA synchronous") == [(FULL_SYNC,)]


def test_groups_come_by_author_then_epoch_then_number() -> None:
    pool = Parts().pool
    given = [(BEN, 6, 1), (ANNA, 8, 0), (ANNA, 7, 2), (ANNA, 7, 1)]
    pool.add([pooled(number, author=author, epoch=epoch) for author, epoch, number in given])
    assert [c.key for c in pool.fresh()] == sorted(GroupKey(*each) for each in given)


def test_a_pool_with_less_room_than_before_says_how_many_it_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    parts = Parts(path, max_groups=8)
    parts.pool.add([pooled(number, received=START + number) for number in range(5)])
    parts.journal.close()
    parts = Parts(path, max_groups=2)
    assert parts.pool.evict() == 3
    assert keys(parts.pool.fresh()) == [3, 4]
    assert parts.pool.evict() == 0
    assert parts.counters.snapshot() == {"pool_evicted{reason=full}": 3}


def test_newcomers_keep_the_share_of_a_full_pool_that_they_are_given() -> None:
    for share, kept in ((0.25, 4), (0.5, 8)):
        parts = Parts(max_groups=16, unproven_share=share)
        proved(parts, ANNA)
        parts.pool.add(pooled(1, author=author) for author in minted(16))
        parts.pool.add(pooled(number, author=ANNA) for number in range(16))
        held = [c.key.author for c in parts.pool.fresh()]
        assert len(held) - held.count(ANNA) == kept


def test_whose_groups_a_full_pool_keeps_of_newcomers_is_known_to_nobody_else() -> None:
    kept = []
    for salt in (b"one", b"one", b"two"):
        parts = Parts(max_groups=8, salt=salt)
        parts.pool.add(pooled(1, author=author) for author in minted(40))
        kept.append([c.key.author for c in parts.pool.fresh()])
    assert kept[0] == kept[1] != kept[2]
