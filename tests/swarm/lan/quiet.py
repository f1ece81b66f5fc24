"""A peer on the loopback network that misses some multicast DNS messages.

``python -m tests.swarm.lan.quiet quiet PORT SWARM PEER`` is at a member's port and announces
nothing. It answers queries from the fifth on, like a node whose announcements and first answers
are lost. ``… late PEER`` sends no queries, and prints when it receives all records of a node. It
ignores the first seconds, twice the time of a node's first announcements. Both run until standard
input ends.
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
    """Open a socket that receives multicast DNS messages on the loopback network."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((GROUP, PORT))
    mreq = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton("127.0.0.1"))
    listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, mreq)
    return listener


def matches(datagram: bytes) -> bool:
    message = DNSIncoming(datagram)
    return message.is_query() and any(question.name == SERVICE for question in message.questions)


def await_queries(number: int) -> None:
    with ear() as listener:
        for _ in range(number):
            while not matches(listener.recv(9000)):
                pass


async def run_quiet(port: str, swarm: str, peer: str) -> None:
    print("listening", flush=True)
    await asyncio.to_thread(await_queries, LOST)
    zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"])
    await zeroconf.zeroconf.async_wait_for_start()
    fields = {"port": int(port), "server": "quiet.local.", "parsed_addresses": ["127.0.0.1"]}
    text = text_of(peer, bytes.fromhex(swarm))
    info = ServiceInfo(SERVICE, f"quiet.{SERVICE}", properties=text, **fields)
    zeroconf.zeroconf.registry.async_add(info)
    print("answering", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await zeroconf.async_close()


def run_late(peer: str) -> None:
    """Print once one datagram holds the port and the swarm of the node."""
    print("listening", flush=True)
    with ear() as listener:
        end = time.monotonic() + LOST_SECONDS
        while True:
            message = DNSIncoming(listener.recv(9000))
            if time.monotonic() < end or message.is_query():
                continue
            records = [each for each in message.answers() if each.name.startswith(peer)]
            if {DNSService, DNSText} <= {type(each) for each in records}:
                break
    print("heard", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "late":
        run_late(sys.argv[2])
    else:
        asyncio.run(run_quiet(*sys.argv[2:]))
