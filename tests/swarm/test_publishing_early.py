"""What comes into an outbox is announced at once where a member runs, and no oftener for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Thread

import pytest

from swarm.publisher import MAX_ANNOUNCEMENTS
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm, Node

TURN = EPOCH_SECONDS / 4
EARLY = TURN / 10


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[None]:
    """Run a member until the block ends."""
    work = asyncio.ensure_future(node.member.run())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def start_of_epoch(swarm: MemorySwarm) -> None:
    """Go on to where an epoch has just begun."""
    await swarm.clock.advance(EPOCH_SECONDS - swarm.clock.time() % EPOCH_SECONDS)


async def test_what_comes_between_two_turns_is_announced_before_the_next() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    await start_of_epoch(swarm)
    async with running(anna):
        await swarm.clock.advance(EARLY)
        announced = anna.count("announced")
        await in_a_thread(anna)
        await swarm.clock.advance(EARLY)
        assert (anna.count("frames_sealed"), anna.count("announced")) == (1, announced + 1)


async def in_a_thread(node: Node) -> None:
    """Publish as a learner does, and let the loop hear of it."""
    learner = Thread(target=node.publish)
    learner.start()
    while learner.is_alive():
        await asyncio.sleep(0)
    learner.join()


async def test_a_node_with_news_all_the_time_announces_in_turns_and_four_times_an_epoch() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    await start_of_epoch(swarm)
    await swarm.clock.advance(EARLY)
    async with running(anna):
        for _ in range(3 * 40 - 5):
            anna.publish()
            await swarm.clock.advance(EPOCH_SECONDS / 40)
        assert anna.count("announced") == 3 * MAX_ANNOUNCEMENTS
        await swarm.clock.advance(EPOCH_SECONDS)
        assert anna.outbox.take(1 << 20) == []


async def test_news_wait_for_a_turn_once_others_went_out_a_moment_before() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    await start_of_epoch(swarm)
    async with running(anna):
        await swarm.clock.advance(EARLY)
        anna.publish()
        await swarm.clock.advance(EARLY)
        anna.publish()
        await swarm.clock.advance(TURN / 2)
        assert anna.count("frames_sealed") == 1
        await swarm.clock.advance(TURN / 2)
        assert anna.count("frames_sealed") == 2


async def test_a_node_without_news_announces_once_an_epoch() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    await start_of_epoch(swarm)
    async with running(anna):
        await swarm.clock.advance(5.5 * EPOCH_SECONDS)
        assert anna.count("announced") == 6


async def test_what_comes_while_the_network_stands_still_goes_out_when_it_runs_again() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    async with running(anna):
        await swarm.clock.advance(EARLY)
    await in_a_thread(anna)
    assert len(anna.outbox.take(1 << 20)) == 1
    async with running(anna):
        await swarm.clock.advance(EARLY)
        assert anna.outbox.take(1 << 20) == []


def test_a_loop_that_was_closed_is_not_told() -> None:
    async def scenario() -> Node:
        swarm = MemorySwarm()
        anna = await swarm.join("anna")
        async with running(anna):
            await swarm.clock.advance(EARLY)
        return anna

    anna = asyncio.run(scenario())
    anna.publish()
    assert len(anna.outbox.take(1 << 20)) == 1


async def test_a_member_does_not_run_twice() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    async with running(anna):
        await swarm.clock.advance(EARLY)
        with pytest.raises(RuntimeError, match="listens already"):
            await anna.member.run()
