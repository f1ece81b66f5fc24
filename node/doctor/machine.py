"""Checks of this machine: packages, transport, GPU, memory, disk, clock, sandbox."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from node.concurrency.threads import check_semaphores
from node.config.config import Config
from node.config.registry import ENGINES, TRANSPORTS
from node.config.sections import NetworkSection
from node.errors import ConfigError, NodeError
from node.network.pinned_manifest import checked_manifest
from node.network.transports import TransportKind
from node.plan.model_shape import check_memory
from node.storage.run_folder import RunFolder
from node.tasks.catalogue import Allowed, allowed_by, overview
from node.tasks.sandbox.sandbox import REMEDY, find_walls
from protocol.identity import Identity, KeyFileError
from swarm.common.util import DISTRIBUTION, counted


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; "fail" prevents a node from working, "warn" may."""

    check: str
    level: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Check:
    """Return a finding: all is well."""
    return Check(check, "ok", found)


def warn(check: str, found: str, remedy: str) -> Check:
    """Return a finding: a node works, but possibly not as intended."""
    return Check(check, "warn", found, remedy)


def fail(check: str, found: str, remedy: str) -> Check:
    """Return a finding: a node does not work."""
    return Check(check, "fail", found, remedy)


def check_walls() -> Check:
    """Check the sandbox of the verifier process."""
    walls = find_walls()
    return ok("isolation", str(walls)) if walls.whole else warn("isolation", str(walls), REMEDY)


def check_pinned(config: Config, folder: RunFolder) -> list[Check]:
    """Check the manifest in the run folder, if any."""
    if not folder.manifest.exists():
        return []
    allowed = allowed_by(config.tasks, config.sandbox)
    return check_manifest(folder.manifest.read_bytes(), str(folder.manifest), allowed)


def check_manifest(signed: bytes, source: str, allowed: Allowed) -> list[Check]:
    """Check which task families of a manifest this node would open."""
    try:
        manifest = checked_manifest(signed, source)
    except NodeError as error:
        return [fail("tasks", f"{error.what}: {error.value}", error.remedy)]
    opened, *closed = overview(manifest.catalogue, allowed)
    checks = [ok("tasks", opened)]
    for line in closed:
        found, _, remedy = line.partition(": ")
        checks.append(warn("tasks", found, f"{remedy[0].upper()}{remedy[1:]}."))
    return checks


LITTLE_DISK = 2 << 30
NO_DISK = 200 << 20
CLOCK_WATCH_SECONDS = 0.5
CLOCK_DRIFT_SECONDS = 0.05
EARLIEST_SANE = 1_735_689_600.0  # 2025-01-01


def check_packages() -> list[Check]:
    """Check installed package versions against the requirements."""
    try:
        wanted = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        found = "a source tree that is not installed, versions unknown"
        return [warn("packages", found, "Install it with: pip install .")]
    requirements = [r for r in map(Requirement, wanted) if not r.marker or r.marker.evaluate()]
    findings = [f for f in map(_package, requirements) if f]
    return findings or [ok("packages", f"all {len(requirements)} as required")]


def _package(wanted: Requirement) -> Check | None:
    remedy = f"Install it with: pip install '{wanted.name}{wanted.specifier}'"
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return fail("packages", f"{wanted.name} is missing", remedy)
    if wanted.specifier.contains(version, prereleases=True):
        return None
    return warn("packages", f"{wanted.name} {version}, tested with {wanted.specifier}", remedy)


def check_transport(network: NetworkSection) -> Check:
    """Check the requirements of the transport."""
    kind: TransportKind = TRANSPORTS.load(network.transport)()
    if kind.daemon:
        return check_daemon()
    try:
        kind.check(network)
    except ConfigError as error:
        return fail("transport", f"{error.what}: {error.value}", error.remedy)
    return ok("transport", network.transport)


def check_daemon() -> Check:
    """Check that hivemind's p2p daemon is present and starts."""
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
    """Check that the policy's device is available."""
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(n) for n in range(count))
    if device == "mps" and not torch.backends.mps.is_available():
        remedy = 'Set policy.device = "auto": only Macs have it, from macOS 14 on.'
        return fail("device", "mps, which torch does not see", remedy)
    if not device.startswith("cuda"):
        return ok("device", f"{device}; " + (f"GPU: {names}" if count else "no GPU, the CPU works"))
    index = int(device.partition(":")[2] or 0)
    if index < count:
        return ok("device", f"{device} of {names}")
    remedy = 'Set policy.device = "auto", or install a GPU driver and a CUDA build of torch.'
    return fail("device", f"{device}, but torch sees {counted(count, 'GPU')}", remedy)


def check_engine(name: str) -> Check:
    """Check that the engine's library is installed."""
    try:
        ENGINES.load(name)().check()
    except ConfigError as error:
        return fail("engine", f"{error.key} = {error.value}", error.remedy)
    return ok("engine", name)


def check_model_memory(config: Config) -> Check:
    """Check that this machine's memory can train the model."""
    try:
        found = check_memory(config)
    except ConfigError as error:
        return fail("memory", f"{error.key} = {error.value}", error.remedy)
    if not found.weights:
        return ok("memory", f"{config.policy.model}: its weights are not counted before it is here")
    if found.tight:
        remedy = "Close other programs, or see what would fit: swarm-node plan."
        return warn("memory", found.words(), remedy)
    return ok(
        "memory",
        f"{config.policy.model}: weights, gradients and optimizer fit; all of it: swarm-node plan",
    )


def check_key(folder: RunFolder) -> Check:
    """Check that the identity is usable and private."""
    if not folder.identity.exists():
        return warn("key file", f"none at {folder.identity}", "The first join makes one.")
    try:
        return ok("key file", Identity.load(folder.identity).peer_id)
    except KeyFileError as error:
        return fail("key file", "not usable", str(error))


def check_disk(folder: RunFolder) -> Check:
    """Check that the run folder is writable and has space."""
    try:
        folder.create()
    except NodeError as error:
        return fail("disk", f"{error.what}: {error.value}", error.remedy)
    free = shutil.disk_usage(folder.root).free
    found = f"{free / 1e9:.1f} GB free at {folder.root}"
    remedy = "Free some space, or set [node] run_dir to another disk."
    if free < NO_DISK:
        return fail("disk", found, remedy)
    return warn("disk", found, remedy) if free < LITTLE_DISK else ok("disk", found)


def check_shared_memory() -> Check:
    """Check that shared memory has room for the network library's semaphores."""
    try:
        check_semaphores()
    except NodeError as error:
        return fail("memory", f"{error.what}: {error.value}", error.remedy)
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
        return warn("clock", f"{date}, moved by {drift:+.2f} s while watched", remedy)
    return ok("clock", date)


def check_machine(config: Config, folder: RunFolder) -> list[Check]:
    """Run all checks of this machine."""
    return [
        *check_packages(),
        check_transport(config.network),
        check_device(config.policy.device),
        check_engine(config.engine.kind),
        check_disk(folder),
        check_shared_memory(),
        check_model_memory(config),
        check_key(folder),
        check_clock(),
        check_walls(),
        *check_pinned(config, folder),
    ]
