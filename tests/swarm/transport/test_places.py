"""Which peers hold the slots of a service if there are too few."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from experiments.virtual_clock import VirtualClock
from swarm.common.fair_limits import KEPT, KNOWN, Reputations
from swarm.transport.request_limits import TAKING_SECONDS, YOUNG_SECONDS, RequestSlot, RequestSlots
from tests.swarm.experience_parts import wait
from tests.swarm.network_parts import identity

FRIEND = identity("friend")
TOTAL, EACH = 8, 4


def slots(clock: VirtualClock) -> RequestSlots:
    reputations = Reputations(clock)
    reputations.use(lambda author: float(author == FRIEND.author))
    return RequestSlots(TOTAL, EACH, clock, reputations)


def sams(count: int) -> list[str]:
    return [identity(f"slow sam {n}").peer_id for n in range(count)]


def filled(clock: VirtualClock, keys: int) -> tuple[RequestSlots, list[RequestSlot]]:
    """Return slots of which ``keys`` unknown peers hold as many as they get."""
    held = slots(clock)
    taken = [held.take(sam) for sam in sams(keys) for _ in range(EACH)]
    return held, [slot for slot in taken if slot]


def test_largest_holder_loses_its_oldest_request_to_a_new_peer() -> None:
    held, taken = filled(VirtualClock(), 2)
    assert len(held) == TOTAL - TOTAL * KEPT
    active = [slot for slot in taken if not slot.lost]
    assert held.take(identity("ben").peer_id)
    assert [slot for slot in active if slot.lost] == active[:1]


def test_equal_holders_lose_only_an_old_waiting_request(clock) -> None:
    held, ben = slots(clock), identity("ben").peer_id
    for sam in sams(TOTAL):
        held.take(sam)
    assert held.take(ben) is None
    wait(clock, YOUNG_SECONDS)
    assert held.take(ben)
    assert held.take(ben) is None, "ben would hold more slots than the others"


def test_unread_answer_loses_its_slot_only_after_its_time(clock, monkeypatch) -> None:
    held, taken = filled(clock, 2)
    for slot in taken:
        slot.waiting = False
        held.hand_over(slot, 65_536)
    monkeypatch.setattr(clock, "time", lambda: 0.0)  # someone sets the wall clock back
    ben = identity("ben").peer_id
    wait(clock, TAKING_SECONDS)
    assert held.take(ben) is None
    wait(clock, 1.0)
    assert held.take(ben)


@pytest.mark.parametrize("keys", [8, 20])
def test_active_request_is_never_evicted_and_known_peers_keep_slots(clock, keys):
    held, taken = filled(clock, keys)
    for slot in taken:
        slot.waiting = False
    wait(clock, 100)
    assert held.take(identity("ben").peer_id) is None
    assert all(held.take(FRIEND.peer_id) for _ in range(int(TOTAL * KEPT)))


@given(st.lists(st.integers(0, 30), max_size=200))
def test_new_peer_always_gets_a_slot_among_greedy_peers(arrivals: list[int]) -> None:
    clock = VirtualClock()
    held = slots(clock)
    for number in arrivals:
        held.take(sams(3)[number % 3])
        wait(clock, 0.01 * (number % 5))
    assert held.take(identity("ben").peer_id)


class Service(RuleBasedStateMachine):
    """Checks that no peer exceeds its slots and that known peers have free ones."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.held = slots(self.clock)
        self.open: list[RequestSlot] = []

    @rule(who=st.integers(0, 5))
    def arrive(self, who: int) -> None:
        if slot := self.held.take((FRIEND.peer_id, *sams(5))[who]):
            self.open.append(slot)

    @rule(number=st.integers(0, 100), size=st.integers(0, 1 << 20))
    def advance(self, number: int, size: int) -> None:
        self.open = [slot for slot in self.open if not slot.lost]
        if self.open:
            slot = self.open[number % len(self.open)]
            if slot.waiting and not slot.firm:
                slot.waiting = False
            elif not slot.waiting:
                self.held.hand_over(slot, size)
            else:
                self.held.release(slot)
                self.open.remove(slot)

    @rule(seconds=st.floats(0, 5))
    def pass_time(self, seconds: float) -> None:
        wait(self.clock, seconds)

    @invariant()
    def bounds_hold(self) -> None:
        active = [slot for slot in self.open if not slot.lost]
        assert len(self.held) == len(active) <= TOTAL
        assert len([slot for slot in active if not slot.known]) <= TOTAL - TOTAL * KEPT
        for slot in active:
            assert sum(each.peer == slot.peer for each in active) <= EACH
        assert all(slot.waiting for slot in self.open if slot.lost)


TestService = Service.TestCase


def test_reputation_counts_from_a_threshold_and_is_cached() -> None:
    clock, lookups = VirtualClock(), []

    def reputation(author: bytes) -> float:
        lookups.append(author)
        return KNOWN

    reputations = Reputations(clock)
    assert not reputations.knows(FRIEND.peer_id)
    reputations.use(reputation)
    assert all(reputations.knows(FRIEND.peer_id) for _ in range(9))
    assert len(lookups) == 1
    assert not reputations.knows("not a peer id")
