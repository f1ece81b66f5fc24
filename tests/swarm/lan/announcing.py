"""``python -m tests.swarm.lan.announcing IP HOST NUMBER SWARM PORT [PEER]`` says by multicast DNS
at an address of this machine what mallory likes: that so many members of a swarm are at a host.

It prints a line once all is said, and goes on until standard input ends.
"""

import asyncio
import sys

from zeroconf import ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from protocol.identity import Identity
from swarm.lan import SERVICE
from swarm.sightings import text_of


def name(host: str, number: int, swarm: str, port: str, peer: str) -> ServiceInfo:
    """One name at ``host``; of a key of its own where no peer is given."""
    told = peer or Identity.from_seed(f"mallory {number}".encode().ljust(32, b".")).peer_id
    mallory, text = f"mallory-{peer[-8:]}{number}", text_of(told, bytes.fromhex(swarm))
    place = {"port": int(port), "server": f"{mallory}.local.", "parsed_addresses": [host]}
    return ServiceInfo(SERVICE, f"{mallory}.{SERVICE}", properties=text, **place)


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
