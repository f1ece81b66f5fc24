"""The manifest of a node's swarm: pinned, fetched, found nearby, created or changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing, closing, suppress

from node.config.config import Config
from node.config.registry import TRANSPORTS
from node.errors import ConfigError, NodeError, UsageError
from node.network.creation import create_swarm, usual_task_set
from node.network.transports import TransportKind
from node.storage.atomic_files import write_atomic
from node.storage.run_folder import RunFolder, SwarmFiles
from node.threads import LoopThread
from protocol.errors import OtherVersion, ProtocolError
from protocol.identity import Identity
from protocol.manifest import Manifest, open_manifest, swarm_id
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.common.util import cancel_all
from swarm.exchange import fetch_manifest
from swarm.lan import Discovery, MulticastUnavailable
from swarm.sightings import Sighting
from swarm.transport.peer_connections import peer_of
from swarm.transport.transport import Transport, TransportError

log = logging.getLogger(__name__)

LOCAL_LOOK_SECONDS = 0.5
SETTLE_SECONDS = 3.0  # wait for further swarms after the first one

NAMED = 8
WHOLE_ID = 64  # hex digits

Found = dict[str, tuple[bytes, str]]  # signed manifest and address of a peer, by swarm id


async def find_nearby(
    lan: Discovery, transport: Transport, wanted: str, patience: float
) -> tuple[bytes, str]:
    """Find a nearby swarm whose id starts with ``wanted``; return manifest and source.

    Raises NodeError if no valid manifest comes in ``patience`` seconds, ConfigError for several.
    """
    manifests: Found = {}
    try:
        async with asyncio.timeout(patience):
            await _search(lan, transport, wanted, manifests)
    except MulticastUnavailable as error:
        remedy = "Name a peer with --peers instead."
        raise NodeError("the local network cannot be searched", error, remedy) from error
    except TimeoutError:
        log.info("looked for swarms on the local network for %g s", patience)
    if len(manifests) == 1:
        return next(iter(manifests.values()))
    if not manifests:
        swarm = f"a swarm {wanted}…" if wanted else "any swarm"
        problem = f"no member of {swarm} was found on the local network within seconds"
        remedy = (
            "Run a member there with --lan, or name one with --peers. To create a swarm here: "
            "swarm-node init, swarm-node create --name NAME, then the same command."
        )
        raise NodeError(problem, f"{patience:g}", remedy)
    choices = [f"{each} (at {address})" for each, (_, address) in list(manifests.items())[:NAMED]]
    more = f" and {len(manifests) - NAMED} more" if len(manifests) > NAMED else ""
    remedy = "Several swarms are on the local network; name one with --swarm ID: "
    raise ConfigError("network.swarm", wanted, f"{remedy}{', '.join(choices)}{more}.")


async def _search(lan: Discovery, transport: Transport, wanted: str, manifests: Found) -> None:
    loop = asyncio.get_running_loop()
    deadline = float("inf")
    while loop.time() < deadline:
        tasks = [_manifest_of_sighting(lan, transport, each) for each in await lan.look(wanted)]
        for answer in await asyncio.gather(*tasks):
            manifests.update(answer)
        if len(wanted) == WHOLE_ID and manifests:
            return
        if manifests:
            deadline = min(deadline, loop.time() + SETTLE_SECONDS)
        await asyncio.sleep(LOCAL_LOOK_SECONDS)


async def _manifest_of_sighting(lan: Discovery, transport: Transport, sighting: Sighting) -> Found:
    try:
        signed = await fetch_manifest(transport, await lan.dial(sighting))
        open_manifest(signed)
        swarm = swarm_id(signed).hex()
    except (TransportError, ProtocolError) as error:
        log.info("asking %s for its swarm: %s", sighting.address, error)
        return {}
    if swarm != sighting.swarm:
        log.info("%s announces swarm %s and is in %s", sighting.address, sighting.swarm, swarm)
        return {}
    return {swarm: (signed, sighting.address)}


RETRY_SECONDS = 1.0
OLDER = (
    "All members of a swarm use the same version. Use the older program with this swarm, or move "
    "the policy to a swarm created with this version: swarm-node join --swarm ID --peers ADDRESS."
)
NEWER = "Update swarm-node on this machine."

LOOK_SECONDS = 5.0  # for a named peer to send its swarm; a slower one is dialed like any other


async def pinned_manifest(
    config: Config,
    folder: RunFolder,
    identity: Identity,
    transport: Transport,
    lan: Discovery | None = None,
) -> tuple[bytes, tuple[str, ...]]:
    """Return the signed manifest of this node's swarm, and notes on how it came.

    A manifest in the run folder is permanent, whatever peers serve. Notes name the peers that are
    in another swarm. Without a manifest, the first named peer that answers hands over its own. If
    no peer is named, ``lan`` finds a member nearby. Without either, the node creates a swarm of the
    model's usual task set. Raises NodeError if no peer answers or the manifest is damaged, and
    ConfigError if it is not the one of ``network.swarm``, if several swarms match, or if a new one
    would lack the tasks of ``tasks.files``.
    """
    notes = _notes_on_itself(config, transport)
    is_pinned = folder.manifest.exists()
    if is_pinned:
        signed, source = folder.manifest.read_bytes(), str(folder.manifest)
    elif notes and len(notes) == len(config.network.peers):
        raise NodeError("cannot join by", notes[0], "Name another member of the swarm.")
    elif config.network.peers or lan is not None:
        signed, source = await request_manifest(config, transport, config.network.swarm, lan)
        if not config.network.peers:
            notes += (f"found this swarm on the local network, at {source}",)
    else:
        signed, note = _created(config, identity)
        source, notes = "this node", (*notes, note)
    checked_manifest(signed, source)
    swarm = swarm_id(signed).hex()
    if not swarm.startswith(config.network.swarm):
        remedy = (
            f"{source} belongs to swarm {swarm}: correct the key, name other peers, or move to "
            "the other swarm with: swarm-node join --swarm ID."
        )
        raise ConfigError("network.swarm", config.network.swarm, remedy)
    if is_pinned:
        notes += await _notes_on_other_swarms(config.network.peers, transport, swarm, source)
    else:
        write_atomic(folder.manifest, signed)
        log.info("pinned the manifest of swarm %s from %s", swarm, source)
    return signed, notes


def _created(config: Config, identity: Identity) -> tuple[bytes, str]:
    """Create a swarm of the model's usual task set; return its manifest and a note."""
    if config.tasks.files:
        remedy = "Name a member with --peers, or run: swarm-node create --task-set SET.toml."
        raise ConfigError("tasks.files", ", ".join(config.tasks.files), remedy)
    tasks = usual_task_set(config.policy.model)
    signed = create_swarm(identity, name=config.node.name, task_set=tasks)
    return signed, f"there are no peers and no manifest: created a swarm with the task set {tasks}"


def _notes_on_itself(config: Config, transport: Transport) -> tuple[str, ...]:
    """Return a note on each named peer that has this node's own identity."""
    addresses = {*transport.addresses(), *config.network.announce_maddrs}
    return tuple(
        f"{address} has the identity of this node. If it is an address of this node, remove it. "
        "Otherwise that node's run folder is a copy of this one: stop one of the two nodes and "
        "start it in a new folder: swarm-node init NEW (swarm-node export copies its policy)"
        for address in config.network.peers
        if peer_of(address) == transport.peer_id
        and not {address, address.rpartition("/p2p/")[0]} & addresses
    )


def checked_manifest(signed: bytes, source: str) -> Manifest:
    """Open the manifest that came from ``source``; raise NodeError if it is not valid."""
    try:
        return open_manifest(signed)
    except OtherVersion as error:
        remedy = OLDER if error.older else NEWER
        raise NodeError(f"the manifest from {source} cannot be used", error, remedy) from error
    except ProtocolError as error:
        remedy = (
            "Restore that file from a backup, or get it from another member of the swarm. If a "
            "peer sent it, ask its owner."
        )
        raise NodeError(f"the manifest from {source} is not valid", error, remedy) from error


async def _notes_on_other_swarms(
    addresses: Sequence[str], transport: Transport, swarm: str, source: str
) -> tuple[str, ...]:
    """Return notes on named peers in another swarm.

    That is not an error, or the holder of one address could keep a node from starting.
    """
    foreign: list[tuple[str, str]] = []
    matched = False
    async with aclosing(_swarms_of_peers(addresses, transport)) as answers:
        async for address, peer_swarm in answers:
            if matched := peer_swarm == swarm:
                break
            foreign.append((address, peer_swarm))
    notes = [
        f"the peer at {address} is in another swarm, {peer_swarm[:16]}: no rollouts come from it"
        for address, peer_swarm in foreign
    ]
    if foreign and not matched:
        notes.append(
            f"this run folder belongs to swarm {swarm[:16]} ({source}), and no named peer is in "
            f"it. To move there with this policy: swarm-node join --swarm {foreign[0][1][:16]} "
            f"--peers {foreign[0][0]}. To start there with a new policy: swarm-node init NEW, "
            f"then swarm-node join --config NEW --peers {foreign[0][0]}"
        )
    return tuple(notes)


async def _swarms_of_peers(
    addresses: Sequence[str], transport: Transport
) -> AsyncGenerator[tuple[str, str], None]:
    tasks = [asyncio.create_task(_swarm_of_peer(address, transport)) for address in addresses]
    try:
        with suppress(TimeoutError):
            for answer in asyncio.as_completed(tasks, timeout=LOOK_SECONDS):
                address, peer_swarm = await answer
                if peer_swarm:
                    yield address, peer_swarm
    finally:
        await cancel_all(tasks)


def _swarm_id_or_empty(signed: bytes) -> str:
    try:
        return swarm_id(signed).hex()
    except ProtocolError:
        return ""  # opening it later reports the damage


async def _swarm_of_peer(address: str, transport: Transport) -> tuple[str, str]:
    try:
        signed = await fetch_manifest(transport, await transport.connect(address))
        return address, swarm_id(signed).hex()
    except (TransportError, ProtocolError) as error:
        log.info("asking %s for its swarm: %s", address, error)
        return address, ""


async def request_manifest(
    config: Config, transport: Transport, wanted: str, lan: Discovery | None = None
) -> tuple[bytes, str]:
    """Fetch the signed manifest of a named peer, unchecked, and the peer's address.

    Peers are asked until one is in ``wanted`` (an id or its beginning), else the first counts;
    without any, a member nearby. Raises NodeError after ``network.start_timeout``, and ConfigError
    if several swarms fit.
    """
    if lan and not config.network.peers:
        return await find_nearby(lan, transport, wanted, config.network.start_timeout)
    signed, address = await _first_manifest(config, transport, wanted)
    swarm = _swarm_id_or_empty(signed)
    if not wanted or wanted == swarm or not swarm.startswith(wanted):
        return signed, address
    matches = {swarm: address}
    async with aclosing(_swarms_of_peers(config.network.peers, transport)) as answers:
        async for where, peer_swarm in answers:
            if peer_swarm.startswith(wanted):
                matches.setdefault(peer_swarm, where)
    if len(matches) > 1:
        choices = ", ".join(f"{peer_swarm} (from {where})" for peer_swarm, where in matches.items())
        remedy = f"Several swarms begin with these digits: write more digits of {choices}."
        raise ConfigError("network.swarm", wanted, remedy)
    return signed, address


async def _first_manifest(config: Config, transport: Transport, wanted: str) -> tuple[bytes, str]:
    failures: dict[str, str] = {}  # by address, from when it was last asked
    seconds = config.network.start_timeout
    try:
        async with asyncio.timeout(seconds):
            while True:
                answers = []
                for address in config.network.peers:
                    try:
                        signed = await fetch_manifest(transport, await transport.connect(address))
                    except TransportError as error:
                        if address not in failures:
                            log.warning("%s; trying again for %g s", error, seconds)
                        failures[address] = str(error)
                        continue
                    failures.pop(address, None)
                    if not wanted or _swarm_id_or_empty(signed).startswith(wanted):
                        return signed, address
                    answers.append((signed, address))
                if not failures:
                    return answers[0]
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError:
        problem = f"no peer answered within {seconds:g} seconds"
        reasons = "; ".join(failures.values()) or ", ".join(config.network.peers)
        remedy = (
            "A node that joins for the first time needs a peer that answers: check the address, "
            "or run: swarm-node doctor --peers ADDRESS."
        )
        raise NodeError(problem, reasons, remedy) from None


OPTION = "--swarm"


def enter(config: Config, folder: RunFolder, wanted: str) -> tuple[str, ...]:
    """Move a folder to the swarm ``wanted`` (hex id or its beginning); return notes.

    Nothing happens if it is there, in none, or ``wanted`` is empty. Policy and optimizer stay;
    buffer, samples and reputations are set aside until a move back. Raises UsageError if the id
    fits none or several swarms, and NodeError without an answer or write access.
    """
    files = SwarmFiles(folder)
    files.settle()
    if not folder.manifest.exists():
        return ()
    current = folder.manifest.read_bytes()
    try:
        checked_manifest(current, str(folder.manifest))
    except NodeError as error:
        if not (wanted and isinstance(error.__cause__, OtherVersion)):
            raise
    old = swarm_id(current).hex()
    if not wanted or wanted == old:
        return ()
    past = {name: signed for name, signed in files.set_aside().items() if name.startswith(wanted)}
    matches = [*([old] if old.startswith(wanted) else []), *past]
    if len(matches) > 1:
        raise UsageError(OPTION, wanted, f"Give more digits; it could be {' or '.join(matches)}.")
    if matches == [old]:
        return ()
    new, signed = next(iter(past.items()), None) or _manifest_for_move(config, folder, wanted)
    files.move(old, new, signed)
    name = checked_manifest(signed, OPTION).name
    return (
        f"moved from swarm {old[:16]} to {name!r} {new[:16]} with policy and optimizer; the "
        f"replay buffer, task samples and reputations are set aside, and {OPTION} {old[:16]} "
        "returns to them",
    )


def _manifest_for_move(config: Config, folder: RunFolder, wanted: str) -> tuple[str, bytes]:
    network = config.network
    if not network.peers and not network.lan:
        remedy = (
            "Name a peer of that swarm with --peers, or search the local network with --lan: "
            "the manifest comes from there."
        )
        raise UsageError(OPTION, wanted, remedy)
    kind: TransportKind = TRANSPORTS.open(network.transport, network.transport_options)
    transport = kind.open(network, folder, Counters(), beside=False)
    with closing(LoopThread("moving")) as loop, ExitStack() as stack:
        loop.call(transport.start())
        stack.callback(lambda: loop.call(transport.close()))
        lan: Discovery | None = None
        if network.lan:
            lan = Discovery(transport, network.listen, SystemClock(), Counters())
            stack.callback(lambda: loop.call(lan.close()))
        signed, source = loop.call(request_manifest(config, transport, wanted, lan))
    checked_manifest(signed, source)
    swarm = swarm_id(signed).hex()
    if not swarm.startswith(wanted):
        remedy = f"{source} is in swarm {swarm}: name that swarm, or other peers."
        raise UsageError(OPTION, wanted, remedy)
    return swarm, signed
