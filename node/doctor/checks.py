"""Checks of this machine and its network: packages, device, disk, ports, peers."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from packaging.requirements import Requirement

from node.config.config import Config
from node.config.registry import ENGINES, TRANSPORTS
from node.config.sections import NetworkSection
from node.doctor.files import (
    Check,
    check_manifest,
    check_model_files,
    check_pinned,
    fail,
    failed,
    ok,
    warn,
)
from node.errors import ConfigError, NodeError
from node.network.transports import TransportKind, why_not_free
from node.plan.model_shape import check_memory, check_space
from node.storage.run_folder import RunFolder
from node.tasks.sandbox.sandbox import REMEDY, sandbox_support
from node.threads import check_semaphores
from protocol.errors import ProtocolError
from protocol.identity import Identity, KeyFileError
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
from swarm.common.util import DISTRIBUTION, counted, version
from swarm.exchange import fetch_manifest
from swarm.lan import Multicast, MulticastUnavailable, networks
from swarm.sightings import Sighting
from swarm.transport.transport import (
    ClockSkew,
    Reach,
    Transport,
    TransportError,
    Way,
    describe_reach,
    dialed,
    host_of,
    own_ports,
    port_of,
)


def check_sandbox() -> Check:
    status = sandbox_support()
    return ok("isolation", str(status)) if status.whole else warn("isolation", str(status), REMEDY)


LITTLE_DISK = 2 << 30
NO_DISK = 200 << 20
CLOCK_WATCH_SECONDS = 0.5
CLOCK_DRIFT_SECONDS = 0.05
EARLIEST_SANE = 1_735_689_600.0  # 2025-01-01


def check_packages() -> list[Check]:
    try:
        wanted = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        text = "a source tree that is not installed, versions unknown"
        return [warn("packages", text, "Install it with: pip install .")]
    requirements = [r for r in map(Requirement, wanted) if not r.marker or r.marker.evaluate()]
    checks = []
    for package in requirements:
        remedy = f"Install it with: pip install '{package.name}{package.specifier}'"
        installed = version(package.name)
        if not installed:
            checks.append(fail("packages", f"{package.name} is missing", remedy))
        elif not package.specifier.contains(installed, prereleases=True):
            text = f"{package.name} {installed}, tested with {package.specifier}"
            checks.append(warn("packages", text, remedy))
    return checks or [ok("packages", f"all {len(requirements)} as required")]


def check_transport(network: NetworkSection) -> Check:
    kind: TransportKind = TRANSPORTS.open(network.transport, network.transport_options)
    if kind.daemon:
        return check_daemon()
    try:
        kind.check(network)
    except ConfigError as error:
        return failed("transport", error)
    return ok("transport", network.transport)


def check_daemon() -> Check:
    spec = importlib.util.find_spec("hivemind")
    if spec is None or spec.origin is None:
        remedy = "Install it on Linux or macOS: pip install hivemind==1.1.12"
        return fail("p2p daemon", "hivemind is not installed", remedy)
    daemon = Path(spec.origin).parent / "hivemind_cli" / "p2pd"
    try:
        subprocess.run([daemon, "-help"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        remedy = "Install hivemind again for this platform, and allow the file to be executed."
        return fail("p2p daemon", f"{daemon} does not run: {error}", remedy)
    return ok("p2p daemon", str(daemon))


def check_device(device: str) -> Check:
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(n) for n in range(count))
    if device == "mps" and not torch.backends.mps.is_available():
        remedy = 'Set policy.device = "auto": mps needs macOS 14 or later.'
        return fail("device", "mps, which torch does not find", remedy)
    if not device.startswith("cuda"):
        gpu_text = f"GPU: {names}" if count else "no GPU, the CPU works"
        return ok("device", device if device == "mps" else f"{device}; {gpu_text}")
    if int(device.partition(":")[2] or 0) < count:
        return ok("device", f"{device} of {names}")
    remedy = 'Set policy.device = "auto", or install a GPU driver and a CUDA build of torch.'
    return fail("device", f"{device}, but torch sees {counted(count, 'GPU')}", remedy)


def check_engine(name: str) -> Check:
    try:
        ENGINES.load(name)().check()
    except ConfigError as error:
        return fail("engine", f"{error.key} = {error.value}", error.remedy)
    return ok("engine", name)


def check_model_memory(config: Config) -> Check:
    try:
        memory = check_memory(config)
    except ConfigError as error:
        return fail("memory", f"{error.key} = {error.value}", error.remedy)
    if not memory.weights:
        return ok("memory", f"{config.policy.model}: not estimated before it is downloaded")
    if memory.tight:
        remedy = "Close other programs, or find a model that fits with: swarm-node plan."
        return warn("memory", memory.words(), remedy)
    return ok(
        "memory",
        f"{config.policy.model}: weights, gradients and optimizer fit; all memory: swarm-node plan",
    )


def check_mismatch(config: Config, folder: RunFolder) -> Check:
    """Compare engine and learner by the latest round's figure."""
    try:
        value = float(folder.read_status()["record"]["logprob_mismatch"])
    except (NodeError, KeyError, TypeError):
        return ok("mismatch", "engine and learner are compared in the first rounds")
    limit = config.widest_mismatch
    text = f"engine and learner differ by {value:.2g} nats per token; rounding explains {limit:g}"
    remedy = "Try another engine.backend, or policy.dtype = 'float32'."
    return ok("mismatch", text) if value <= limit else warn("mismatch", text, remedy)


def check_key(folder: RunFolder) -> Check:
    if not folder.identity.exists():
        return warn("key file", f"none at {folder.identity}", "The first join creates one.")
    try:
        return ok("key file", Identity.load(folder.identity).peer_id)
    except KeyFileError as error:
        return fail("key file", "not usable", str(error))


def check_disk(folder: RunFolder, config: Config | None = None) -> Check:
    """Check the free space, also for the first checkpoint of the model that ``config`` names."""
    try:
        folder.create()
        with suppress(ConfigError):  # check_model_memory reports it
            check_space(folder, check_memory(config).checkpoint if config else 0)
    except NodeError as error:
        return failed("disk", error)
    free = shutil.disk_usage(folder.root).free
    text = f"{free / 1e9:.1f} GB free at {folder.root}"
    remedy = "Free some space, or set [node] run_dir to another disk."
    if free < NO_DISK:
        return fail("disk", text, remedy)
    return warn("disk", text, remedy) if free < LITTLE_DISK else ok("disk", text)


def check_shared_memory() -> Check:
    try:
        check_semaphores()
    except NodeError as error:
        return failed("memory", error)
    return ok("memory", "shared memory takes semaphores")


def check_clock() -> Check:
    """Check the date and the clock's drift; peers compare clocks when dialed."""
    steady, wall = time.monotonic(), time.time()
    time.sleep(CLOCK_WATCH_SECONDS)
    drift = (time.time() - wall) - (time.monotonic() - steady)
    date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    remedy = "Turn on time synchronisation, as with: timedatectl set-ntp true"
    if time.time() < EARLIEST_SANE:
        return fail("clock", date, remedy)
    if abs(drift) > CLOCK_DRIFT_SECONDS:
        return warn("clock", f"{date}, moved by {drift:+.2f} s during the check", remedy)
    return ok("clock", date)


def check_machine(config: Config, folder: RunFolder) -> list[Check]:
    return [
        *check_packages(),
        check_transport(config.network),
        check_device(config.policy.device),
        check_engine(config.engine.backend),
        check_disk(folder, config),
        check_shared_memory(),
        *check_model_files(config),
        check_model_memory(config),
        check_mismatch(config, folder),
        check_key(folder),
        check_clock(),
        check_sandbox(),
        *check_pinned(config, folder),
    ]


HEAR_SECONDS = 3.0


def check_local_network(network: NetworkSection, folder: RunFolder) -> Check:
    """Listen briefly for nodes other than the folder's own."""
    try:
        sightings = asyncio.run(_heard(network.listen))
    except MulticastUnavailable as error:
        remedy = "Name peers with --peers, which needs no multicast."
        return fail("lan", str(error), remedy)
    own_id = folder.read_status().get("peer_id") if folder.status.exists() else None
    peers = {each.peer_id: each.swarm for each in sightings if each.peer_id != own_id}
    if not peers:
        remedy = "Run a member there with --lan; open UDP port 5353 in the firewalls."
        return warn("lan", "no other node is announced on the local network", remedy)
    swarms = sorted({each[:16] for each in peers.values()})
    nodes = counted(len(peers), "node")
    return ok("lan", f"{nodes} announced on the local network, in {', '.join(swarms[:8])}")


async def _heard(listen: tuple[str, ...]) -> list[Sighting]:
    multicast = await Multicast.open(networks(listen), Counters(), random.Random())
    try:
        await asyncio.sleep(HEAR_SECONDS)
        return await multicast.seen()
    finally:
        await multicast.close()


ANSWER_SECONDS = 10.0


async def check_reach(transport: Transport, peers: Sequence[str]) -> list[Check]:
    """Ask connected peers to dial back this machine's ports."""
    ports = own_ports(transport.addresses())[:MAX_PORTS]
    answers = []
    for peer in peers:
        try:
            answers.append(await _ask(transport, peer, ports))
        except (TransportError, ProtocolError) as error:
            remedy = "Ask another peer, or its owner for a newer release."
            text = f"{peer} does not try to dial this machine: {_line(error)}"
            return [warn("reach", text, remedy)]
    if not answers:
        return []
    hosts = [answer.host for answer in answers]
    way: Way = "direct" if dialed(answers) else "unreachable"
    return [_finding(describe_reach(way, ports, hosts, 0))]


def reported_reach(folder: RunFolder) -> list[Check]:
    """Return the reachability that a running node in this folder has found."""
    try:
        reach = folder.read_status().get("reach")
    except NodeError:  # a starting node has not reported yet
        return []
    return [_finding(Reach(**reach))] if reach else []


def _finding(reach: Reach) -> Check:
    text = f"{reach.way}: {reach.cause}" if reach.cause else reach.way
    return warn("reach", text, reach.remedy) if reach.remedy else ok("reach", text)


async def _ask(transport: Transport, peer: str, ports: tuple[int, ...]) -> DialledBack:
    request, limit = encode_dial_back_request(ports), MAX_DIAL_BACK_RESPONSE_BYTES
    answer = await transport.request(
        peer, DIAL_BACK_STREAM, request, limit=limit, deadline=ANSWER_SECONDS
    )
    return decode_dial_back_response(answer, ports)


CONNECT_SECONDS = 5.0
DIAL_SECONDS = 20.0
HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")


def check_network(config: Config, folder: RunFolder) -> list[Check]:
    """Check all ports and peers of the config."""
    peers, lan = config.network.peers, config.network.lan
    checks: list[Check] = []
    if lan:
        checks.append(check_local_network(config.network, folder))
    if not peers and not lan:
        remedy = "Name some with --peers, or wait for peers; until then the node trains alone."
        checks.append(warn("peers", "none named", remedy))
    elif peers:
        checks += [_check_connection(peer) for peer in peers]
        checks += asyncio.run(_dial(peers, config, folder))
    if folder.holder() is not None:
        checks += reported_reach(folder)
    return [*check_ports(config, folder), *checks]


def check_ports(config: Config, folder: RunFolder) -> list[Check]:
    """Check that the ports are free; a node running here holds them itself."""
    if (process := folder.holder()) is not None:
        return [ok("ports", f"in use by this node, process {process}")]
    return [_check_port(address) for address in config.network.listen]


def _check_port(address: str) -> Check:
    if not host_of(address):
        remedy = "Listen on an address such as /ip4/0.0.0.0/tcp/31337."
        return warn("ports", f"cannot try {address}", remedy)
    if reason := why_not_free(address):
        remedy = "Stop the program that uses it, or set another port or address in the config."
        return fail("ports", f"{address}: {reason}", remedy)
    return ok("ports", f"{address} is free" if port_of(address) else f"{address}: any free port")


def _check_connection(address: str) -> Check:
    """Open a TCP connection: a dead machine differs from a swarm without answer."""
    family, host, *_ = address.lstrip("/").split("/")
    port = port_of(address)
    if family not in HOSTS or not port:
        return warn("peers", f"cannot try {address}", "Only the dial below can test it.")
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        remedy = "Ask its owner whether it runs; check firewalls and the port on both sides."
        return fail("peers", f"{host} port {port}: {error.strerror or error}", remedy)
    return ok("peers", f"{host} port {port} accepts connections")


async def _dial(peers: Sequence[str], config: Config, folder: RunFolder) -> list[Check]:
    """Dial each peer as this node would, with a temporary identity."""
    network = config.network
    kind: TransportKind = TRANSPORTS.open(network.transport, network.transport_options)
    is_running = folder.holder() is not None
    listen = ("/ip4/127.0.0.1/tcp/0",) if is_running else network.listen
    changes = {"listen": listen, "announce_maddrs": (), "peers": (), "relay": "off"}
    network = network.model_copy(update=changes)
    with tempfile.TemporaryDirectory() as directory:
        temporary = RunFolder(Path(directory))
        Identity.create(temporary.identity)
        transport = kind.open(network, temporary, Counters(), beside=True)
        try:
            await transport.start()
            results = {peer: await _dial_one(transport, peer, config, folder) for peer in peers}
            reachable = (peer for peer, checks in results.items() if checks[0].level == "ok")
            peer_ids = [peer.rpartition("/")[2] for peer in reachable]
            reach = [] if is_running else await check_reach(transport, peer_ids)
            return [*(check for checks in results.values() for check in checks), *reach]
        except TransportError as error:
            cause, remedy = error.parts()
            return [fail("dial", cause, remedy or "Set network.listen to an address of this host.")]
        finally:
            await transport.close()


async def _dial_one(
    transport: Transport, address: str, config: Config, folder: RunFolder
) -> list[Check]:
    peer = address.rpartition("/")[2]
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            peer_id = await transport.connect(address)
    except ClockSkew as error:
        return [fail("dial", *error.parts())]
    except (TransportError, TimeoutError) as error:
        # The error may quote the peer, so the remedy is a fixed one.
        problem = _line(error) or f"no peer answers at {address} within {DIAL_SECONDS:g} s"
        remedy = "Compare the address with its start message. Ask its owner whether it runs."
        return [fail("dial", problem, remedy)]
    check = ok("dial", f"{peer} answers, and its clock agrees")
    try:
        signed = await fetch_manifest(transport, peer_id)
    except TransportError as error:
        remedy = "Ask its owner whether it belongs to a swarm."
        return [check, warn("tasks", f"{peer} sends no manifest: {_line(error)}", remedy)]
    return [
        check,
        *_check_swarm(signed, peer, folder),
        *check_manifest(signed, peer, config, folder),
    ]


def _check_swarm(signed: bytes, peer: str, folder: RunFolder) -> list[Check]:
    if not folder.manifest.exists():
        return []
    try:
        own_swarm = swarm_id(folder.manifest.read_bytes()).hex()[:16]
        peer_swarm = swarm_id(signed).hex()[:16]
    except ProtocolError:
        return []  # each manifest's own check reports the invalid one
    if own_swarm == peer_swarm:
        return [ok("swarm", f"{peer} is in this folder's swarm {own_swarm}")]
    remedy = (
        f"Move there with swarm-node join --swarm {peer_swarm} --peers ADDRESS, join it from a new "
        "folder, or name peers of this folder's swarm."
    )
    return [fail("swarm", f"{peer} is in {peer_swarm}, this folder in {own_swarm}", remedy)]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
