"""The swarms on the local network, for a node that is in none of them yet."""

from __future__ import annotations

import asyncio
import logging

from node.errors import ConfigError, NodeError
from protocol.errors import ProtocolError
from protocol.manifest import open_manifest, swarm_id
from swarm.exchange import fetch_manifest
from swarm.lan.discovery import Discovery
from swarm.lan.multicast import MulticastUnavailable
from swarm.lan.sighting import Sighting
from swarm.transport.transport import Transport, TransportError

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
SETTLE_SECONDS = 3.0
"""From the first swarm found, for others to be heard of."""

NAMED = 8
WHOLE_ID = 64
"""Hex digits."""

Found = dict[str, tuple[bytes, str]]
"""By swarm id, the signed manifest of somebody who answers, and the address."""


async def found_nearby(
    lan: Discovery, transport: Transport, wanted: str, patience: float
) -> tuple[bytes, str]:
    """The signed manifest of the one swarm found whose id begins as ``wanted``, and from where.

    Only swarms count of which somebody answers who hands out a valid manifest of that id.

    Args:
        patience: seconds to look.

    Raises:
        NodeError: there is none, or this machine cannot look.
        ConfigError: there are several.
    """
    found: Found = {}
    try:
        async with asyncio.timeout(patience):
            await _look(lan, transport, wanted, found)
    except MulticastUnavailable as error:
        remedy = "Name a peer with --peers instead."
        raise NodeError("the local network cannot be searched", error, remedy) from error
    except TimeoutError:
        log.info("looked for swarms on the local network for %g s", patience)
    if len(found) == 1:
        return next(iter(found.values()))
    raise _several(found, wanted) if found else _none(wanted, patience)


def _none(wanted: str, patience: float) -> NodeError:
    swarm = f"a swarm {wanted}…" if wanted else "any swarm"
    return NodeError(
        f"no member of {swarm} was found on the local network within seconds",
        f"{patience:g}",
        "Have a member there run with --lan, or name one with --peers; to begin a swarm here: "
        "swarm-node init, swarm-node found --name NAME, then the same command.",
    )


def _several(found: Found, wanted: str) -> ConfigError:
    choices = [f"{each} (at {where})" for each, (_, where) in list(found.items())[:NAMED]]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ConfigError(
        "network.swarm",
        wanted,
        "Several swarms are on the local network; name one with --swarm ID: "
        f"{', '.join(choices)}{more}.",
    )


async def _look(lan: Discovery, transport: Transport, wanted: str, found: Found) -> None:
    """Fill ``found`` until it is likely to hold all there are, or the one that is wanted."""
    loop = asyncio.get_running_loop()
    settled = float("inf")
    while loop.time() < settled:
        asked = [_ask(lan, transport, each) for each in await lan.look(wanted)]
        for answer in await asyncio.gather(*asked):
            found.update(answer)
        if len(wanted) == WHOLE_ID and found:
            return
        if found:
            settled = min(settled, loop.time() + SETTLE_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)


async def _ask(lan: Discovery, transport: Transport, sighting: Sighting) -> Found:
    """The swarm of whoever answers there, if it is the one announced; else nothing."""
    try:
        signed = await fetch_manifest(transport, await lan.dial(sighting))
        open_manifest(signed)
        found = swarm_id(signed).hex()
    except (TransportError, ProtocolError) as error:
        log.info("asking %s for its swarm: %s", sighting.address, error)
        return {}
    if found != sighting.swarm:
        log.info("%s announces swarm %s and is in %s", sighting.address, sighting.swarm, found)
        return {}
    return {found: (signed, sighting.address)}
