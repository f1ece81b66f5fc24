"""Which relayed connections are begun anew, on a clock that is set by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from experiments.scale.clock import SteppedClock
from swarm.transport.peer_connections import AGAIN_SECONDS, SETTLED_SECONDS, Shortcuts

RELAYED = ("/ip4/11.7.0.2/tcp/4001/p2p/rita/p2p-circuit/p2p/ben",)
DIRECT = ("/ip4/11.7.0.7/tcp/4001/p2p/ben",)


def test_a_connection_that_has_lasted_through_a_relay_is_begun_anew_once() -> None:
    clock = SteppedClock(0.0)
    shortcuts = Shortcuts(clock)
    assert shortcuts.due("anna", {"ben": RELAYED}) == ""
    clock.move_to(SETTLED_SECONDS)
    assert shortcuts.due("anna", {"ben": RELAYED}) == "ben"
    assert shortcuts.due("anna", {}) == ""
    for now in (SETTLED_SECONDS + 1, 3 * SETTLED_SECONDS, AGAIN_SECONDS):
        clock.move_to(now)
        assert shortcuts.due("anna", {"ben": RELAYED}) == "", "it stayed relayed"
    clock.move_to(SETTLED_SECONDS + AGAIN_SECONDS)
    assert shortcuts.due("anna", {"ben": RELAYED}) == "ben"


def test_what_is_direct_is_left_alone() -> None:
    clock = SteppedClock(0.0)
    shortcuts = Shortcuts(clock)
    for now in range(0, 100, 10):
        clock.move_to(now)
        assert shortcuts.due("anna", {"ben": (*DIRECT, *RELAYED)}) == ""


def test_one_that_breaks_meanwhile_has_to_last_from_then_on() -> None:
    clock = SteppedClock(0.0)
    shortcuts = Shortcuts(clock)
    shortcuts.due("anna", {"ben": RELAYED})
    clock.move_to(SETTLED_SECONDS - 1)
    shortcuts.due("anna", {})
    shortcuts.due("anna", {"ben": RELAYED})
    clock.move_to(SETTLED_SECONDS)
    assert shortcuts.due("anna", {"ben": RELAYED}) == ""


@given(st.sets(st.text("abc", min_size=1, max_size=3), min_size=2, max_size=8))
def test_of_two_ends_one_alone_begins_and_one_peer_at_a_time(peers: set[str]) -> None:
    clock = SteppedClock(0.0)
    ends = {peer: Shortcuts(clock) for peer in peers}
    hung_up: list[frozenset[str]] = []
    for second in range(int(SETTLED_SECONDS) + len(peers)):
        clock.move_to(second)
        for own, shortcuts in ends.items():
            connected = dict.fromkeys(peers - {own}, RELAYED)
            if peer := shortcuts.due(own, connected):
                hung_up.append(frozenset({own, peer}))
    pairs = {frozenset({a, b}) for a in peers for b in peers if a != b}
    assert sorted(map(sorted, hung_up)) == sorted(map(sorted, pairs))
