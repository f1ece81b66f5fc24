"""After a clock that was ahead is corrected, nothing waits for the wrong time."""

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
    """The time and sleep of another clock, some seconds ahead."""

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
async def test_peers_accept_a_member_after_its_clock_is_corrected(swarm, ahead):
    clock = SteppedClock(swarm.clock, ahead)
    anna, ben = await swarm.join("anna", clock), await swarm.join("ben")
    for _ in range(5):
        anna.publish()
        await swarm.step()
    assert ben.authors() == set(), "peers refuse samples of a wrong time slot"
    clock.ahead = 0.0
    anna.publish()
    await swarm.step()
    assert ben.authors() == {anna.identity.author}


async def test_next_turn_is_on_time_after_the_clock_is_set_back_during_a_turn(swarm):
    clock = SteppedClock(swarm.clock)
    anna, ben = await swarm.join("anna", clock), await swarm.join("ben")
    read, reads = anna.transport.read, []

    async def set_clock(key: str) -> dict[bytes, bytes]:
        clock.ahead = 0.0
        reads.append(key)
        return await read(key)

    anna.transport.read = set_clock
    async with running(anna, ben):
        await swarm.clock.advance(EPOCH_SECONDS)
        ben.publish()
        reads.clear()
        await swarm.clock.advance(2 * EPOCH_SECONDS)
        assert anna.authors() == {ben.identity.author}
        assert reads, "anna reads in time after the clock is set back"


@pytest.mark.parametrize("step", [AHEAD, -AHEAD])
async def test_clock_steps_do_not_change_redial_and_backoff_pauses(step):
    clock = SteppedClock(virtual := VirtualClock())
    redial = Redial(["/a/p2p/ben"], [], clock)
    backoff: Backoff[str] = Backoff(clock, first=FIRST_SECONDS, longest=60.0)
    backoff.failed("ben")
    assert redial.due(()) == ("/a/p2p/ben",)
    clock.ahead += step
    assert redial.due(()) == () and backoff.waits("ben")
    await virtual.advance(FIRST_SECONDS)
    assert redial.due(()) == ("/a/p2p/ben",) and not backoff.waits("ben")


@pytest.mark.parametrize("step", [AHEAD, -AHEAD])
async def test_clock_step_is_logged_and_counted_once(swarm, step, caplog) -> None:
    clock = SteppedClock(swarm.clock)
    anna = await swarm.join("anna", clock)
    await anna.member.meet()
    clock.ahead += step
    await anna.member.meet()
    clock.ahead += 0.5
    await anna.member.meet()
    assert anna.count("clock_steps") == 1
    (message,) = [r.getMessage() for r in caplog.records if "clock moved" in r.getMessage()]
    assert f"{step:+.1f} s" in message


def test_setting_the_clock_back_does_not_use_up_the_budget() -> None:
    clock = SteppedClock(VirtualClock())
    budget = ByteBudget(100_000, 50_000, clock, Reputations(clock))
    assert budget.take("ben", 1000)
    clock.ahead = 0.0
    assert budget.take("ben", 1000)


def test_ban_set_by_a_fast_clock_ends_on_time_after_a_restart() -> None:
    clock = SteppedClock(VirtualClock(), 30 * 86400.0)
    pool = Pool(Journal(":memory:", clock), 1, 1.0, clock, Counters())
    Experience.around(pool).accounts.refuse(b"anna", "bad_signature")
    clock.ahead = 0.0
    accounts = Experience.around(pool).accounts
    assert accounts.banned(b"anna")
    clock.ahead = LONGEST_BAN_S
    assert not accounts.banned(b"anna")
