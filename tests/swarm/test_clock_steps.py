"""A clock that was ahead and is put right: nothing waits until the wrong time has come true."""

import pytest

from experiments.virtual_clock import VirtualClock
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff, ByteBudget, Reputations
from swarm.journal import Journal
from swarm.member import Experience
from swarm.pool import Pool
from swarm.reputation import LONGEST_BAN_S
from swarm.transport.peer_connections import FIRST_SECONDS, Redial
from tests.swarm.network_parts import EPOCH_SECONDS, running

AHEAD = 3600.0


class SteppedClock:
    """Another clock's time and sleep, some seconds ahead."""

    def __init__(self, clock: Clock, ahead: float = AHEAD) -> None:
        self._clock = clock
        self.ahead = ahead

    def time(self) -> float:
        return self._clock.time() + self.ahead

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD])
async def test_a_member_whose_clock_was_wrong_is_heard_once_it_is_right(swarm, ahead):
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


async def test_a_member_whose_clock_is_put_back_during_a_turn_takes_its_next_one_in_time(swarm):
    clock = SteppedClock(swarm.clock)
    anna, ben = await swarm.join("anna", clock), await swarm.join("ben")
    read, reads = anna.transport.read, []

    async def put_right(key: str) -> dict[bytes, bytes]:
        clock.ahead = 0.0
        reads.append(key)
        return await read(key)

    anna.transport.read = put_right
    async with running(anna, ben):
        await swarm.clock.advance(EPOCH_SECONDS)
        ben.publish()
        reads.clear()
        await swarm.clock.advance(2 * EPOCH_SECONDS)
        assert anna.authors() == {ben.identity.author}
        assert reads, "what ben tells comes to her between turns as well"


@pytest.mark.parametrize("step", [AHEAD, -AHEAD])
async def test_pauses_of_addresses_and_peers_are_the_same_however_the_clock_is_moved(step):
    clock = SteppedClock(virtual := VirtualClock())
    redial = Redial(["/a/p2p/ben"], [], clock)
    silent: Backoff[str] = Backoff(clock, first=FIRST_SECONDS, longest=60.0)
    silent.failed("ben")
    assert redial.due(()) == ("/a/p2p/ben",)
    clock.ahead += step
    assert redial.due(()) == () and silent.waits("ben")
    await virtual.advance(FIRST_SECONDS)
    assert redial.due(()) == ("/a/p2p/ben",) and not silent.waits("ben")


@pytest.mark.parametrize("step", [AHEAD, -AHEAD])
async def test_a_clock_that_is_moved_is_told_and_counted_once(swarm, step, caplog) -> None:
    clock = SteppedClock(swarm.clock)
    anna = await swarm.join("anna", clock)
    await anna.member.meet()
    clock.ahead += step
    await anna.member.meet()
    clock.ahead += 0.5
    await anna.member.meet()
    assert anna.count("clock_steps") == 1
    (told,) = [r.getMessage() for r in caplog.records if "clock moved" in r.getMessage()]
    assert f"{step:+.1f} s" in told


def test_a_budget_is_not_spent_by_a_clock_that_is_put_back() -> None:
    clock = SteppedClock(VirtualClock())
    budget = ByteBudget(100_000, 50_000, clock, Reputations(clock))
    assert budget.take("ben", 1000)
    clock.ahead = 0.0
    assert budget.take("ben", 1000)


def test_a_ban_by_a_clock_that_was_ahead_ends_in_time_after_a_restart() -> None:
    clock = SteppedClock(VirtualClock(), 30 * 86400.0)
    pool = Pool(Journal(":memory:", clock), 1, 1.0, clock, Counters())
    Experience.around(pool).accounts.refuse(b"anna", "bad_signature")
    clock.ahead = 0.0
    accounts = Experience.around(pool).accounts
    assert accounts.banned(b"anna")
    clock.ahead = LONGEST_BAN_S
    assert not accounts.banned(b"anna")
