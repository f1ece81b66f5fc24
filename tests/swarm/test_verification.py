"""Verification time is bounded per frame, per author and for unproven authors."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.verification import LEAST_SECONDS, ScoringQueue, VerificationBudget
from tests.swarm.experience_parts import ANNA, BEN

CARL = b"\xcc" * 32
EPOCH = 60.0
authors = st.sampled_from([ANNA, BEN, CARL, *(bytes([n]) * 32 for n in range(20))])
requests = st.lists(st.tuples(authors, st.floats(0, 20)), max_size=80)


@given(requests, st.frozensets(st.sampled_from([ANNA, BEN])))
def test_frames_authors_and_all_unproven_authors_stay_within_time_budgets(asked, proven):
    budget = VerificationBudget(EPOCH)
    budget.begin(1)
    spent: dict[bytes, float] = {}
    for author, wanted in asked:
        left = budget.left(author, 0.0, proven=author in proven)
        assert left == 0.0 or LEAST_SECONDS <= left <= budget.frame_seconds
        used = min(wanted, left)
        budget.charge(author, used, proven=author in proven)
        spent[author] = spent.get(author, 0.0) + used
    assert max(spent.values(), default=0.0) <= EPOCH / 8 + 1e-9
    assert sum(s for a, s in spent.items() if a not in proven) <= EPOCH / 8 + 1e-9
    for author in proven:
        left = budget.left(author, 0.0, proven=True)
        assert left > 0 or spent[author] > EPOCH / 8 - LEAST_SECONDS


def test_time_slot_resets_budgets_and_proven_authors_leave_unproven_share():
    budget = VerificationBudget(EPOCH)
    whole = budget.frame_seconds
    budget.begin(1)
    budget.charge(ANNA, 100.0, proven=False)
    assert budget.left(BEN, 0.0, proven=False) == 0.0 < budget.left(BEN, 0.0, proven=True)
    budget.begin(1)
    assert budget.left(ANNA, 0.0, proven=False) == 0.0
    budget.begin(2)
    assert budget.left(ANNA, 0.0, proven=False) == whole
    assert budget.left(ANNA, whole - 1.0, proven=True) == 1.0
    assert budget.left(ANNA, whole - LEAST_SECONDS / 2, proven=True) == 0.0
    for author in (ANNA, BEN):
        budget.charge(author, EPOCH / 8, proven=True)
    assert budget.left(CARL, 0.0, proven=False) == whole


def test_slow_unproven_authors_leave_half_of_the_time_to_new_ones():
    budget = VerificationBudget(EPOCH)
    budget.begin(1)
    for author in (ANNA, BEN):
        budget.charge(author, budget.left(author, 0.0, proven=False), proven=False)
    assert budget.spent(ANNA) == EPOCH / 16 and budget.spent(BEN) == LEAST_SECONDS
    assert budget.left(BEN, 0.0, proven=False) == budget.left(ANNA, 0.0, proven=False) == 0.0
    assert budget.left(CARL, 0.0, proven=False) == LEAST_SECONDS


def order_of(*waiting: tuple[bytes, bool], spent: dict[bytes, float]) -> list[bytes]:
    """Return the order in which waiting requests are served after the first one."""
    budget = VerificationBudget(EPOCH)
    for author, seconds in spent.items():
        budget.charge(author, seconds, proven=True)
    turns, served = ScoringQueue(budget), []

    async def ask(author: bytes, proven: bool) -> None:
        async with turns.turn(author, proven=proven):
            served.append(author)
            await asyncio.sleep(0)

    async def run() -> None:
        async with turns.turn(b"first", proven=False):
            tasks = [asyncio.create_task(ask(*entry)) for entry in waiting]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(run())
    return served


def test_queue_serves_proven_authors_first_then_lowest_cost():
    spent = {ANNA: 2.0, BEN: 1.0}
    assert order_of((CARL, False), (ANNA, True), (BEN, True), spent=spent) == [BEN, ANNA, CARL]
    assert order_of((ANNA, False), (CARL, False), (BEN, False), spent=spent) == [CARL, BEN, ANNA]
    assert order_of((CARL, True), (ANNA, True), spent={}) == [CARL, ANNA]


@pytest.mark.parametrize("when", ["before the hand-over", "on it", "behind it"])
async def test_queue_skips_a_cancelled_waiter(when, caplog):
    turns, names = ScoringQueue(VerificationBudget(EPOCH)), []

    async def ask(name: bytes) -> None:
        async with turns.turn(name, proven=True):
            names.append(name)

    async with turns.turn(CARL, proven=True):
        first, second = asyncio.create_task(ask(ANNA)), asyncio.create_task(ask(BEN))
        await asyncio.sleep(0)
        if when == "before the hand-over":
            first.cancel()
    if when == "on it":
        first.cancel()
    if when == "behind it":  # It runs after the hand-over, before ANNA wakes up.
        asyncio.get_running_loop().call_soon(first.cancel)
    await asyncio.gather(first, second, return_exceptions=True)
    await asyncio.wait_for(ask(CARL), 20)
    assert names == [BEN, CARL]
    assert not caplog.records, "a callback failed in the event loop"


def test_shortest_time_slot_still_grants_twice_the_minimum_time():
    budget = VerificationBudget(LEAST_SECONDS)
    budget.begin(1)
    assert budget.frame_seconds == 2 * LEAST_SECONDS
    for proven in (False, True):
        assert budget.left(ANNA, 0.0, proven=proven) == 2 * LEAST_SECONDS
        budget.charge(ANNA, LEAST_SECONDS / 2, proven=proven)
        assert budget.left(ANNA, 0.0, proven=proven) == 1.5 * LEAST_SECONDS
        budget.begin(2)


async def test_new_request_waits_while_a_turn_is_handed_over():
    turns, active, peak = ScoringQueue(VerificationBudget(EPOCH)), 0, 0

    async def ask(name: bytes) -> None:
        nonlocal active, peak
        async with turns.turn(name, proven=True):
            active += 1
            peak = max(peak, active)
            await asyncio.sleep(0)
            active -= 1

    async with turns.turn(CARL, proven=True):
        first = asyncio.create_task(ask(ANNA))
        await asyncio.sleep(0)
    await asyncio.gather(first, asyncio.create_task(ask(BEN)))
    assert peak == 1
