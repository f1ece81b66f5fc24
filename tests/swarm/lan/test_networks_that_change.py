"""A machine that leaves its network and joins another one, like a laptop."""

import asyncio
import logging
from ipaddress import ip_interface

import pytest

from experiments.memory_transport import MemoryNetwork, MemoryTransport
from swarm import lan as module
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.lan import Discovery
from swarm.sightings import Interface
from tests.swarm.network_parts import identity
from tests.swarm.transport.over import until

PATIENCE = 300.0
LISTEN = ("/ip4/0.0.0.0/tcp/31337",)
HOME, CAFE = (ip_interface("127.0.0.1/8"),), (ip_interface("127.0.0.1/16"),)


def member(name: str, counters: Counters) -> Discovery:
    network = MemoryNetwork(SystemClock())
    transport = MemoryTransport(network, identity(name).peer_id, counters)
    return Discovery(transport, LISTEN, SystemClock(), counters)


@pytest.mark.processes
async def test_node_warns_once_without_a_network_and_is_found_on_the_next(monkeypatch, caplog):
    current: list[tuple[Interface, ...]] = [HOME]
    monkeypatch.setattr(module, "networks", lambda listen: current[0])
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    counters = Counters()
    anna = member("anna", counters)
    running = asyncio.ensure_future(anna.run(bytes(32)))
    await asyncio.sleep(0.3)
    current[0] = ()
    await until(lambda: counters.snapshot().get("lan_failed", 0) >= 3, PATIENCE)
    current[0] = CAFE
    bert = member("bert", Counters())
    async with asyncio.timeout(PATIENCE):
        while not await bert.look():
            await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await anna.close()
    await bert.close()
    await bert.close()
    lines = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 1 and "connect it to a network" in lines[0]
    assert any("on other networks" in each.message for each in caplog.records)
