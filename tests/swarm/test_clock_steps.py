"""A clock that was ahead and is put right: nothing waits until the wrong time has come true."""

from __future__ import annotations

import asyncio

import pytest

from swarm.common.budget import ByteBudget
from swarm.common.clock import Clock, VirtualClock
from swarm.common.known_peers import Standings
from swarm.transport.redial import Redial
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm

AHEAD = 3600.0


class SteppedClock:
    """Another clock's time and sleep, some seconds ahead."""

    def __init__(self, clock: Clock, ahead: float = AHEAD) -> None:
        self._clock = clock
        self.ahead = ahead

    def time(self) -> float:
        return self._clock.time() + self.ahead

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD])
def test_a_member_whose_clock_was_wrong_is_heard_once_it_is_right(ahead: float) -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        clock = SteppedClock(swarm.clock, ahead)
        anna, ben = await swarm.join("anna", clock), await swarm.join("ben")
        for _ in range(5):
            anna.publish()
            await swarm.step()
        assert ben.authors() == set(), "nobody takes what is drawn in another hour"
        clock.ahead = 0.0
        anna.publish()
        await swarm.step()
        assert ben.authors() == {anna.identity.author}

    asyncio.run(scenario())


def test_a_member_whose_clock_is_put_back_during_a_turn_takes_its_next_one_in_time() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        clock = SteppedClock(swarm.clock)
        anna, ben = await swarm.join("anna", clock), await swarm.join("ben")
        read = anna.transport.read

        async def put_right(key: str) -> dict[bytes, bytes]:
            clock.ahead = 0.0
            return await read(key)

        anna.transport.read = put_right
        running = [asyncio.ensure_future(node.member.run()) for node in swarm.nodes]
        await swarm.clock.advance(EPOCH_SECONDS)
        ben.publish()
        await swarm.clock.advance(2 * EPOCH_SECONDS)
        assert anna.authors() == {ben.identity.author}
        for task in running:
            task.cancel()

    asyncio.run(scenario())


def test_an_address_is_dialled_again_after_the_clock_was_put_back() -> None:
    clock = SteppedClock(VirtualClock())
    redial = Redial(["/a/p2p/ben"], [], clock)
    assert redial.due(()) == ("/a/p2p/ben",)
    clock.ahead = 0.0
    assert redial.due(()) == ("/a/p2p/ben",)
    assert redial.due(()) == (), "and from then on after the pauses that it always has"


def test_a_budget_is_not_spent_by_a_clock_that_is_put_back() -> None:
    clock = SteppedClock(VirtualClock())
    budget = ByteBudget(100_000, 50_000, clock, Standings(clock))
    assert budget.take("ben", 1000)
    clock.ahead = 0.0
    assert budget.take("ben", 1000)
