"""Dials to claimed addresses: few per host, and none to invalid addresses."""

import asyncio

import pytest

from experiments.virtual_clock import VirtualClock
from swarm.common.counters import Counters
from swarm.transport.dial_limits import MOST_DIALS, WINDOW_SECONDS, DialLimits, DialRefused

HOST = "192.0.2.7"


async def silent() -> bool:
    raise ConnectionError("connection refused")


async def answers() -> bool:
    return True


async def attempt(limits: DialLimits, host: str = HOST, port: int = 4001, peer: str = "sid") -> str:
    try:
        return str(await limits.dial(peer, host, port, silent))
    except DialRefused:
        return "refused"
    except ConnectionError:
        return "dialed"


@pytest.fixture
def limits(clock: VirtualClock) -> DialLimits:
    return DialLimits(clock, Counters())


async def test_host_is_dialed_4_times_per_minute_over_all_peers_and_ports(limits, clock):
    names = [HOST, f"::ffff:{HOST}"]
    dials = [attempt(limits, names[n % 2], 4001 + n, f"key {n}") for n in range(20)]
    assert sorted(await asyncio.gather(*dials)) == ["dialed"] * MOST_DIALS + ["refused"] * 16
    assert await attempt(limits, "192.0.2.8") == "dialed", "another host has its own limit"
    for one in ("127.0.0.{}", "2606:4700::{}"):  # this machine, and an IPv6 network
        several = [attempt(limits, one.format(n)) for n in range(1, 9)]
        assert (await asyncio.gather(*several)).count("dialed") == MOST_DIALS
    await clock.advance(WINDOW_SECONDS)
    assert await attempt(limits) == "dialed"


async def test_many_silent_hosts_neither_block_others_nor_reset_limits(limits, monkeypatch):
    monkeypatch.setattr("swarm.transport.dial_limits.MAX_HOSTS", 4)
    for number in range(9):
        assert await attempt(limits, f"198.51.100.{number}") == "dialed"
    dials = [await attempt(limits, "198.51.100.6") for _ in range(MOST_DIALS)]
    assert dials == ["dialed"] * (MOST_DIALS - 1) + ["refused"]
    for number in range(9, 12):
        assert await attempt(limits, f"198.51.100.{number}") == "dialed"
    assert await attempt(limits, "198.51.100.6") == "refused"


@pytest.mark.parametrize(
    ("host", "port"),
    [(HOST, 700), (HOST, 0), ("0.0.0.0", 4001), ("::", 4001), ("224.0.0.1", 4001), ("x.org", 4001)],
)
async def test_low_ports_and_nonspecific_hosts_are_not_dialed(limits, host, port):
    assert await attempt(limits, host, port) == "refused"


async def test_answered_dials_do_not_consume_the_dial_limit(limits):
    many = (limits.dial(f"peer {n}", HOST, 4001 + n, answers) for n in range(50))
    assert await asyncio.gather(*many) == [True] * 50
    for _ in range(MOST_DIALS):
        assert await attempt(limits) == "dialed"
    assert await attempt(limits) == "refused"
    assert await limits.dial("peer 1", HOST, 4002, answers), "an answering address has no limit"
    assert limits.answered(f"/ip4/{HOST}/tcp/4002/p2p/peer 1")
    relayed = f"/ip4/{HOST}/tcp/4002/p2p/peer 1/p2p-circuit/p2p/anna"
    assert limits.answered(relayed), "a relayed address counts as its relay's"
    assert not limits.answered(f"/ip4/{HOST}/tcp/4003/p2p/peer 1")


def test_answered_name_does_not_verify_another(limits) -> None:
    limits.note("/dns4/seed.example/tcp/4001/p2p/peer 1")
    assert limits.answered("/dns4/seed.example/tcp/4001/p2p/peer 1")
    assert not limits.answered("/dns4/third.example/tcp/4001/p2p/peer 1")


async def test_dial_to_a_connected_peer_counts_against_the_limit(limits):
    async def connected() -> bool:
        return False

    for _ in range(MOST_DIALS):
        assert not await limits.dial("mallory", HOST, 4001, connected)
    assert await attempt(limits) == "refused"
