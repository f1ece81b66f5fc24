"""Whether members are heard on the local network, where a node looks for them there."""

from __future__ import annotations

import asyncio
import random

from node.config.sections import NetworkSection
from node.doctor.finding import Finding, fail, ok, warn
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.lan.multicast import Multicast, MulticastUnavailable, networks
from swarm.lan.sighting import Sighting

HEAR_SECONDS = 3.0


def check_local_network(network: NetworkSection, folder: RunFolder) -> Finding:
    """Listen for a moment to others than the folder's node, which is announced while it runs."""
    try:
        heard = asyncio.run(_heard(network.listen))
    except MulticastUnavailable as error:
        remedy = "Name peers with --peers, which needs no multicast."
        return fail("lan", str(error), remedy)
    own = folder.read_status().get("peer_id") if folder.status.exists() else None
    others = {each.peer_id: each.swarm for each in heard if each.peer_id != own}
    if not others:
        remedy = "Have a member there run with --lan; let UDP port 5353 through the firewalls."
        return warn("lan", "no other node is announced on the local network", remedy)
    swarms = sorted({each[:16] for each in others.values()})
    nodes = counted(len(others), "node")
    return ok("lan", f"{nodes} announced on the local network, in {', '.join(swarms[:8])}")


async def _heard(listen: tuple[str, ...]) -> list[Sighting]:
    ear = await Multicast.open(networks(listen), Counters(), random.Random())
    try:
        await asyncio.sleep(HEAR_SECONDS)
        return await ear.seen()
    finally:
        await ear.close()
