"""Checks of the network: local discovery, ports, peers, and reachability."""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from node.config.config import Config
from node.config.registry import TRANSPORTS
from node.config.sections import NetworkSection
from node.doctor.machine import Check, check_manifest, fail, ok, warn
from node.errors import NodeError
from node.network.transports import FAMILIES, TransportKind, listened_on, why_not_free
from node.storage.run_folder import RunFolder
from node.tasks.catalogue import allowed_by
from protocol.errors import ProtocolError
from protocol.identity import Identity
from protocol.manifest import swarm_id
from protocol.messages import (
    DIAL_BACK_STREAM,
    MAX_DIAL_BACK_RESPONSE_BYTES,
    MAX_PORTS,
    DialledBack,
    decode_dial_back_response,
    encode_dial_back_request,
)
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.exchange import fetch_manifest
from swarm.lan import Multicast, MulticastUnavailable, Sighting, networks
from swarm.transport.transport import (
    ClockSkew,
    Reach,
    Transport,
    TransportError,
    Way,
    describe_reach,
    dialled,
    is_relayed,
    port_of,
)

HEAR_SECONDS = 3.0


def check_local_network(network: NetworkSection, folder: RunFolder) -> Check:
    """Listen briefly for nodes other than the folder's own."""
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


ANSWER_SECONDS = 10.0


async def check_reach(transport: Transport, peers: Sequence[str]) -> list[Check]:
    """Ask connected peers to dial back this machine's ports."""
    own = (port_of(each) for each in transport.addresses() if not is_relayed(each))
    ports = tuple(dict.fromkeys(port for port in own if port))[:MAX_PORTS]
    answers = []
    for peer in peers:
        try:
            answers.append(await _ask(transport, peer, ports))
        except (TransportError, ProtocolError) as error:
            remedy = "Ask another peer, or its owner for a newer release."
            why = " ".join(str(error).split())
            return [warn("reach", f"{peer} does not try to dial this machine: {why}", remedy)]
    if not answers:
        return []
    hosts = [answer.host for answer in answers]
    way: Way = "direct" if dialled(answers) else "unreachable"
    return [_finding(describe_reach(way, ports, hosts, 0))]


def reported_reach(folder: RunFolder) -> list[Check]:
    """Return the reachability that a running node in this folder has found."""
    try:
        reach = folder.read_status().get("reach")
    except NodeError:  # a starting node has not reported yet
        return []
    return [_finding(Reach(**reach))] if reach else []


def _finding(reach: Reach) -> Check:
    found = f"{reach.way}: {reach.cause}" if reach.cause else reach.way
    return warn("reach", found, reach.remedy) if reach.remedy else ok("reach", found)


async def _ask(transport: Transport, peer: str, ports: tuple[int, ...]) -> DialledBack:
    answer = await transport.request(
        peer,
        DIAL_BACK_STREAM,
        encode_dial_back_request(ports),
        limit=MAX_DIAL_BACK_RESPONSE_BYTES,
        deadline=ANSWER_SECONDS,
    )
    return decode_dial_back_response(answer, ports)


CONNECT_SECONDS = 5.0
DIAL_SECONDS = 20.0
HOSTS = (*FAMILIES, "dns", "dns4", "dns6")


def check_network(config: Config, folder: RunFolder) -> list[Check]:
    """Check all ports and peers of the config."""
    peers, lan = config.network.peers, config.network.lan
    reached: list[Check] = []
    if lan:
        reached.append(check_local_network(config.network, folder))
    if not peers and not lan:
        remedy = "Name some with --peers, or wait to be found; until then it trains alone."
        reached.append(warn("peers", "none named", remedy))
    elif peers:
        reached += [_check_connection(peer) for peer in peers]
        reached += asyncio.run(_dial(peers, config, folder))
    if folder.holder() is not None:
        reached += reported_reach(folder)
    return [*check_ports(config, folder), *reached]


def check_ports(config: Config, folder: RunFolder) -> list[Check]:
    """Check that the ports are free; a node running here holds them itself."""
    if (process := folder.holder()) is not None:
        return [ok("ports", f"in use by this node, process {process}")]
    addresses = list(config.network.listen)
    if config.monitor.prometheus_port:
        addresses.append(f"/ip4/127.0.0.1/tcp/{config.monitor.prometheus_port}")
    return [_check_port(address) for address in addresses]


def _check_port(address: str) -> Check:
    place = listened_on(address)
    if place is None:
        remedy = "Listen on an address such as /ip4/0.0.0.0/tcp/31337."
        return warn("ports", f"cannot try {address}", remedy)
    if why := why_not_free(address):
        remedy = "Stop what holds it, or name another port or address in the config."
        return fail("ports", f"{address}: {why}", remedy)
    return ok("ports", f"{address} is free" if place[3] else f"{address}: any free port")


def _check_connection(address: str) -> Check:
    """Open a TCP connection: a dead machine differs from a swarm without answer."""
    _, family, host, kind, port, *_ = [*address.split("/"), "", "", "", ""]
    if family not in HOSTS or kind != "tcp" or not port.isdecimal():
        return warn("peers", f"cannot try {address}", "Only the dial below tells about it.")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        remedy = "Ask its owner whether it runs; look at firewalls and the port on both sides."
        return fail("peers", f"{host} port {port}: {error.strerror or error}", remedy)
    return ok("peers", f"{host} port {port} accepts connections")


async def _dial(peers: Sequence[str], config: Config, folder: RunFolder) -> list[Check]:
    """Dial each peer as this node would, with a temporary identity."""
    kind: TransportKind = TRANSPORTS.open(
        config.network.transport, config.network.transport_options
    )
    runs = folder.holder() is not None
    listen = ("/ip4/127.0.0.1/tcp/0",) if runs else config.network.listen
    alone = {"listen": listen, "announce_maddrs": (), "peers": (), "relay": "off"}
    network = config.network.model_copy(update=alone)
    with tempfile.TemporaryDirectory() as thrown_away:
        thrown = RunFolder(Path(thrown_away))
        Identity.create(thrown.identity)
        transport = kind.open(network, thrown, Counters(), beside=True)
        try:
            await transport.start()
            dialled = {peer: await _dial_one(transport, peer, config, folder) for peer in peers}
            well = (peer for peer, found in dialled.items() if found[0].level == "ok")
            answered = [peer.rpartition("/")[2] for peer in well]
            reached = [] if runs else await check_reach(transport, answered)
            return [*(finding for found in dialled.values() for finding in found), *reached]
        except TransportError as error:
            return [fail("dial", "the network does not start here", _line(error))]
        finally:
            await transport.close()


async def _dial_one(
    transport: Transport, address: str, config: Config, folder: RunFolder
) -> list[Check]:
    peer = address.rpartition("/")[2]
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            connected = await transport.connect(address)
    except ClockSkew as error:
        return [fail("dial", f"{peer}: its clock and ours differ", _line(error))]
    except (TransportError, TimeoutError) as error:
        remedy = _line(error) or "It did not answer in time; check the id at the address's end."
        return [fail("dial", f"{peer} does not answer", remedy)]
    answers = ok("dial", f"{peer} answers, and its clock agrees")
    try:
        signed = await fetch_manifest(transport, connected)
    except TransportError as error:
        remedy = "Ask its owner whether it belongs to a swarm."
        return [answers, warn("tasks", f"{peer} hands out no manifest: {_line(error)}", remedy)]
    return [
        answers,
        *_check_swarm(signed, peer, folder),
        *check_manifest(signed, peer, allowed_by(config.tasks, config.sandbox)),
    ]


def _check_swarm(signed: bytes, peer: str, folder: RunFolder) -> list[Check]:
    if not folder.manifest.exists():
        return []
    try:
        ours, theirs = (
            swarm_id(each).hex()[:16] for each in (folder.manifest.read_bytes(), signed)
        )
    except ProtocolError:
        return []  # each manifest's own check reports the invalid one
    if ours == theirs:
        return [ok("swarm", f"{peer} is in this folder's swarm {ours}")]
    remedy = (
        f"Move there with swarm-node join --swarm {theirs} --peers ADDRESS, join it from a new "
        "folder, or name peers of this folder's swarm."
    )
    return [fail("swarm", f"{peer} is in {theirs}, this folder in {ours}", remedy)]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
