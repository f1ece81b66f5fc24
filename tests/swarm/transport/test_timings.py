"""How far away peers are and how their clocks go, as it is measured."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scale.clock import SteppedClock
from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport import protobuf
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.peer_connections import CLOCK_FIELD, EVERY_SECONDS, PING, Timings
from swarm.transport.subprocess.transport import ApartTransport
from swarm.transport.transport import Refused, Timing
from tests.swarm.transport.over import INSTALLED

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
NOW = 1_700_000_000.0


class Peers:
    """A node whose peers answer a call after some seconds, each by its own clock."""

    def __init__(self, clock: SteppedClock, takes: float, ahead: object) -> None:
        self._clock = clock
        self._takes = takes
        self._ahead = ahead

    async def call(self, peer: str, name: str, request: bytes) -> bytes:
        assert (name, request) == (PING, b"")
        if self._ahead is None:
            raise Refused("no answer")
        theirs = self._clock.time() + self._takes / 2 + self._ahead
        self._clock.move_to(self._clock.time() + self._takes)
        return protobuf.encode({CLOCK_FIELD: theirs})


def measured(timings: Timings, node: Peers, *connected: str) -> str:
    if peer := timings.due(connected):
        asyncio.run(timings.measure(node, peer))
    return peer


def test_a_call_tells_how_far_away_a_peer_is_and_how_its_clock_goes() -> None:
    clock = SteppedClock(NOW)
    timings = Timings(clock, Counters())
    assert measured(timings, Peers(clock, 0.25, 2.0), "ben") == "ben"
    round_trip, ahead = timings.latest["ben"]
    assert round_trip == pytest.approx(0.25) and ahead == pytest.approx(2.0)


@given(st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=200))
def test_each_is_measured_again_and_nobody_more_often_than_once_a_minute(connected: list[set[str]]):
    clock = SteppedClock(NOW)
    timings = Timings(clock, Counters())
    asked: dict[str, float] = {}
    for second, peers in enumerate(connected):
        clock.move_to(NOW + second)
        asked = {peer: at for peer, at in asked.items() if peer in peers}
        peer = measured(timings, Peers(clock, 0.0, 0.0), *sorted(peers))
        waiting = {each for each in peers if second - asked.get(each, -math.inf) >= EVERY_SECONDS}
        assert bool(peer) == bool(waiting)
        if peer:
            assert peer in waiting
            asked[peer] = second
        assert set(timings.latest) == set(asked)


@pytest.mark.parametrize("ahead", [None, math.nan, math.inf, -math.inf, 1e300, -2 * NOW])
def test_mallory_who_tells_no_time_has_no_timing_any_more(ahead: float | None) -> None:
    clock, counters = SteppedClock(NOW), Counters()
    timings = Timings(clock, counters)
    assert measured(timings, Peers(clock, 0.0, 1.0), "mallory", "ben") == "mallory"
    assert measured(timings, Peers(clock, 0.0, 1.0), "mallory", "ben") == "ben"
    clock.move_to(NOW + EVERY_SECONDS)
    assert measured(timings, Peers(clock, 0.0, ahead), "mallory", "ben") == "mallory"
    assert (set(timings.latest), counters.snapshot()["pings_unanswered"]) == ({"ben"}, 1)


def test_who_goes_while_it_is_asked_is_not_noted() -> None:
    clock = SteppedClock(NOW)
    timings = Timings(clock, Counters())
    assert timings.due(["ben"]) == "ben"
    assert timings.due([]) == ""
    asyncio.run(timings.measure(Peers(clock, 0.0, 0.0), "ben"))
    assert timings.latest == {}


@pytest.mark.processes
@INSTALLED
async def test_nodes_of_either_kind_measure_each_other(tmp_path: Path) -> None:
    made = []
    for name, kind in (("anna", HivemindTransport), ("ben", Libp2pTransport)):
        Identity.create(tmp_path / name)
        transport = ApartTransport(tmp_path / name, listen=LOOPBACK, over=kind)
        await transport.start()
        made.append(transport)
    anna, ben = made
    try:
        await ben.connect(anna.addresses()[0])
        for one, other in ((anna, ben), (ben, anna)):
            async with asyncio.timeout(120):
                while other.peer_id not in one.reach().timings:
                    await asyncio.sleep(0.1)
            timing = one.reach().timings[other.peer_id]
            assert isinstance(timing, Timing)
            # One machine, one clock.
            assert timing.round_trip > 0 and abs(timing.ahead) <= timing.round_trip / 2 + 0.01
    finally:
        await asyncio.gather(anna.close(), ben.close())
