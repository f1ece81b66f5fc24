"""Print the addresses of a node that waits for a relay at a public address.

Run it in its own network namespace, where 8.8.4.4 is an address of this machine.
"""

import asyncio
import sys
from pathlib import Path

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.node import NodeSettings


async def main(key: Path) -> None:
    Identity.create(key)
    relay = f"/ip4/8.8.4.5/tcp/4001/p2p/{Identity.generate().peer_id}"
    settings = NodeSettings(key, ("/ip4/8.8.4.4/tcp/0",), (), 60.0, "private", (relay,))
    node = await HivemindNode.start(settings, Counters())
    try:
        print(node.addresses)
        await node.look()
        print(node.addresses)
    finally:
        await node.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
