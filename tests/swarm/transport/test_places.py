"""Who holds a service's places when more ask than there are."""

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


def places(clock: VirtualClock) -> RequestSlots:
    reputations = Reputations(clock)
    reputations.use(lambda author: float(author == FRIEND.author))
    return RequestSlots(TOTAL, EACH, clock, reputations)


def sams(count: int) -> list[str]:
    return [identity(f"slow sam {n}").peer_id for n in range(count)]


def filled(clock: VirtualClock, keys: int) -> tuple[RequestSlots, list[RequestSlot]]:
    """Places of which ``keys`` strangers hold as many as they get."""
    held = places(clock)
    taken = [held.take(sam) for sam in sams(keys) for _ in range(EACH)]
    return held, [place for place in taken if place]


def test_the_longest_waited_for_of_whoever_holds_most_gives_way_to_a_newcomer() -> None:
    held, taken = filled(VirtualClock(), 2)
    assert len(held) == TOTAL - TOTAL * KEPT
    alive = [place for place in taken if not place.lost]
    assert held.take(identity("ben").peer_id)
    assert [place for place in alive if place.lost] == alive[:1]


def test_among_equals_only_a_request_waited_for_long_gives_way(clock) -> None:
    held, ben = places(clock), identity("ben").peer_id
    for sam in sams(TOTAL):
        held.take(sam)
    assert held.take(ben) is None
    wait(clock, YOUNG_SECONDS)
    assert held.take(ben)
    assert held.take(ben) is None, "he would have more than they"


def test_an_answer_not_taken_gives_way_after_its_time_and_not_before(clock) -> None:
    held, taken = filled(clock, 2)
    for place in taken:
        place.waiting = False
        held.hand_over(place, 65_536)
    ben = identity("ben").peer_id
    wait(clock, TAKING_SECONDS)
    assert held.take(ben) is None
    wait(clock, 1.0)
    assert held.take(ben)


@pytest.mark.parametrize("keys", [8, 20])
def test_a_request_in_work_never_gives_way_but_takes_no_place_of_known_peers(clock, keys):
    held, taken = filled(clock, keys)
    for place in taken:
        place.waiting = False
    wait(clock, 100)
    assert held.take(identity("ben").peer_id) is None
    assert all(held.take(FRIEND.peer_id) for _ in range(int(TOTAL * KEPT)))


@given(st.lists(st.integers(0, 30), max_size=200))
def test_a_newcomer_among_few_greedy_peers_always_gets_a_place(arrivals: list[int]) -> None:
    clock = VirtualClock()
    held = places(clock)
    for number in arrivals:
        held.take(sams(3)[number % 3])
        wait(clock, 0.01 * (number % 5))
    assert held.take(identity("ben").peer_id)


class Service(RuleBasedStateMachine):
    """Whatever peers do, nobody holds more than allowed and known peers have room."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.held = places(self.clock)
        self.open: list[RequestSlot] = []

    @rule(who=st.integers(0, 5))
    def arrive(self, who: int) -> None:
        if place := self.held.take((FRIEND.peer_id, *sams(5))[who]):
            self.open.append(place)

    @rule(number=st.integers(0, 100), size=st.integers(0, 1 << 20))
    def advance(self, number: int, size: int) -> None:
        self.open = [place for place in self.open if not place.lost]
        if self.open:
            place = self.open[number % len(self.open)]
            if place.waiting and not place.firm:
                place.waiting = False
            elif not place.waiting:
                self.held.hand_over(place, size)
            else:
                self.held.release(place)
                self.open.remove(place)

    @rule(seconds=st.floats(0, 5))
    def pass_time(self, seconds: float) -> None:
        wait(self.clock, seconds)

    @invariant()
    def bounds_hold(self) -> None:
        alive = [place for place in self.open if not place.lost]
        assert len(self.held) == len(alive) <= TOTAL
        assert len([place for place in alive if not place.known]) <= TOTAL - TOTAL * KEPT
        for place in alive:
            assert sum(each.peer == place.peer for each in alive) <= EACH
        assert all(place.waiting for place in self.open if place.lost)


TestService = Service.TestCase


def test_reputation_counts_from_a_threshold_on_and_is_asked_now_and_then() -> None:
    clock, asked = VirtualClock(), []

    def reputation(author: bytes) -> float:
        asked.append(author)
        return KNOWN

    reputations = Reputations(clock)
    assert not reputations.knows(FRIEND.peer_id)
    reputations.use(reputation)
    assert all(reputations.knows(FRIEND.peer_id) for _ in range(9))
    assert len(asked) == 1
    assert not reputations.knows("not a peer id")
