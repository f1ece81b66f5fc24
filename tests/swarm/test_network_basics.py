"""Basic parts of the network: clocks, counters, budgets, redials, ports, caches."""

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.virtual_clock import VirtualClock
from swarm.common.clock import within
from swarm.common.fair_limits import BURST_SECONDS, KEPT, PEER_SHARE, ByteBudget, Reputations
from swarm.transport.node import PortTaken, check_ports, sweep_sockets
from swarm.transport.peer_connections import (
    AT_A_TIME,
    LONGEST_FOR_BOOTSTRAP,
    LOST_SECONDS,
    MAX_ADDRESSES,
    PeerCache,
    Redial,
)
from tests.swarm.experience_parts import wait
from tests.swarm.network_parts import identity


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_sleepers_wake_by_time_and_then_by_arrival(naps: list[int]) -> None:
    async def scenario() -> list[tuple[float, int]]:
        clock, wakes = VirtualClock(0.0), []

        async def sleeper(number: int, seconds: int) -> None:
            await clock.sleep(seconds)
            wakes.append((clock.time(), number))

        tasks = [asyncio.ensure_future(sleeper(n, s)) for n, s in enumerate(naps)]
        await clock.advance(50)
        await asyncio.gather(*tasks)
        return wakes

    assert asyncio.run(scenario()) == sorted((float(s), n) for n, s in enumerate(naps))


async def test_repeated_sleeps_all_wake_within_one_advance() -> None:
    clock, ticks = VirtualClock(0.0), []

    async def tick() -> None:
        while True:
            await clock.sleep(10)
            ticks.append(clock.time())

    task = asyncio.ensure_future(tick())
    await clock.advance(35)
    task.cancel()
    assert ticks == [10.0, 20.0, 30.0]


async def test_work_is_cancelled_after_its_timeout(clock) -> None:
    work = asyncio.ensure_future(clock.sleep(100))
    limited = asyncio.ensure_future(within(clock, 5, work))
    await clock.advance(6)
    with pytest.raises(TimeoutError):
        await limited
    assert work.cancelled()


def test_counters_sum_across_threads_and_include_labels(counters):
    def add() -> None:
        for _ in range(1000):
            counters.add("refused", reason="bad_signature", author="mallory")

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(add)
    counters.add("bytes", 2.5)
    refused = "refused{author=mallory,reason=bad_signature}"
    assert counters.snapshot() == {"bytes": 2.5, refused: 4000.0}


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 50_000)), max_size=60))
def test_no_peer_gets_more_than_its_share_and_one_burst(asked: list[tuple[float, int]]) -> None:
    clock = VirtualClock()
    rate = 100_000.0
    budget = ByteBudget(rate, 50_000, clock, Reputations(clock))
    start, served = clock.time(), 0
    for pause, size in asked:
        wait(clock, pause)
        served += size * budget.take("flo", size)
    assert served <= rate * PEER_SHARE * ((clock.time() - start) + BURST_SECONDS) + 1


@given(st.integers(1, 40), st.integers(256, 70_000))
def test_greedy_peers_leave_bandwidth_for_a_new_peer(peers: int, size: int) -> None:
    clock = VirtualClock()
    budget = ByteBudget(1 << 20, 1 << 20, clock, Reputations(clock))
    for _ in range(40):
        wait(clock, 0.5)
        for n in range(peers):
            for _ in range(40):
                if not budget.take(f"flo {n}", size):
                    break
    assert all(budget.take("ben", 1024) for _ in range(20))


def test_new_keys_leave_known_peers_their_bandwidth_share(clock):
    reputations = Reputations(clock)
    friend = identity("friend")
    reputations.use(lambda author: float(author == friend.author))
    budget = ByteBudget(1 << 20, 1 << 20, clock, reputations)
    for n in range(5000):
        while budget.take(f"sybil {n}", 4096):
            pass
    assert all(budget.take(friend.peer_id, 4096) for _ in range(100))
    budget = ByteBudget(100_000, 50_000, clock, Reputations(clock))
    served = sum(budget.take(f"peer {n}", 50_000) for n in range(100))
    assert served == 100_000 * BURST_SECONDS * (1 - KEPT) // 50_000


def test_budget_allows_the_largest_answer_and_repays_debt_first(clock):
    budget = ByteBudget(1.0, 50_000, clock, Reputations(clock))
    assert budget.take("ben", 50_000)
    assert not budget.take("ben", 50_000)
    wait(clock, BURST_SECONDS)
    assert budget.take("ben", 50_000)
    budget = ByteBudget(100_000, 50_000, clock, Reputations(clock))
    assert budget.take("flo", 1024)
    budget.owe("flo", 400_000)
    assert not budget.has_room("flo")
    wait(clock, 30)
    assert budget.take("flo", 1024)


def test_missing_bootstrap_peer_is_redialed_with_backoff(clock) -> None:
    redial = Redial(["/ip4/1.2.3.4/tcp/1/p2p/ben"], [], clock)
    dialed = []
    for second in range(300):
        if redial.due(["cleo"]):
            dialed.append(second)
        wait(clock, 1)
    assert (dialed[:5], dialed[-1] - dialed[-2]) == ([0, 1, 3, 7, 15], LONGEST_FOR_BOOTSTRAP)


def test_lost_peer_is_redialed_immediately_and_cached_peers_after_a_wait(clock):
    redial = Redial(["/ip4/1.2.3.4/tcp/1/p2p/ben"], [], clock)
    assert redial.due(["ben"]) == ()
    assert redial.due(["cleo"]) == ("/ip4/1.2.3.4/tcp/1/p2p/ben",)
    redial = Redial(["/a/p2p/ben"], ["/b/p2p/cleo", "/a/p2p/ben"], clock)
    assert redial.due([]) == ("/a/p2p/ben", "/b/p2p/cleo")
    redial = Redial(["/a/p2p/ben"], ["/b/p2p/cleo"], clock)
    assert redial.due(["cleo", "ben"]) == ()
    assert redial.due([]) == ("/a/p2p/ben",), "a bootstrap peer is dialed immediately"
    wait(clock, LOST_SECONDS)
    assert "/b/p2p/cleo" in redial.due([])


def test_missing_cached_peers_are_redialed_in_turn_a_few_at_a_time(clock) -> None:
    cached = [f"/{n}/p2p/peer-{n}" for n in range(40)]
    redial = Redial([], cached, clock)
    dialed: list[str] = []
    for _ in range(5):
        due = redial.due(["peer-0"])
        assert len(due) <= AT_A_TIME
        dialed += due
        wait(clock, 0.1)
    assert sorted(dialed) == sorted(cached[1:])
    for _ in range(300):
        redial.due(["peer-0"])
        wait(clock, 1)
    minute: list[str] = []
    for _ in range(60):
        minute += redial.due(["peer-0"])
        wait(clock, 1)
    assert sorted(minute) == sorted(cached[1:]), "each peer is finally dialed once per minute"


def test_redial_uses_the_latest_peers_and_keeps_their_pauses(clock) -> None:
    redial = Redial([], ["/a/p2p/ben", "/b/p2p/cleo"], clock)
    assert len(redial.due(["eli"])) == 2
    redial.remember(["/b/p2p/cleo", "/c/p2p/dora"])
    assert redial.due(["eli"]) == ("/c/p2p/dora",)
    wait(clock, 1)
    assert redial.due(["eli"]) == ("/b/p2p/cleo", "/c/p2p/dora")


def addr(name: object) -> str:
    return f"/dns4/{name}/tcp/4001/p2p/{name}"


def test_new_peer_enters_the_cache_immediately_and_evicts_no_other(path):
    cache = PeerCache(path)
    assert cache.meet([addr("ben")])
    assert not cache.meet([addr("ben")])
    assert PeerCache(path).load() == (addr("ben"),)
    cache.meet(addr(n) for n in range(3 * MAX_ADDRESSES))
    assert (len(cache.addresses), cache.addresses[0]) == (MAX_ADDRESSES, addr("ben"))
    assert not cache.meet([addr("cleo")])


def test_the_peer_cache_keeps_the_latest_peers(path):
    cache = PeerCache(path)
    cache.remember([addr(n) for n in range(MAX_ADDRESSES)])
    cache.remember([addr("new")])
    loaded = PeerCache(path).load()
    assert (len(loaded), loaded[:2]) == (MAX_ADDRESSES, (addr("new"), addr(0)))


@pytest.mark.parametrize("content", [b"no address\n", b"/ok\n\xff\xfe", b"/long" * 20_000])
def test_a_damaged_peer_cache_is_empty(path, content):
    path.write_bytes(content)
    assert PeerCache(path).load() == ()


def test_port_check_refuses_used_ports_and_foreign_addresses() -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            check_ports([f"/ip4/127.0.0.1/tcp/{port}"])
    check_ports([f"/ip4/127.0.0.1/tcp/{port}", "/ip4/0.0.0.0/tcp/0"])
    with pytest.raises(PortTaken, match=r"0\.0\.0\.0"):
        check_ports(["/ip4/192.0.2.1/tcp/31337"])


def test_sweep_removes_stale_sockets_and_keeps_live_and_new_ones(tmp_path: Path) -> None:
    live, dead, young = (tmp_path / f"hivemind-p2pd-{name}.sock" for name in ("a", "b", "c"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(live))
    listener.listen()
    for path in (dead, young):
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(path))
    for path in (live, dead):
        os.utime(path, (0, 0))
    assert sweep_sockets(tmp_path) == 1
    assert sorted(tmp_path.iterdir()) == [live, young]
    listener.close()
