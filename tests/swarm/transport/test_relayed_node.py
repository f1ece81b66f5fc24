"""A daemon that others reach through a relay only, as a client of the hash table."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.node import NodeSettings, Role
from swarm.transport.transport import PeerUnreachable, is_relayed

pytestmark = pytest.mark.processes

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
PATIENCE = 300.0
ROOT = Path(__file__).parents[3]
PUBLIC = "ip link set lo up && ip address add 8.8.4.4/32 dev lo"
OWN_NETWORK = ("unshare", "--map-root-user", "--net", "sh", "-c", f'{PUBLIC} && exec "$@"', "sh")


@asynccontextmanager
async def node(folder: Path, name: str, role: Role, *relays: str) -> AsyncIterator[HivemindNode]:
    key = folder / f"{name}.key"
    Identity.create(key)
    settings = NodeSettings(key, LOOPBACK, (), 60.0, role, relays)
    started = await HivemindNode.start(settings, Counters())
    try:
        yield started
    finally:
        await started.stop()


async def dialled(visitor: HivemindNode, address: str) -> tuple[str, float]:
    """Dial until a relay has taken its place."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await visitor.connect(address)
        except PeerUnreachable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def test_a_member_behind_a_relay_is_dialled_tells_its_clock_and_is_nobodys_neighbour(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        rita = await stack.enter_async_context(node(tmp_path, "rita", "public"))
        anna = await stack.enter_async_context(node(tmp_path, "anna", "private", rita.addresses[0]))
        ben = await stack.enter_async_context(node(tmp_path, "ben", "public"))
        peer, clock = await dialled(ben, f"{rita.addresses[0]}/p2p-circuit/p2p/{anna.peer_id}")
        assert peer == anna.peer_id
        assert abs(clock - time.time()) < 60.0
        (address,) = (await ben.connected())[anna.peer_id][:1]
        assert is_relayed(address)
        neighbours = {str(each) for each in ben.dht.protocol.routing_table.peer_id_to_uid}
        assert anna.peer_id not in neighbours
        await ben.connect(rita.addresses[0])
        neighbours = {str(each) for each in ben.dht.protocol.routing_table.peer_id_to_uid}
        assert rita.peer_id in neighbours, "who can be dialled is one"


async def test_a_relay_that_does_not_relay_for_a_member_is_told_in_one_line(tmp_path: Path) -> None:
    async with node(tmp_path, "rita", "public") as rita, node(tmp_path, "ben", "public") as ben:
        nobody = Identity.generate().peer_id
        with pytest.raises(PeerUnreachable, match="join through another peer") as told:
            await ben.connect(f"{rita.addresses[0]}/p2p-circuit/p2p/{nobody}")
        assert "\n" not in str(told.value)


async def test_a_client_without_neighbours_stores_nothing_and_says_so(tmp_path: Path) -> None:
    async with node(tmp_path, "anna", "private") as anna:
        anna.gate.check = lambda record: True
        assert not await anna.store("key", b"subkey", b"value", time.time() + 60.0)


def test_a_node_at_a_public_address_that_nobody_can_dial_runs_before_it_is_relayed(tmp_path: Path):
    tried = shutil.which("unshare") and subprocess.run([*OWN_NETWORK, "true"], capture_output=True)
    if not tried or tried.returncode:
        pytest.skip("no network of its own can be had here")
    command = [*OWN_NETWORK, sys.executable, "-m", "tests.swarm.transport.unseen"]
    run = subprocess.run(
        [*command, tmp_path / "anna"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.stdout.splitlines() == ["()", "()"], run.stderr
