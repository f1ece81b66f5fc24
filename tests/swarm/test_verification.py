"""Verification time: bounded for a frame, an author and all newcomers, and given out in turn."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from swarm.verification import LEAST_SECONDS, Turns, VerificationBudget
from tests.swarm.experience_parts import ANNA, BEN

CARL = b"\xcc" * 32
EPOCH = 60.0
requests = st.lists(
    st.tuples(
        st.sampled_from([ANNA, BEN, CARL, *(bytes([n]) * 32 for n in range(20))]), st.floats(0, 20)
    ),
    max_size=80,
)


@given(requests, st.frozensets(st.sampled_from([ANNA, BEN])))
def test_no_frame_no_author_and_not_the_newcomers_together_exceed_their_time(asked, proven):
    budget = VerificationBudget(EPOCH)
    budget.begin(1)
    spent: dict[bytes, float] = {}
    for author, wanted in asked:
        left = budget.left(author, 0.0, proven=author in proven)
        assert left == 0.0 or LEAST_SECONDS <= left <= budget.frame_seconds
        taken = min(wanted, left)
        budget.charge(author, taken, proven=author in proven)
        spent[author] = spent.get(author, 0.0) + taken
    assert max(spent.values(), default=0.0) <= EPOCH / 8 + 1e-9
    assert sum(s for a, s in spent.items() if a not in proven) <= EPOCH / 8 + 1e-9
    for author in proven:
        assert (
            budget.left(author, 0.0, proven=True) > 0 or spent[author] > EPOCH / 8 - LEAST_SECONDS
        )


def test_a_new_epoch_begins_with_the_whole_budget():
    budget = VerificationBudget(EPOCH)
    budget.begin(1)
    budget.charge(ANNA, 100.0, proven=False)
    assert budget.left(BEN, 0.0, proven=False) == 0.0 < budget.left(BEN, 0.0, proven=True)
    budget.begin(1)
    assert budget.left(ANNA, 0.0, proven=False) == 0.0
    budget.begin(2)
    assert budget.left(ANNA, 0.0, proven=False) == budget.frame_seconds


def order_of(*waiting: tuple[bytes, bool], spent: dict[bytes, float]) -> list[bytes]:
    """In which order those who wait are served while somebody holds the judge."""
    budget = VerificationBudget(EPOCH)
    for author, seconds in spent.items():
        budget.charge(author, seconds, proven=True)
    turns, served = Turns(budget), []

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


def test_the_proven_come_first_and_then_whoever_has_cost_least():
    spent = {ANNA: 2.0, BEN: 1.0}
    assert order_of((CARL, False), (ANNA, True), (BEN, True), spent=spent) == [BEN, ANNA, CARL]
    assert order_of((ANNA, False), (CARL, False), (BEN, False), spent=spent) == [CARL, BEN, ANNA]
    assert order_of((CARL, True), (ANNA, True), spent={}) == [CARL, ANNA]


def test_who_gives_up_waiting_holds_nobody_up():
    turns, served = Turns(VerificationBudget(EPOCH)), []

    async def ask(name: bytes) -> None:
        async with turns.turn(name, proven=True):
            served.append(name)

    async def run() -> None:
        async with turns.turn(CARL, proven=True):
            first, second = asyncio.create_task(ask(ANNA)), asyncio.create_task(ask(BEN))
            await asyncio.sleep(0)
            first.cancel()
        # Cancelled at the very moment at which the turn would be hers.
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.wait_for(ask(CARL), 20)

    asyncio.run(run())
    assert served == [BEN, CARL]
