"""Bounds of stores, pauses and flood counts against many Sybil identities."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.collector import TRIES, PullAllowance
from swarm.common.counters import Counters
from swarm.common.fair_limits import MAX_REMEMBERED, Backoff, Bounded, holder_of, lot, rank_of
from swarm.transport.peer_connections import MAX_ADDRESSES, PeerCache
from swarm.transport.request_limits import (
    FADE_SECONDS,
    FLOOD_PAUSE,
    MOST_REFUSALS,
    FloodGuard,
    PeerLimits,
)
from tests.swarm.experience_parts import wait


def by_lot(limit: int, known: frozenset[str] = frozenset()) -> Bounded[str, int]:
    return Bounded(limit, lambda k: rank_of(lot(b"secret", k.encode()), 0.5 * (k in known)))


@given(st.permutations([f"key {n}" for n in range(40)]), st.integers(1, 20))
def test_kept_keys_depend_on_neither_order_nor_repetition(order: list[str], n: int) -> None:
    once, repeated = by_lot(n), by_lot(n)
    for key in order:
        once.put(key, 1)
    for key in sorted(order) * 3:
        repeated.put(key, 1)
    assert (set(once), len(once)) == (set(repeated), n)


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=300), st.integers(1, 16))
def test_bounded_respects_its_limit_and_finds_its_worst_key(steps, limit):
    store, all_put = by_lot(limit), set()
    for number, put in steps:
        key = str(number)
        if put:
            evicted = store.put(key, number)
            assert evicted is None or evicted not in store
        else:
            store.pop(key)
        all_put.add(key)
        assert len(store) <= limit
        assert store.worst() is None or store.rank(store.worst()) == max(map(store.rank, store))


@pytest.mark.parametrize("position", [0, 2_000, 4_000])
def test_sybil_keys_never_evict_a_key_with_reputation(position):
    store = by_lot(64, frozenset({"ben"}))
    keys = [f"sybil {n}" for n in range(4_000)]
    for key in (*keys[:position], "ben", *keys[position:]):
        store.put(key, 0)
    assert "ben" in store


def test_unknown_peer_has_the_same_chance_as_each_sybil() -> None:
    hits = 0
    for trial in range(200):
        store: Bounded[bytes, None] = Bounded(50, lambda k, t=trial: lot(bytes([t]), k))
        store.put(b"ben", None)
        for n in range(99):
            store.put(b"sybil %d" % n, None)
        hits += b"ben" in store
    assert 70 < hits < 130


def test_rank_changes_on_few_keys_use_little_memory() -> None:
    ranks = iter(range(8000))
    tracemalloc.start()
    try:
        store: Bounded[int, None] = Bounded(4096, lambda key: float(next(ranks)))
        for number in range(8000):
            store.put(number % 4, None)
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.worst() == 3
    assert memory < 64 << 10


def test_backoff_doubles_up_to_a_maximum_and_success_resets_it(clock) -> None:
    backoff: Backoff[str] = Backoff(clock, first=1.0, longest=10.0, free=1)
    assert [backoff.failed("sid") for _ in range(6)] == [0, 1, 2, 4, 8, 10]
    assert backoff.waits("sid")
    wait(clock, 10)
    assert not backoff.waits("sid")
    assert backoff.failed("sid") == 10
    backoff.succeeded("sid")
    assert not backoff.waits("sid")
    assert backoff.failed("sid") == 0
    wait(clock, 20)
    assert backoff.failed("sid") == 0, "failures decay"
    for number in range(MAX_REMEMBERED + 100):
        backoff.failed(str(number))
    assert len(backoff) == MAX_REMEMBERED


def test_flooding_peer_is_excluded_for_increasing_periods(clock):
    flood = FloodGuard(clock)
    assert not any(flood.refused("ben") or wait(clock, FADE_SECONDS) for _ in range(300))
    assert [flood.refused("flo") for _ in range(int(MOST_REFUSALS))].count(True) == 1
    peer_limits, out = PeerLimits(clock, Counters()), []
    peer_limits.disconnect = out.append
    peer_limits.refused("ben")
    assert peer_limits.accepts("ben")
    for pause in (FLOOD_PAUSE, 2 * FLOOD_PAUSE, 4 * FLOOD_PAUSE):
        while not peer_limits.excluded("flo"):
            peer_limits.refused("flo")
        assert out.pop() == "flo" and not out and not peer_limits.accepts("flo")
        wait(clock, 0.9 * pause)
        peer_limits.refused("flo")
        assert out.pop() == "flo", "the first early request disconnects"
        wait(clock, 0.2 * pause)
        assert peer_limits.accepts("flo")
        peer_limits.refused("flo")
        assert not out
    assert peer_limits.accepts("ben")


def test_unknown_authors_leave_25_percent_to_useful_authors() -> None:
    allowance = PullAllowance(16, 8)
    allowance.begin()
    useful = {b"ben", b"cleo", b"dora", b"eli"}
    assert sum(allowance.take(b"sid %d" % n, useful) for n in range(60)) == 6
    assert sum(allowance.take(author, useful) for author in useful) == 2
    alone = PullAllowance(16, 8)
    alone.begin()
    assert sum(alone.take(b"sid %d" % n, set()) for n in range(60)) == 8


def test_failed_pulls_are_refunded_up_to_a_limit() -> None:
    allowance = PullAllowance(16, 8)
    allowance.begin()
    started = 0
    for n in range(1000):
        if allowance.take(b"sid %d" % n, set()):
            started += 1
            allowance.end(b"sid %d" % n, delivered=False)
    assert started == TRIES * 16
    assert allowance.take(b"ben", {b"ben"})


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=200))
def test_delivered_pulls_stay_within_the_slot_limit(steps: list[tuple[int, bool]]) -> None:
    allowance, running, delivered = PullAllowance(5, 3), set(), 0
    useful = {bytes([n]) for n in range(5)}
    allowance.begin()
    for number, good in steps:
        author = bytes([number])
        if author in running:
            running.remove(author)
            allowance.end(author, delivered=good)
            delivered += good
        elif allowance.take(author, useful):
            running.add(author)
        assert len(running) <= 3
        assert delivered + len(running) <= 5


def test_sybils_and_peers_with_many_addresses_do_not_fill_the_peer_cache():
    cache = PeerCache(None)
    cached = [f"/ip4/10.0.0.{n}/p2p/met{n}" for n in range(64)]
    cache.remember(cached, lambda peer: float(peer == "met63"))
    for crowd in range(20):
        sybils = [f"/ip4/10.1.{crowd}.{n}/p2p/sybil{crowd}x{n}" for n in range(500)]
        cache.remember(sybils, lambda peer: float(peer == "met63"))
        if crowd == 0:
            assert len(set(cache.addresses) & set(cached)) >= MAX_ADDRESSES // 2
    assert cache.addresses[0] == cached[63]
    cache = PeerCache(None)
    cache.remember(f"/ip4/10.0.0.{n}/p2p/flo" for n in range(200))
    assert len(cache.addresses) == 4


@pytest.mark.parametrize(
    ("host", "holder"),
    [
        *(("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7")),
        *(("2606:4700::7", "2606:4700::/64"), ("fe80::7%eth0", "fe80::7")),
        *(("127.0.0.2", "this machine"), ("::1", "this machine"), ("::", ""), ("x.org", "")),
    ],
)
def test_ipv6_network_counts_as_one_machine(host: str, holder: str) -> None:
    assert holder_of(host) == holder
