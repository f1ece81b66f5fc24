"""The replay buffer forgets the uses that no longer matter, and no others."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swarm.admission import AHEAD_EPOCHS, oldest_epoch
from swarm.common.counters import Counters
from swarm.groups import GroupKey
from swarm.journal import open_or_restore
from swarm.pool import LEAST_USES, MAX_DELETED, Pool, updates_of
from tests.swarm.admission_parts import EPOCH_SECONDS, NOW, Gate, Peer
from tests.swarm.experience_parts import ANNA, BEN, lineage, pooled, wait
from tests.swarm.test_pool import Parts, keys


def used(parts: Parts) -> int:
    return parts.journal.read("SELECT count(*) FROM used")[0][0]


def use(parts: Parts, step: int, *numbers: int, epoch: int = 7, own: int = 0) -> None:
    """Run an update of peer groups and of ``own`` local ones."""
    parts.pool.add(pooled(number, epoch=epoch) for number in numbers)
    consumed = parts.pool.consume(parts.pool.fresh(), step)
    draws = [(epoch, 100 * step + number) for number in range(own)]
    parts.pool.record_update(step, draws, [group.key for group in consumed])


def test_peer_group_use_is_remembered_while_the_group_may_return() -> None:
    parts = Parts(least_uses=0)
    for step, epoch in ((1, 7), (2, 7), (3, 8), (4, 7)):
        use(parts, step, step, epoch=epoch, own=2)
    assert parts.pool.forget(epoch=7) == 8, "only local uses: peer groups may still return"
    assert parts.pool.forget(epoch=8) == 2
    assert [len(lineage(parts.pool, step)) for step in (1, 2, 3, 4)] == [1, 0, 1, 0]


def test_first_update_per_author_is_remembered_so_it_can_be_undone() -> None:
    """The bound does not remove them while it exceeds the number of authors."""
    parts = Parts(least_uses=0, kept_uses=20)
    unused = [pooled(number, author=author) for number, author in ((1, ANNA), (2, BEN))]
    parts.pool.add(unused)
    parts.pool.consume(parts.pool.fresh(), 1)
    use(parts, 2, 3, 4)
    for step in range(3, 30):
        parts.pool.add([pooled(100 + step, author=BEN)])
        use(parts, step, own=5)
        parts.pool.forget(epoch=8)
        assert used(parts) <= 20
    assert updates_of(parts.journal, ANNA) == [2]
    assert updates_of(parts.journal, BEN) == [3]
    parts.pool.rewind(2)
    parts.pool.forget(epoch=8)
    assert updates_of(parts.journal, BEN) == [] and used(parts) == 1


def test_rewind_removes_updates_even_if_their_records_are_pruned() -> None:
    parts = Parts(least_uses=3)
    for step in range(1, 5):
        use(parts, step, own=2)
    parts.pool.forget(epoch=0)
    assert [len(lineage(parts.pool, step)) for step in (1, 2, 3, 4)] == [0, 0, 1, 2]
    parts.pool.rewind(1)
    use(parts, 2, own=1)
    assert [len(lineage(parts.pool, step)) for step in (1, 2, 3, 4)] == [0, 1, 0, 0]


def test_groups_from_forgotten_slots_stay_refused_if_the_clock_steps_back() -> None:
    parts = Parts(least_uses=0)
    use(parts, 0, 0, epoch=5)
    use(parts, 1, 1, epoch=7)
    parts.pool.forget(epoch=8)
    parts.pool.forget(epoch=2)
    parts.pool.rewind(0)
    assert parts.pool.add([pooled(1, epoch=7), pooled(2, epoch=6), pooled(3, epoch=8)]) == 1
    assert keys(parts.pool.fresh()) == [3]
    assert parts.counters.snapshot()["pool_refused{reason=forgotten}"] == 2
    use(parts, 2, own=3, epoch=9)
    assert parts.pool.forget(epoch=8) == 3
    assert parts.pool.add([pooled(1, epoch=9)]) == 1, "a local use does not keep out a peer group"


def test_latest_uses_are_kept_for_inspection() -> None:
    parts = Parts()
    parts.pool.record_update(1, [(7, number) for number in range(LEAST_USES + 10)], [])
    assert parts.pool.forget(epoch=100) == 10
    assert used(parts) == LEAST_USES


def test_pruning_runs_in_batches_that_release_the_journal(monkeypatch) -> None:
    parts = Parts(least_uses=0)
    many = 2 * MAX_DELETED + 5
    parts.pool.record_update(1, [(7, number) for number in range(many)], [])
    counts = []
    transaction = parts.journal.transaction

    def counted(**more: bool):
        counts.append(used(parts))
        return transaction(**more)

    monkeypatch.setattr(parts.journal, "transaction", counted)
    assert parts.pool.forget(epoch=100) == many
    assert counts == [many, many - MAX_DELETED, 5]


def test_restored_journal_remembers_forgotten_slots(path):
    parts = Parts(path, least_uses=0)
    use(parts, 1, 0)
    use(parts, 2, 1)
    parts.pool.forget(epoch=8)
    parts.journal.backup()
    parts.journal.close()
    path.unlink()
    journal, _ = open_or_restore(path, parts.clock)
    assert Pool(journal, 8, 60.0, parts.clock, Counters()).add([pooled(1)]) == 0


def test_admission_refuses_groups_before_the_oldest_time_slot() -> None:
    gate = Gate()
    anna = Peer(gate)
    oldest = oldest_epoch(gate.manifest, gate.clock.time())
    assert oldest == NOW - gate.manifest.max_age_epochs - AHEAD_EPOCHS
    assert gate.admit(anna.frame(anna.group(0, epoch=oldest - 1)), anna.author) == []
    assert gate.refused() == {"stale_epoch": 1}


DRAWS = [(epoch, number) for epoch in range(-1, 3) for number in range(2)]
"""Samples of one author: time slots relative to the first, and numbers."""


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class ForgettingMachine(RuleBasedStateMachine):
    """Repeats announcements, rewinds to checkpoints, forgets, and moves the clock.

    In any order of these, no group is handed out to two updates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.anna = Peer(self.gate)
        self.handed_out: Counter[GroupKey] = Counter()
        self.step = self.checkpoint = 0
        self.open()

    def open(self) -> None:
        clock, counters = self.gate.clock, self.gate.counters
        self.pool = Pool(self.gate.journal, 4, 90.0, clock, counters, least_uses=0)

    @rule(draws=st.lists(st.sampled_from(DRAWS), min_size=1), sequence=st.integers(1, 3))
    def pull(self, draws, sequence):
        anna = self.anna
        groups = [anna.group(number, epoch=NOW + epoch) for epoch, number in dict.fromkeys(draws)]
        frame = anna.frame(*groups, sequence=sequence)
        self.pool.add(self.gate.admission.examine(frame, anna.author))

    @rule(count=st.integers(1, 4))
    def update(self, count):
        self.step += 1
        consumed = self.pool.consume(self.pool.fresh()[:count], self.step)
        self.handed_out.update(group.key for group in consumed)
        self.pool.record_update(self.step, [(NOW, self.step)], [group.key for group in consumed])

    @rule()
    def save(self):
        self.pool.forget(oldest_epoch(self.gate.manifest, self.gate.clock.time()))
        self.checkpoint = self.step

    @rule()
    def go_back(self):
        self.step = self.checkpoint
        self.pool.rewind(self.checkpoint)
        self.gate.open(self.gate.journal)
        self.open()

    @rule(epochs=st.integers(0, 2))
    def wait(self, epochs):
        wait(self.gate.clock, epochs * EPOCH_SECONDS)

    @rule(epochs=st.sampled_from([-9, 9]), draws=st.sampled_from(DRAWS))
    def work_while_the_clock_is_wrong(self, epochs, draws):
        wait(self.gate.clock, epochs * EPOCH_SECONDS)
        self.pull([draws], 1)
        self.save()
        self.update(1)
        self.save()
        wait(self.gate.clock, -epochs * EPOCH_SECONDS)

    @invariant()
    def none_twice(self):
        assert max(self.handed_out.values(), default=0) <= 1


TestForgettingMachine = ForgettingMachine.TestCase
