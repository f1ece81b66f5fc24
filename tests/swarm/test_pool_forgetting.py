"""What the pool forgets of uses: all that can matter no more, and nothing that could return."""

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
    """An update made of external groups and of so many own ones."""
    parts.pool.add(pooled(number, epoch=epoch) for number in numbers)
    taken = parts.pool.consume(parts.pool.fresh(), step)
    draws = [(epoch, 100 * step + number) for number in range(own)]
    parts.pool.record_update(step, draws, [group.key for group in taken])


def test_an_external_use_is_remembered_as_long_as_its_group_could_come_again() -> None:
    parts = Parts(least_uses=0)
    for step, epoch in ((1, 7), (2, 7), (3, 8), (4, 7)):
        use(parts, step, step, epoch=epoch, own=2)
    assert parts.pool.forget(epoch=7) == 8, "own ones; either other may be admitted yet"
    assert parts.pool.forget(epoch=8) == 2
    assert [len(lineage(parts.pool, step)) for step in (1, 2, 3, 4)] == [1, 0, 1, 0]


def test_the_first_update_of_each_author_is_remembered_so_that_it_can_be_undone() -> None:
    """Also beyond the bound, as long as there are fewer authors than it has places."""
    parts = Parts(least_uses=0, kept_uses=20)
    wasted = [pooled(number, author=author) for number, author in ((1, ANNA), (2, BEN))]
    parts.pool.add(wasted)
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


def test_an_update_of_which_nothing_is_known_any_more_is_struck_by_going_back_behind_it() -> None:
    parts = Parts(least_uses=3)
    for step in range(1, 5):
        use(parts, step, own=2)
    parts.pool.forget(epoch=0)
    assert [len(lineage(parts.pool, step)) for step in (1, 2, 3, 4)] == [0, 0, 1, 2]
    parts.pool.rewind(1)
    use(parts, 2, own=1)
    assert [len(lineage(parts.pool, step)) for step in (1, 2, 3, 4)] == [0, 1, 0, 0]


def test_groups_of_forgotten_epochs_stay_out_however_far_the_clock_is_put_back() -> None:
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
    assert parts.pool.add([pooled(1, epoch=9)]) == 1, "an own use keeps no external group out"


def test_the_latest_uses_stay_to_be_looked_at() -> None:
    parts = Parts()
    parts.pool.record_update(1, [(7, number) for number in range(LEAST_USES + 10)], [])
    assert parts.pool.forget(epoch=100) == 10
    assert used(parts) == LEAST_USES


def test_much_is_forgotten_in_pieces_between_which_others_have_their_turn(monkeypatch) -> None:
    parts = Parts(least_uses=0)
    many = 2 * MAX_DELETED + 5
    parts.pool.record_update(1, [(7, number) for number in range(many)], [])
    left = []
    transaction = parts.journal.transaction

    def counted(**more: bool):
        left.append(used(parts))
        return transaction(**more)

    monkeypatch.setattr(parts.journal, "transaction", counted)
    assert parts.pool.forget(epoch=100) == many
    assert left == [many, many - MAX_DELETED, 5]


def test_what_was_forgotten_is_known_to_a_restored_journal(path):
    parts = Parts(path, least_uses=0)
    use(parts, 1, 0)
    use(parts, 2, 1)
    parts.pool.forget(epoch=8)
    parts.journal.backup()
    parts.journal.close()
    path.unlink()
    journal, _ = open_or_restore(path, parts.clock)
    assert Pool(journal, 8, 60.0, parts.clock, Counters()).add([pooled(1)]) == 0


def test_the_oldest_epoch_is_the_last_that_admission_never_looks_at_again() -> None:
    gate = Gate()
    anna = Peer(gate)
    oldest = oldest_epoch(gate.manifest, gate.clock.time())
    assert oldest == NOW - gate.manifest.max_age_epochs - AHEAD_EPOCHS
    assert gate.admit(anna.frame(anna.group(0, epoch=oldest - 1)), anna.author) == []
    assert gate.refused() == {"stale_epoch": 1}


DRAWS = [(epoch, number) for epoch in range(-1, 3) for number in range(2)]
"""Of one author: epochs after the first, and numbers."""


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class ForgettingMachine(RuleBasedStateMachine):
    """Announcements told again and again, returns to checkpoints, forgetting, a clock that jumps.

    Whatever happens, no group is handed out to two updates.
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
        taken = self.pool.consume(self.pool.fresh()[:count], self.step)
        self.handed_out.update(group.key for group in taken)
        self.pool.record_update(self.step, [(NOW, self.step)], [group.key for group in taken])

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
