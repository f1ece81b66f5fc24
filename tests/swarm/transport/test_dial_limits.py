"""Dials at addresses that peers claim: few for each host, and none where no peer listens."""

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


async def tried(limits: DialLimits, host: str = HOST, port: int = 4001, peer: str = "sid") -> str:
    try:
        return str(await limits.dial(peer, host, port, silent))
    except DialRefused:
        return "refused"
    except ConnectionError:
        return "dialed"


@pytest.fixture
def limits(clock: VirtualClock) -> DialLimits:
    return DialLimits(clock, Counters())


async def test_a_host_is_dialed_four_times_a_minute_over_all_peers_and_ports(limits, clock):
    names = [HOST, f"::ffff:{HOST}"]
    dials = [tried(limits, names[n % 2], 4001 + n, f"key {n}") for n in range(20)]
    assert sorted(await asyncio.gather(*dials)) == ["dialed"] * MOST_DIALS + ["refused"] * 16
    assert await tried(limits, "192.0.2.8") == "dialed", "another host"
    loopback = [tried(limits, f"127.0.0.{n}") for n in range(1, 9)]
    assert (await asyncio.gather(*loopback)).count("dialed") == MOST_DIALS, "all this machine"
    await clock.advance(WINDOW_SECONDS)
    assert await tried(limits) == "dialed"


@pytest.mark.parametrize(
    ("host", "port"),
    [(HOST, 700), (HOST, 0), ("0.0.0.0", 4001), ("::", 4001), ("224.0.0.1", 4001), ("x.org", 4001)],
)
async def test_no_claim_leads_to_a_low_port_or_to_no_machine_in_particular(limits, host, port):
    assert await tried(limits, host, port) == "refused"


async def test_peers_that_answer_take_no_turn_and_those_who_wait_get_theirs(limits):
    many = (limits.dial(f"peer {n}", HOST, 4001 + n, answers) for n in range(50))
    assert await asyncio.gather(*many) == [True] * 50
    for _ in range(MOST_DIALS):
        assert await tried(limits) == "dialed"
    assert await tried(limits) == "refused"
    assert await limits.dial("peer 1", HOST, 4002, answers), "it has answered there before"
    assert limits.answered(f"/ip4/{HOST}/tcp/4002/p2p/peer 1")
    through = f"/ip4/{HOST}/tcp/4002/p2p/peer 1/p2p-circuit/p2p/anna"
    assert limits.answered(through), "a relay's address"
    assert not limits.answered(f"/ip4/{HOST}/tcp/4003/p2p/peer 1")


def test_a_name_that_answered_vouches_for_no_other(limits) -> None:
    limits.note("/dns4/seed.example/tcp/4001/p2p/peer 1")
    assert limits.answered("/dns4/seed.example/tcp/4001/p2p/peer 1")
    assert not limits.answered("/dns4/third.example/tcp/4001/p2p/peer 1")


async def test_a_peer_that_was_connected_already_has_proved_nothing(limits):
    async def connected() -> bool:
        return False

    for _ in range(MOST_DIALS):
        assert not await limits.dial("mallory", HOST, 4001, connected)
    assert await tried(limits) == "refused"
