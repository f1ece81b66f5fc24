"""Moving a node to another swarm together with what it has learned."""

from __future__ import annotations

from node.concurrency.threads import LoopThread
from node.config.config import Config
from node.config.registry import TRANSPORTS
from node.errors import NodeError, UsageError
from node.network.pinned_manifest import checked_manifest, handed_over
from node.network.transports import TransportKind
from node.storage.run_folder import RunFolder, SwarmFiles
from protocol.errors import OtherVersion
from protocol.manifest import swarm_id
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.lan import Discovery
from swarm.transport.transport import Transport

OPTION = "--swarm"


def enter(config: Config, folder: RunFolder, wanted: str) -> tuple[str, ...]:
    """Move a run folder to the swarm ``wanted``, an id in hex or its beginning.

    Nothing happens if the folder is in that swarm or in none, or if ``wanted`` is empty. Otherwise
    the policy and its optimizer stay. The old swarm's replay buffer, task samples and reputations
    are set aside; a move back restores them. Returns sentences on what was done. Raises UsageError
    if the id fits no known swarm or several, and NodeError if no peer answers or the folder cannot
    be written to.
    """
    files = SwarmFiles(folder)
    files.settle()
    if not folder.manifest.exists():
        return ()
    ours = folder.manifest.read_bytes()
    try:
        checked_manifest(ours, str(folder.manifest))
    except NodeError as error:
        if not (wanted and isinstance(error.__cause__, OtherVersion)):
            raise
    left = swarm_id(ours).hex()
    if not wanted or wanted == left:
        return ()
    before = {name: signed for name, signed in files.set_aside().items() if name.startswith(wanted)}
    fitting = [*([left] if left.startswith(wanted) else []), *before]
    if len(fitting) > 1:
        raise UsageError(OPTION, wanted, f"Give more digits; it could be {' or '.join(fitting)}.")
    if fitting == [left]:
        return ()
    entered, signed = next(iter(before.items()), None) or _asked_for(config, folder, wanted)
    files.move(left, entered, signed)
    name = checked_manifest(signed, OPTION).name
    return (
        f"moved from swarm {left[:16]} to {name!r} {entered[:16]}: "
        "policy and optimizer came along; the pool, draws and standings are set aside, and "
        f"{OPTION} {left[:16]} goes back to them",
    )


async def _handed_over(config: Config, transport: Transport, wanted: str) -> tuple[bytes, str]:
    if not config.network.lan:
        return await handed_over(config, transport, wanted)
    lan = Discovery(transport, config.network.listen, SystemClock(), Counters())
    try:
        return await handed_over(config, transport, wanted, lan)
    finally:
        await lan.close()


def _asked_for(config: Config, folder: RunFolder, wanted: str) -> tuple[str, bytes]:
    network = config.network
    if not network.peers and not network.lan:
        remedy = (
            "Name a peer that is in it with --peers, or look for one on the local network with "
            "--lan: its manifest is fetched from there."
        )
        raise UsageError(OPTION, wanted, remedy)
    kind: TransportKind = TRANSPORTS.open(network.transport, network.transport_options)
    transport = kind.open(network, folder, Counters(), beside=False)
    loop = LoopThread("moving")
    try:
        loop.call(transport.start())
        try:
            signed, source = loop.call(_handed_over(config, transport, wanted))
        finally:
            loop.call(transport.close())
    finally:
        loop.close()
    checked_manifest(signed, source)
    found = swarm_id(signed).hex()
    if not found.startswith(wanted):
        remedy = f"{source} is in swarm {found}: name that, or other peers."
        raise UsageError(OPTION, wanted, remedy)
    return found, signed
