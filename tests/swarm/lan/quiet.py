"""Somebody on the loopback network who misses what is said there by multicast DNS.

``python -m tests.swarm.lan.quiet quiet PORT SWARM PEER`` is at a member's port and announces
nothing; it answers who asks, from the fifth question on, as a node whose announcements and first
answers are lost on the way. ``… late PEER`` asks nothing, and says when it hears all of a node's
records; what is said in the first seconds, twice what a node's first announcements take, is lost on
it. Both go on until standard input ends.
"""

import asyncio
import socket
import struct
import sys
import time

from zeroconf import DNSIncoming, DNSService, DNSText, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from swarm.lan import SERVICE
from swarm.sightings import text_of

LOST, LOST_SECONDS = 4, 5.0
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
    said = DNSIncoming(datagram)
    return said.is_query() and any(question.name == SERVICE for question in said.questions)


def hear_questions(number: int) -> None:
    with ear() as heard:
        for _ in range(number):
            while not asks(heard.recv(9000)):
                pass


async def keep_quiet(port: str, swarm: str, peer: str) -> None:
    print("listening", flush=True)
    await asyncio.to_thread(hear_questions, LOST)
    zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"])
    await zeroconf.zeroconf.async_wait_for_start()
    place = {"port": int(port), "server": "quiet.local.", "parsed_addresses": ["127.0.0.1"]}
    text = text_of(peer, bytes.fromhex(swarm))
    info = ServiceInfo(SERVICE, f"quiet.{SERVICE}", properties=text, **place)
    zeroconf.zeroconf.registry.async_add(info)
    print("answering", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await zeroconf.async_close()


def come_late(peer: str) -> None:
    """Say once one datagram tells where the node listens and which swarm it is of."""
    print("listening", flush=True)
    with ear() as heard:
        end = time.monotonic() + LOST_SECONDS
        while True:
            said = DNSIncoming(heard.recv(9000))
            if time.monotonic() < end or said.is_query():
                continue
            here = [each for each in said.answers() if each.name.startswith(peer)]
            if {DNSService, DNSText} <= {type(each) for each in here}:
                break
    print("heard", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "late":
        come_late(sys.argv[2])
    else:
        asyncio.run(keep_quiet(*sys.argv[2:]))
