"""Streams use the connections that work, even if others fail."""

import asyncio
import errno
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from swarm.common.counters import Counters
from swarm.transport.libp2p.addresses import HostPort
from swarm.transport.libp2p.bridge import TrioThread
from swarm.transport.libp2p.host import Host
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.transport import PeerUnreachable, TransportError
from tests.swarm.network_parts import identity
from tests.swarm.transport.mallory import DEAF, Mallory, against_anna
from tests.swarm.transport.over import ECHO, key_of, started, until
from tests.swarm.transport.third_party import HOST, third_party

pytestmark = [pytest.mark.processes, pytest.mark.alone("libp2p")]


async def test_disconnected_peer_is_redialed_while_its_stream_is_served(tmp_path):
    async with against_anna(tmp_path) as (anna, ben, _):
        served = asyncio.Event()

        async def deaf(peer: str, reader: asyncio.StreamReader, writer: object) -> None:
            await reader.read()
            served.set()
            await asyncio.sleep(1e6)

        await anna.node.add_handler(DEAF, deaf)
        await ben.connect(anna.addresses()[0])
        _, writer = await ben.node.open_stream(anna.peer_id, DEAF)
        writer.close()
        await asyncio.wait_for(served.wait(), 30)
        (ended,) = await anna.node.seen_at(ben.peer_id)
        await ben.node.disconnect(anna.peer_id)
        async with asyncio.timeout(120):
            while ended in await anna.node.seen_at(ben.peer_id):
                await asyncio.sleep(0.05)
        assert await anna.request(ben.peer_id, ECHO, b"again", limit=9, deadline=60) == b"again"


async def test_stream_closes_if_its_opening_is_cancelled(tmp_path: Path) -> None:
    async with against_anna(tmp_path) as (anna, ben, _):
        ended = asyncio.Event()

        async def deaf(peer: str, reader: asyncio.StreamReader, writer: object) -> None:
            with suppress(ConnectionError):
                await reader.read()
            ended.set()

        await anna.node.add_handler(DEAF, deaf)
        await ben.connect(anna.addresses()[0])
        opening = asyncio.create_task(ben.node.open_stream(anna.peer_id, DEAF))
        await asyncio.sleep(0)
        time.sleep(0.5)  # The stream opens before this loop is notified.
        opening.cancel()
        async with asyncio.timeout(30):
            await ended.wait()


async def test_a_request_uses_another_connection_if_the_latest_is_gone(tmp_path: Path) -> None:
    async with against_anna(tmp_path) as (anna, ben, thread):
        await ben.connect(anna.addresses()[0])
        for _ in range(8):
            twin = Mallory(ben.addresses()[0])
            twin.identity = identity("anna")
            await thread.call(twin.dial)
            async with asyncio.timeout(120):
                while len(await ben.node.seen_at(anna.peer_id)) < 2:
                    await asyncio.sleep(0.02)
            ben.node.stand_still(0.2)
            await thread.call(twin.break_off)
            assert await ben.request(anna.peer_id, ECHO, b"on", limit=9, deadline=60) == b"on"


async def test_connection_survives_unsupported_stream_protocols(tmp_path: Path) -> None:
    async with against_anna(tmp_path) as (anna, ben, _):
        await ben.connect(anna.addresses()[0])
        before = await anna.node.seen_at(ben.peer_id)
        for _ in range(20):
            calls = (
                ben.request(anna.peer_id, "/unheard-of/1", bytes(size), limit=9, deadline=60)
                for size in (1, 100, 100_000, 600_000)
            )
            for failed in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(failed, TransportError)
        assert await ben.request(anna.peer_id, ECHO, b"on", limit=9, deadline=60) == b"on"
        assert await anna.node.seen_at(ben.peer_id) == before


async def test_host_updates_its_address_after_a_network_change(tmp_path, monkeypatch):
    card = SimpleNamespace(family=socket.AF_INET, address="127.0.0.2")
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"card": [card]})
    key, everywhere = key_of(tmp_path, "anna"), ["/ip4/0.0.0.0/tcp/0"]
    async with started(Libp2pTransport(key, listen=everywhere)) as anna:
        (before,) = anna.addresses()
        card.address = "127.0.0.3"
        await until(lambda: anna.addresses() == (before.replace("127.0.0.2", card.address),))


async def test_departed_relay_is_not_dialed_at_an_address_from_another_peer() -> None:
    thread = TrioThread("anna")
    await thread.start()
    try:
        async with third_party() as (ports, seen):
            claimed = HostPort("ip4", HOST, ports[0], identity("rita").peer_id)
            host = Host(identity("anna"), thread, lambda *args: None, Counters())
            with pytest.raises(ConnectionError):
                await thread.call(host.dial, identity("ben").peer_id, claimed)
            assert not seen
    finally:
        await thread.stop()


async def test_thread_start_failure_is_reported(monkeypatch) -> None:
    full = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr("trio.run", Mock(side_effect=full))
    with pytest.raises(PeerUnreachable, match="Too many open files"):
        async with asyncio.timeout(20):
            await TrioThread("anna").start()
