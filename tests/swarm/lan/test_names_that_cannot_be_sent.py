"""Mallory's names are not UTF-8: decoded, they are too long to be sent."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from ipaddress import ip_interface

import pytest
from zeroconf import DNSIncoming

from swarm.common.counters import Counters
from swarm.lan import SERVICE, Multicast
from tests.swarm.lan.quiet import GROUP, PORT, ear
from tests.swarm.transport.over import until

pytestmark = pytest.mark.processes

PATIENCE = 60.0
OURS = [b"_swarm-node", b"_tcp", b"local"]
MEMBER, LONG, EMPTY = b"member", b"\x80" * 63, b"a..b"
POINTER, SERVER = 12, 33


def record(of: list[bytes], kind: int, to: list[bytes], before: bytes = b"") -> bytes:
    data = before + encoded(to)
    return encoded(of) + struct.pack("!HHIH", kind, 1, 4500, len(data)) + data


def encoded(labels: list[bytes]) -> bytes:
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def pointer(label: bytes) -> bytes:
    return record(OURS, POINTER, [label, *OURS])


def server(label: bytes) -> bytes:
    rdata = struct.pack("!HHH", 0, 0, 4001)
    return record([MEMBER, *OURS], SERVER, [label, b"local"], rdata)


def send(*records: bytes) -> None:
    """Send an answer by multicast DNS on the loopback network."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        local = socket.inet_aton("127.0.0.1")
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)
        head = struct.pack("!6H", 0, 0x8400, 0, len(records), 0, 0)
        sender.sendto(head + b"".join(records), (GROUP, PORT))


async def wait_for_query(listening: socket.socket, asked: str) -> None:
    """Wait for a query for a name."""
    async with asyncio.timeout(PATIENCE):
        while True:
            message = DNSIncoming(await asyncio.get_running_loop().sock_recv(listening, 9000))
            if message.is_query() and asked in [question.name for question in message.questions]:
                return


@asynccontextmanager
async def listener(counters: Counters) -> AsyncIterator[tuple[Multicast, socket.socket]]:
    """Yield a node's listener, and a socket that receives its queries after the first."""
    network = (ip_interface("127.0.0.1/8"),)
    with closing(ear()) as listening:
        listening.setblocking(False)
        multicast = await Multicast.open(network, counters, random.Random(0))
        try:
            await wait_for_query(listening, SERVICE)
            yield multicast, listening
        finally:
            await multicast.close()


async def refused(counters: Counters) -> None:
    await until(lambda: counters.snapshot().get("lan_names_refused{reason=name}"), PATIENCE)


@pytest.mark.parametrize("label", [LONG, EMPTY], ids=["long", "empty"])
async def test_unsendable_service_name_does_not_stop_discovery(label, counters):
    async with listener(counters) as (multicast, listening):
        send(pointer(label), pointer(label), pointer(MEMBER))
        await refused(counters)
        await multicast.again()
        await wait_for_query(listening, SERVICE)


async def test_invalid_host_name_does_not_stop_discovery(counters):
    async with listener(counters) as (multicast, _):
        send(pointer(MEMBER), server(LONG))
        await refused(counters)
        await multicast.seen()


async def test_invalid_host_name_in_an_answer_does_not_stop_discovery(counters):
    done = asyncio.Event()

    async def look(multicast: Multicast) -> None:
        while not done.is_set():
            await multicast.seen()
            await asyncio.sleep(0.02)

    async with listener(counters) as (multicast, listening):
        send(pointer(MEMBER))
        looking = asyncio.ensure_future(look(multicast))
        await wait_for_query(listening, f"{MEMBER.decode()}.{SERVICE}")
        send(server(LONG))
        await refused(counters)
        done.set()
        await looking
