"""The replay buffer is bounded, expires groups, and limits uses per group."""

import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from experiments.virtual_clock import VirtualClock
from swarm.common.counters import Counters
from swarm.groups import GroupKey
from swarm.journal import Journal
from swarm.pool import Held, Pool, PoolLimits, over_limits
from swarm.reputation import Accounts
from tests.swarm.experience_parts import ANNA, BEN, START, lineage, pooled, wait
from tests.swarm.test_journal import killed_after

FULL_SYNC = 2
"""SQLite's sync level at which a commit is on disk when it returns."""


class Parts:
    def __init__(self, path=":memory:", max_groups=8, max_bytes=1 << 20, max_uses=1, **more):
        self.clock = VirtualClock(START)
        self.counters = Counters()
        self.journal = Journal(path, self.clock)
        limits = max_groups, 60.0, self.clock, self.counters, max_bytes, max_uses
        self.pool = Pool(self.journal, *limits, **more)


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def pool(parts: Parts) -> Pool:
    return parts.pool


def keys(groups) -> list[int]:
    return [g.key.number for g in groups]


def test_consume_returns_the_stored_group_after_a_durable_commit(path):
    parts = Parts(path)
    stored = pooled(4, (0.25, 1.0, 0.0))
    assert parts.pool.add([stored]) == 1
    (candidate,) = parts.pool.fresh()
    assert candidate == stored.candidate
    assert parts.pool.consume([candidate], step=1) == [stored]
    assert parts.journal.read("PRAGMA synchronous") == [(FULL_SYNC,)]


def test_fresh_sorts_groups_and_available_counts_informative_ones(pool):
    given = [(BEN, 6, 2), (BEN, 6, 1), (ANNA, 8, 0), (ANNA, 7, 2), (ANNA, 7, 1)]
    pool.add([pooled(number, author=author, epoch=epoch) for author, epoch, number in given])
    assert [c.key for c in pool.fresh()] == sorted(GroupKey(*each) for each in given)
    pool.add([pooled(11, (1.0, 1.0)), pooled(12, (0.0, 0.5)), pooled(13, (0.0, 0.0))])
    assert (pool.available(), len(pool.fresh())) == (6, 8)


def test_buffer_stores_a_sample_once_and_never_returns_used_groups(parts):
    parts.pool.add([pooled(1)])
    assert parts.pool.add([pooled(1, (0.0, 0.0)), pooled(2)]) == 1
    assert parts.counters.snapshot() == {"pool_refused{reason=duplicate}": 1}
    chosen = [each for each in parts.pool.fresh() if keys([each]) == [1]]
    assert keys(parts.pool.consume(chosen, 1)) == [1]
    assert parts.pool.consume(chosen, 2) == []
    assert parts.pool.add([pooled(1), pooled(3)]) == 1
    assert sorted(keys(parts.pool.fresh())) == [2, 3]
    refused = {f"pool_refused{{reason={reason}}}": 1 for reason in ("duplicate", "used")}
    assert parts.counters.snapshot() == {"pool_gone": 1, **refused}


def test_group_is_used_up_to_max_uses_and_never_again():
    parts = Parts(max_uses=2)
    parts.pool.add([pooled(1), pooled(2), pooled(1, epoch=8)])
    (first, *_) = parts.pool.fresh()
    assert keys(parts.pool.consume([first], 1)) == [1]
    (second, *_) = rest = parts.pool.fresh()
    assert (first.uses, [c.uses for c in rest]) == (0, [1, 0, 0])
    assert parts.pool.available() == 2
    assert parts.pool.consume([second], 2) == [pooled(1)]
    assert parts.pool.consume([second], 3) == []
    assert [(c.key.number, c.key.epoch) for c in parts.pool.fresh()] == [(2, 7), (1, 8)]
    assert parts.pool.add([pooled(1)]) == 0


def test_lineage_lists_local_and_peer_groups_of_every_update_until_a_rewind():
    pool = Parts(max_uses=3).pool
    pool.add([pooled(1)])
    (group,) = pool.fresh()
    for number in (5, 6):
        pool.consume([group], number)
        pool.record_update(number - 1, [(9, number)], [group.key])
    pool.consume([group], 7)
    four, five = ([GroupKey(b"", 9, number), group.key] for number in (5, 6))
    assert [lineage(pool, step) for step in (4, 5, 6, 7)] == [four, five, [], []]
    pool.rewind(4)
    assert [lineage(pool, step) for step in (4, 5)] == [four, []]
    assert pool.add([pooled(1)]) == 0


def test_old_groups_are_hidden_and_evicted(parts) -> None:
    parts.pool.add([pooled(1)])
    wait(parts.clock, 59.0)
    parts.pool.add([pooled(2, received=parts.clock.time())])
    assert keys(parts.pool.fresh()) == [1, 2]
    wait(parts.clock, 1.0)
    assert keys(parts.pool.fresh()) == [2]
    assert parts.pool.available() == 1
    assert parts.pool.add([]) == 0
    assert parts.counters.snapshot() == {"pool_evicted{reason=aged}": 1}


def test_full_buffer_evicts_uninformative_groups_then_the_oldest():
    parts = Parts(max_groups=2)
    parts.pool.add([pooled(8), pooled(9)])
    parts.pool.consume(parts.pool.fresh(), 1)
    parts.pool.add([pooled(1, received=START), pooled(2, (1.0, 1.0), received=START + 1)])
    assert keys(parts.pool.fresh()) == [1, 2]
    assert parts.counters.snapshot() == {}, "used groups take no space"
    parts.pool.add([pooled(3, received=START + 2)])
    assert keys(parts.pool.fresh()) == [1, 3]
    parts.pool.add([pooled(4, received=START + 3)])
    assert keys(parts.pool.fresh()) == [3, 4]
    assert parts.counters.snapshot() == {"pool_evicted{reason=full}": 2}


def test_buffer_bounds_its_bytes_and_rejects_an_oversized_group():
    parts = Parts(max_bytes=10_000)
    for index in range(8):
        parts.pool.add([pooled(index, received=START + index, texts=["x" * 200, "y"])])
    held = parts.journal.read("SELECT number, size FROM pool ORDER BY number")
    assert sum(size for _, size in held) <= 10_000
    assert 0 < len(held) < 8
    assert held[-1][0] == 7
    parts = Parts(max_bytes=1000)
    parts.pool.add([pooled(1, texts=["x" * 2000, "y"])])
    assert parts.pool.fresh() == []


def test_killed_process_never_returns_a_group_twice(path):
    script = """
        import sys
        from experiments.virtual_clock import VirtualClock
        from swarm.common.counters import Counters
        from swarm.journal import Journal
        from swarm.pool import Pool
        from tests.swarm.experience_parts import START, pooled
        clock = VirtualClock(START)
        pool = Pool(Journal(sys.argv[1], clock), 400, 60.0, clock, Counters())
        pool.add(pooled(i) for i in range(400))
        step = 0
        while fresh := pool.fresh():
            step += 1
            trained = [g.key.number for g in pool.consume(fresh[:4], step)]
            print(*trained, flush=True)
    """
    kills = (5, 20, 1, 20)
    lines = [line for count in kills for line in killed_after(count, script, path)]
    trained = [int(number) for line in lines for number in line.split()]
    assert len(trained) == len(set(trained))
    assert len(trained) >= 4 * sum(kills)
    used = Journal(path, VirtualClock(START)).read("SELECT count(*) FROM used")[0][0]
    assert 0 <= used - len(trained) <= 4 * len(kills)


def test_the_network_adds_while_the_learner_consumes(path):
    parts = Parts(path, max_groups=1000)
    done = threading.Event()

    def add() -> None:
        for start in range(0, 400, 8):
            parts.pool.add([pooled(start + i) for i in range(8)])
        done.set()

    adder = threading.Thread(target=add)
    adder.start()
    consumed: list[int] = []
    while not done.is_set() or parts.pool.fresh():
        consumed += keys(parts.pool.consume(parts.pool.fresh()[:4], 1))
    adder.join()
    assert sorted(consumed) == list(range(400))


def add_proof(parts: Parts, author: bytes) -> None:
    Accounts(parts.journal, parts.clock).prove([(author, 1.0)] * 4)


def test_sybil_groups_evict_no_group_by_a_proven_author():
    parts = Parts(max_groups=32)
    add_proof(parts, ANNA)
    parts.pool.add(pooled(number, author=ANNA) for number in range(12))
    for number in range(300):
        late = START + number / 10
        parts.pool.add([pooled(1, author=number.to_bytes(32), received=late)])
    held = [c.key.author for c in parts.pool.fresh()]
    assert (held.count(ANNA), len(held)) == (12, 32)
    parts.pool.add(pooled(number, author=ANNA) for number in range(12, 40))
    assert [c.key.author for c in parts.pool.fresh()].count(ANNA) == 24


@settings(max_examples=30, stateful_step_count=30, deadline=None)
class PoolMachine(RuleBasedStateMachine):
    """Adds, consumes, waits and reopens in any order; checks that invariants hold."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts(max_groups=5, max_uses=2)
        self.listed: list = []
        self.handed_out: Counter[GroupKey] = Counter()

    @rule(numbers=st.lists(st.integers(0, 12), max_size=6), author=st.sampled_from([ANNA, BEN]))
    def add(self, numbers, author):
        now = self.parts.clock.time()
        self.parts.pool.add([pooled(n, author=author, received=now) for n in numbers])

    @rule()
    def look(self):
        self.listed = self.parts.pool.fresh()

    @rule(count=st.integers(0, 4))
    def consume(self, count):
        self.handed_out.update(g.key for g in self.parts.pool.consume(self.listed[:count], 1))
        assert max(self.handed_out.values(), default=0) <= 2

    @rule(seconds=st.floats(0.1, 40.0))
    def wait(self, seconds):
        wait(self.parts.clock, seconds)

    @invariant()
    def bounded_and_counted(self):
        fresh = self.parts.pool.fresh()
        assert len(fresh) <= 5
        assert all(c.uses == self.handed_out[c.key] < 2 for c in fresh)
        assert self.parts.pool.available() == sum(not c.uses for c in fresh)


TestPoolMachine = PoolMachine.TestCase


@pytest.mark.parametrize("step", [0, 3])
def test_rewind_deletes_later_updates_and_their_numbers_are_reused(pool, step) -> None:
    for number in range(1, 5):
        pool.record_update(number, [(1, number)], [])
    pool.rewind(step)
    pool.record_update(step + 1, [(2, 0)], [])
    assert lineage(pool, step + 1) == [GroupKey(b"", 2, 0)]
    assert bool(lineage(pool, step)) == (step > 0)


def test_use_records_are_bounded_and_keep_the_latest():
    parts = Parts(kept_uses=10)
    for step in range(1, 40):
        parts.pool.record_update(step, [(7, 2 * step), (7, 2 * step + 1)], [])
        ((rows,),) = parts.journal.read("SELECT count(*) FROM used")
        assert rows <= 10
    latest = [bool(lineage(parts.pool, step)) for step in range(1, 40)]
    assert latest == [step >= 35 for step in range(1, 40)]


def new_keys(count: int) -> list[bytes]:
    return [number.to_bytes(32) for number in range(count)]


def test_use_counts_survive_a_restart_with_another_max_uses(path):
    parts = Parts(path, max_uses=2)
    parts.pool.add([pooled(1)])
    listed = parts.pool.fresh()
    parts.pool.consume(listed, 1)
    parts.journal.close()
    lower = Parts(path, max_uses=1)
    assert lower.pool.fresh() == lower.pool.consume(listed, 2) == []
    assert lower.counters.snapshot() == {"pool_gone": 1}
    lower.journal.close()
    parts = Parts(path, max_uses=2)
    assert [c.uses for c in parts.pool.fresh()] == [1]
    assert keys(parts.pool.consume(parts.pool.fresh(), 2)) == [1]
    assert parts.pool.fresh() == []


def test_smaller_buffer_after_a_restart_counts_dropped_groups(path):
    parts = Parts(path, max_groups=8)
    parts.pool.add([pooled(number, received=START + number) for number in range(5)])
    parts.journal.close()
    parts = Parts(path, max_groups=2)
    for _ in range(2):
        parts.pool.add([])
        assert keys(parts.pool.fresh()) == [3, 4]
    assert parts.counters.snapshot() == {"pool_evicted{reason=full}": 3}


def test_unproven_authors_keep_their_share_in_a_full_buffer() -> None:
    for share, kept in ((0.25, 4), (0.5, 8)):
        parts = Parts(max_groups=16, unproven_share=share)
        add_proof(parts, ANNA)
        parts.pool.add(pooled(1, author=author) for author in new_keys(16))
        parts.pool.add(pooled(number, author=ANNA) for number in range(16))
        held = [c.key.author for c in parts.pool.fresh()]
        assert len(held) - held.count(ANNA) == kept


def test_secret_salt_decides_which_unproven_groups_are_kept() -> None:
    kept = []
    for salt in (b"one", b"one", b"two"):
        parts = Parts(max_groups=8, salt=salt)
        parts.pool.add(pooled(1, author=author) for author in new_keys(40))
        kept.append([c.key.author for c in parts.pool.fresh()])
    assert kept[0] == kept[1] != kept[2]


held_groups = st.lists(
    st.builds(
        Held,
        st.builds(GroupKey, st.sampled_from([ANNA, BEN, b"\xcc" * 32]), st.just(1), st.integers(0)),
        st.integers(0, 1),
        st.floats(0, 10),
        st.integers(1, 100),
    ),
    unique_by=lambda h: h.key,
    max_size=30,
)
some_proven = st.frozensets(st.sampled_from([ANNA, BEN]))


@given(held_groups, st.integers(1, 20), st.integers(1, 1000), some_proven, st.randoms())
def test_eviction_keeps_both_limits_and_does_not_depend_on_order(held, groups, size, proven, order):
    limits = PoolLimits(groups, size)
    dropped = over_limits(held, limits, proven)
    kept = [h for h in held if h.key not in dropped]
    assert len(kept) <= groups
    assert sum(h.size for h in kept) <= size
    shuffled = list(held)
    order.shuffle(shuffled)
    assert over_limits(shuffled, limits, proven) == dropped


@given(held_groups, st.integers(1, 20), some_proven)
def test_eviction_drops_unproven_groups_over_their_share_first(held, groups, proven):
    dropped = over_limits(held, PoolLimits(groups, 10**9), proven)
    assert len(dropped) == max(0, len(held) - groups)
    kept = [h for h in held if h.key not in dropped]
    if any(key.author in proven for key in dropped):
        assert sum(h.key.author not in proven for h in kept) <= groups / 4


def test_eviction_among_unproven_authors_does_not_depend_on_keys():
    held = [Held(GroupKey(bytes([n]) * 32, 1, 0), 1, 0.0, 1) for n in range(200)]
    kept = Counter[int]()
    for salt in range(40):
        limits = PoolLimits(100, 1000, salt=salt.to_bytes(2))
        evicted = {key.author[0] for key in over_limits(held, limits)}
        kept.update(n for n in range(200) if n not in evicted)
    assert sum(kept[n] for n in range(100)) == pytest.approx(2000, abs=150)
