"""Admission of local groups: their age is bounded and none is lost, in any order."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from node.rollout.async_generator import StalenessWindow


class AnyOrder(RuleBasedStateMachine):
    """Begins, settles, takes and resumes groups in any order."""

    @initialize(staleness=st.integers(0, 3), share=st.sampled_from([0.0, 0.25, 1.0]))
    def open(self, staleness, share):
        self.staleness, self.share = staleness, min(share, float(staleness))
        self.window = StalenessWindow(staleness, oversample=self.share)
        self.begun: dict[int, int] = {}
        self.settled: set[int] = set()
        self.started = self.trained = self.filtered = 0
        self.restarted = False
        self.sizes: list[int] = []

    @rule(size=st.integers(0, 4))
    def plan(self, size):
        self.window.plan(size)
        missing = self.window.version + self.staleness + 1 - len(self.sizes)
        self.sizes += [size] * missing

    @precondition(lambda self: self.window.capacity)
    @rule(data=st.data())
    def begin(self, data):
        for _ in range(data.draw(st.integers(1, self.window.capacity))):
            ticket = self.window.begin()
            assert ticket not in self.begun
            self.begun[ticket] = self.window.version
            self.started += 1

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def settle_any(self, data):
        ticket = data.draw(st.sampled_from(sorted(self.running())))
        self.window.settle(ticket)
        self.settled.add(ticket)

    @precondition(lambda self: len(self.sizes) > self.window.version and self.window.complete)
    @rule()
    def take(self):
        version = self.window.version
        tickets = self.window.take()
        assert len(tickets) == self.sizes[version] and set(tickets) <= self.settled
        assert all(version - self.begun.pop(ticket) <= self.staleness for ticket in tickets)
        self.settled -= set(tickets)
        self.trained += len(tickets)
        self.expire()

    @rule()
    def restart(self):
        """Resume all groups that were not taken; they are verified again."""
        version = self.window.version
        self.window = StalenessWindow(self.staleness, oversample=self.share, version=version)
        self.restarted = True
        self.settled.clear()
        self.sizes = self.sizes[:version]
        for ticket, begun in self.begun.items():
            self.window.resume(ticket, begun)
        self.expire()

    def expire(self):
        stale = self.window.expire()
        assert self.restarted or not stale
        for ticket in stale:
            assert self.window.version - self.begun.pop(ticket) > self.staleness
            self.settled.discard(ticket)
            self.filtered += 1

    def running(self):
        return self.begun.keys() - self.settled

    @invariant()
    def no_group_is_lost(self):
        assert self.started == self.trained + len(self.begun) + self.filtered

    @invariant()
    def capacity_follows_the_rule(self):
        window, running = self.window, len(self.running())
        planned = self.sizes[window.version :]
        if not planned:
            assert window.capacity == 0
            return
        allowed = sum(planned) - len(self.begun)
        if self.share:
            allowed = min(allowed, math.ceil((1 + self.share) * planned[0]) - running)
        assert window.capacity == max(0, allowed)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(
    st.randoms(use_true_random=False),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.integers(1, 8),
)
def test_no_group_expires_in_any_finish_order(draw, staleness, share, size):
    window = StalenessWindow(staleness, oversample=min(share, staleness))
    for _ in range(12):
        window.plan(draw.randint(1, size))
        assert not window.expire()
        for _ in range(window.capacity):
            window.begin()
        while not window.complete:
            running = window.running
            for ticket in draw.sample(running, draw.randint(1, len(running))):
                window.settle(ticket)
            for _ in range(window.capacity):
                window.begin()
        window.take()


def filled(staleness, size=2):
    window = StalenessWindow(staleness)
    window.plan(size)
    for _ in range(window.capacity):
        window.begin()
    return window


def resumed(staleness, versions, *, version, size):
    window = StalenessWindow(staleness, version=version)
    for ticket, begun in enumerate(versions):
        window.resume(ticket, begun)
    window.plan(size)
    return window


def settled(window, *tickets):
    for ticket in tickets:
        window.settle(ticket)
    return window


def test_update_takes_complete_groups_and_waits_for_due_ones():
    window = settled(filled(1), 1, 2, 3)
    assert window.complete and window.take() == [1, 2]
    window.plan(2)
    for _ in range(window.capacity):
        window.settle(window.begin())
    assert not window.complete, "group 0 is due"
    assert settled(window, 0).complete and window.take() == [0, 3]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_update_without_local_groups_is_complete(staleness):
    window = filled(staleness, 0)
    assert window.complete and window.take() == []


def test_resumed_groups_over_the_bound_expire_and_tickets_continue():
    window = resumed(1, [3, 4, 5], version=5, size=2)
    assert window.expire() == [0] and window.capacity == 2
    window = StalenessWindow(1)
    window.resume(5, 0)
    assert window.begin() == 6


def test_update_does_not_wait_for_groups_that_fit_later_updates():
    two_and_three = resumed(2, [0, 0, 0, 0, 1, 1], version=1, size=2)
    assert settled(two_and_three, 0, 1).complete, "groups 2 and 3 fit the next update"
    assert settled(resumed(3, [0, 0, 0], version=1, size=1), 0).complete, "two updates are left"
    window = resumed(1, [0, 0, 0], version=1, size=1)
    assert not settled(window, 0, 1).complete, "group 2 is too old for a later update"
    assert settled(window, 2).complete and window.take() == [0]
    window.plan(1)
    assert window.expire() == [1, 2]
