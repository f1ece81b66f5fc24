"""Announce false members of a swarm by multicast DNS, as mallory does.

``python -m tests.swarm.lan.announcing IP HOST NUMBER SWARM PORT [PEER]`` announces NUMBER members
at HOST from IP. It prints a line after the last one, and runs until standard input ends.
"""

import asyncio
import sys

from zeroconf import ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from protocol.identity import Identity
from swarm.lan import SERVICE
from swarm.sightings import text_of


def name(host: str, number: int, swarm: str, port: str, peer: str) -> ServiceInfo:
    """Return one name at ``host``; without a peer, it claims a new key."""
    claimed = peer or Identity.from_seed(f"mallory {number}".encode().ljust(32, b".")).peer_id
    mallory, text = f"mallory-{peer[-8:]}{number}", text_of(claimed, bytes.fromhex(swarm))
    fields = {"port": int(port), "server": f"{mallory}.local.", "parsed_addresses": [host]}
    return ServiceInfo(SERVICE, f"{mallory}.{SERVICE}", properties=text, **fields)


async def announce(ip: str, host: str, number: str, swarm: str, port: str, peer: str = "") -> None:
    zeroconf = AsyncZeroconf(interfaces=[ip])
    for n in range(int(number)):
        info = name(host, n, swarm, port, peer)
        await zeroconf.async_register_service(info, cooperating_responders=True)
    print("announced", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await zeroconf.async_close()


if __name__ == "__main__":
    asyncio.run(announce(*sys.argv[1:]))
