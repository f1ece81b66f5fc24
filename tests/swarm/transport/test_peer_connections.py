"""Reconnection, logging and timing of peer connections, on a manual clock."""

import asyncio
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scale.network import SteppedClock
from swarm.common.counters import Counters
from swarm.transport import protobuf
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.addresses import place_of
from swarm.transport.libp2p.host import Connection, Connections
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.peer_connections import (
    AGAIN_SECONDS,
    CLOCK_FIELD,
    EVERY_SECONDS,
    PING,
    SETTLED_SECONDS,
    DialLog,
    DialReasons,
    Shortcuts,
    Timings,
)
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.transport.transport import ClockSkew, PeerUnreachable, Refused, Timing
from tests.swarm.network_parts import identity
from tests.swarm.transport.over import INSTALLED, LOOPBACK, key_of, started, until

RELAYED = ("/ip4/11.7.0.2/tcp/4001/p2p/rita/p2p-circuit/p2p/ben",)
DIRECT = ("/ip4/11.7.0.7/tcp/4001/p2p/ben",)


def test_settled_relayed_connection_is_retried_once_per_interval() -> None:
    clock = SteppedClock(0.0)
    shortcuts, direct, broken = Shortcuts(clock), Shortcuts(clock), Shortcuts(clock)
    assert shortcuts.due("anna", {"ben": RELAYED}) == broken.due("anna", {"ben": RELAYED}) == ""
    clock.move_to(SETTLED_SECONDS - 1)
    assert broken.due("anna", {}) == broken.due("anna", {"ben": RELAYED}) == ""
    clock.move_to(SETTLED_SECONDS)
    assert broken.due("anna", {"ben": RELAYED}) == "", "the connection must settle again"
    assert shortcuts.due("anna", {"ben": RELAYED}) == "ben"
    assert shortcuts.due("anna", {}) == ""
    for now in (SETTLED_SECONDS + 1, 3 * SETTLED_SECONDS, AGAIN_SECONDS):
        clock.move_to(now)
        assert shortcuts.due("anna", {"ben": RELAYED}) == "", "the next retry is not due yet"
        assert direct.due("anna", {"ben": (*DIRECT, *RELAYED), "bob": ()}) == ""
    clock.move_to(SETTLED_SECONDS + AGAIN_SECONDS)
    assert shortcuts.due("anna", {"ben": RELAYED}) == "ben"
    assert direct.due("anna", {"ben": (*DIRECT, *RELAYED), "bob": ()}) == ""


@given(st.sets(st.text("abc", min_size=1, max_size=3), min_size=2, max_size=8))
def test_only_one_end_reconnects_and_one_peer_at_a_time(peers: set[str]) -> None:
    clock = SteppedClock(0.0)
    ends = {peer: Shortcuts(clock) for peer in peers}
    dropped: list[frozenset[str]] = []
    for second in range(int(SETTLED_SECONDS) + len(peers)):
        clock.move_to(second)
        for own, shortcuts in ends.items():
            connected = dict.fromkeys(peers - {own}, RELAYED)
            if peer := shortcuts.due(own, connected):
                dropped.append(frozenset({own, peer}))
    pairs = {frozenset({a, b}) for a in peers for b in peers if a != b}
    assert sorted(map(sorted, dropped)) == sorted(map(sorted, pairs))


GONE = PeerUnreachable("no peer answers")


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_failing_address_is_logged_once_and_again_when_it_answers(caplog):
    log = DialLog()
    for _ in range(3):
        log.failed("here", GONE, reached=False)
    log.answered("here", "anna")
    log.answered("here", "anna")
    assert caplog.messages == [
        "no peer answers; the node keeps dialing",
        "peer anna answers again at here",
    ]
    log.failed("over", ClockSkew("4 s apart"), reached=False)
    log.failed("there", ClockSkew("4 s apart"), reached=True)
    levels = [each.levelno for each in caplog.records[2:]]
    assert levels == [logging.INFO, logging.WARNING], "a skew is a warning if other peers answered"


def test_dial_log_remembers_few_addresses(caplog, monkeypatch):
    monkeypatch.setattr("swarm.transport.peer_connections.REMEMBERED", 4)
    log = DialLog()
    for number in (*range(5), 0):
        log.failed(str(number), GONE, reached=False)
    assert len(caplog.messages) == 6


HOME = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
FAILED = "Connect failed. msg=failed to dial: failed to dial 12D3KooWQYhT: all dials failed\n"
REFUSED = Exception(
    f"{FAILED}  * [/ip4/127.0.0.1/tcp/4001] dial tcp4 127.0.0.1:4001: connect: connection refused"
)
PAUSED = Exception(f"{FAILED}  * [/ip4/127.0.0.1/tcp/4001] dial backoff")

CIRCUIT = f"{FAILED}  * [/x] error opening relay circuit:"
UNKNOWN = Exception("Connect failed. msg=failed to dial: failed to dial 12D3: no good addresses")
REASONS = {
    REFUSED: "connection refused",
    UNKNOWN: "the name is unknown, or no address of this kind can be dialed",
    Exception("Connect failed. msg=invalid peer id"): "invalid peer id",
    Exception(f"{CIRCUIT} NO_RESERVATION (204)"): (
        "the relay does not relay for it any more; join through another peer"
    ),
    Exception(f"{CIRCUIT} CONNECTION_FAILED (203)"): "the relay does not reach it",
    TimeoutError(): "TimeoutError",
    PAUSED: "not reached lately",
}


@pytest.mark.parametrize(("error", "reason"), REASONS.items())
def test_failed_dial_gets_a_one_line_reason(error, reason):
    assert DialReasons().of(HOME, error) == reason


def test_backoff_reports_the_reason_from_the_last_attempt() -> None:
    reasons = DialReasons()
    reasons.of(HOME, REFUSED)
    assert reasons.of(HOME, PAUSED) == "connection refused"
    assert reasons.of(HOME + "2", PAUSED) == "not reached lately"
    reasons.forget(HOME)
    assert reasons.of(HOME, PAUSED) == "not reached lately"


NOW = 1_700_000_000.0


class Peers:
    """A node whose peers answer after some seconds, each by its own clock."""

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


def test_ping_measures_round_trip_and_clock_offset_for_a_staying_peer() -> None:
    clock = SteppedClock(NOW)
    timings = Timings(clock, Counters())
    assert measured(timings, Peers(clock, 0.25, 2.0), "ben") == "ben"
    round_trip, ahead = timings.latest["ben"]
    assert round_trip == pytest.approx(0.25) and ahead == pytest.approx(2.0)
    timings = Timings(clock, Counters())
    assert (timings.due(["ben"]), timings.due([])) == ("ben", "")
    asyncio.run(timings.measure(Peers(clock, 0.0, 0.0), "ben"))
    assert timings.latest == {}, "a peer that left has no timing"


@given(st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=200))
def test_each_peer_is_measured_again_once_per_minute(connected: list[set[str]]):
    clock = SteppedClock(NOW)
    timings = Timings(clock, Counters())
    times: dict[str, float] = {}
    for second, peers in enumerate(connected):
        clock.move_to(NOW + second)
        times = {peer: at for peer, at in times.items() if peer in peers}
        peer = measured(timings, Peers(clock, 0.0, 0.0), *sorted(peers))
        waiting = {each for each in peers if second - times.get(each, -math.inf) >= EVERY_SECONDS}
        assert bool(peer) == bool(waiting)
        if peer:
            assert peer in waiting
            times[peer] = second
        assert set(timings.latest) == set(times)


@pytest.mark.parametrize("ahead", [None, math.nan, math.inf, -math.inf, 1e300, -2 * NOW])
def test_invalid_clock_answer_removes_the_peer_timing(ahead: float | None) -> None:
    clock, counters = SteppedClock(NOW), Counters()
    timings = Timings(clock, counters)
    assert measured(timings, Peers(clock, 0.0, 1.0), "mallory", "ben") == "mallory"
    assert measured(timings, Peers(clock, 0.0, 1.0), "mallory", "ben") == "ben"
    clock.move_to(NOW + EVERY_SECONDS)
    assert measured(timings, Peers(clock, 0.0, ahead), "mallory", "ben") == "mallory"
    assert (set(timings.latest), counters.snapshot()["pings_unanswered"]) == ({"ben"}, 1)


def connection(peer: str, address: str, *, dialed: bool = False) -> Connection:
    return Connection(SimpleNamespace(peer=peer), place_of(address), dialed=dialed)


def test_the_best_connection_is_the_latest_direct_one() -> None:
    connections = Connections()
    with pytest.raises(LookupError, match="anna"):
        connections.best("anna")
    relay = f"/p2p/{identity('rita').peer_id}/p2p-circuit"
    first, second = (connection("anna", f"/ip4/10.0.0.{n}/tcp/1") for n in (1, 2))
    relayed = connection("anna", f"/ip4/10.0.0.3/tcp/1{relay}")
    for each in (first, second, relayed):
        connections.add(each)
    assert connections.best("anna") is second and len(connections) == 3
    for each in (second, second, first):
        connections.remove(each)
    assert connections.best("anna") is relayed
    connections.remove(relayed)
    assert not connections.places() and not len(connections)


def test_eviction_picks_an_incoming_connection_from_the_busiest_host() -> None:
    connections = Connections()
    dialed = [connection("carl", "/ip4/10.0.0.9/tcp/1", dialed=True) for _ in range(5)]
    incoming = [connection(str(n), f"/ip4/10.0.0.{1 + n // 3}/tcp/{n + 1}") for n in range(4)]
    for each in dialed + incoming:
        connections.add(each)
    assert connections.most_common() is incoming[0]


@pytest.mark.processes
@INSTALLED
async def test_both_backends_measure_each_others_clock(tmp_path: Path) -> None:
    kinds = (("anna", HivemindTransport), ("ben", Libp2pTransport))
    annas, bens = (
        started(SubprocessTransport(key_of(tmp_path, name), listen=LOOPBACK, over=kind))
        for name, kind in kinds
    )
    async with annas as anna, bens as ben:
        await ben.connect(anna.addresses()[0])
        for one, other in ((anna, ben), (ben, anna)):
            await until(lambda a=one, b=other: b.peer_id in a.reach().timings)
            timing = one.reach().timings[other.peer_id]
            assert isinstance(timing, Timing)
            # Both nodes share the machine's clock.
            assert timing.round_trip > 0 and abs(timing.ahead) <= timing.round_trip / 2 + 0.01
