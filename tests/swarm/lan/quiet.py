"""``python -m tests.swarm.lan.quiet PORT SWARM PEER`` is on the loopback network at a member's port
and announces nothing; it answers who asks by multicast DNS, from the fifth question on.

So it is with a node whose announcements and first answers are lost on the way. It says so when it
begins to answer, and goes on until standard input ends.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

from zeroconf import DNSIncoming, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from swarm.lan import SERVICE, text_of

LOST = 4
GROUP, PORT = "224.0.0.251", 5353


def ear() -> socket.socket:
    """Hears what is said by multicast DNS on the loopback network."""
    heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    heard.bind((GROUP, PORT))
    where = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton("127.0.0.1"))
    heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, where)
    return heard


def asks(datagram: bytes) -> bool:
    """Whether it asks who is a node."""
    said = DNSIncoming(datagram)
    return said.is_query() and any(question.name == SERVICE for question in said.questions)


def hear_questions(number: int) -> None:
    """Return once so many came."""
    with ear() as heard:
        for _ in range(number):
            while not asks(heard.recv(9000)):
                pass


async def keep_quiet(port: str, swarm: str, peer: str) -> None:
    """Answer the fifth question and those that follow."""
    print("listening", flush=True)
    await asyncio.to_thread(hear_questions, LOST)
    zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"])
    await zeroconf.zeroconf.async_wait_for_start()
    info = ServiceInfo(
        SERVICE,
        f"quiet.{SERVICE}",
        port=int(port),
        properties=text_of(peer, bytes.fromhex(swarm)),
        server="quiet.local.",
        parsed_addresses=["127.0.0.1"],
    )
    zeroconf.zeroconf.registry.async_add(info)
    print("answering", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await zeroconf.async_close()


if __name__ == "__main__":
    asyncio.run(keep_quiet(*sys.argv[1:]))
