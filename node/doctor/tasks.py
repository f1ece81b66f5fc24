"""What a swarm's manifest would open on this machine. Nothing is opened for it."""

from __future__ import annotations

from node.config.config import Config
from node.config.sections import TasksSection
from node.doctor.finding import Finding, fail, ok, warn
from node.errors import NodeError
from node.network.pinned_manifest import checked_manifest
from node.storage.run_folder import RunFolder
from node.tasks.catalogue import allowed_by, overview
from node.tasks.sandbox.sandbox import REMEDY, find_walls


def check_walls() -> Finding:
    """What a process that scores texts of strangers is kept in."""
    walls = find_walls()
    return ok("isolation", str(walls)) if walls.whole else warn("isolation", str(walls), REMEDY)


def check_pinned(config: Config, folder: RunFolder) -> list[Finding]:
    """The manifest in the run folder, where there is one."""
    if not folder.manifest.exists():
        return []
    return check_manifest(folder.manifest.read_bytes(), str(folder.manifest), config.tasks)


def check_manifest(signed: bytes, source: str, tasks: TasksSection) -> list[Finding]:
    """What joining by a manifest would open, and what it would not."""
    try:
        manifest = checked_manifest(signed, source)
    except NodeError as error:
        return [fail("tasks", f"{error.what}: {error.value}", error.remedy)]
    opened, *closed = overview(manifest.catalogue, allowed_by(tasks))
    return [ok("tasks", opened), *(_closed(line) for line in closed)]


def _closed(line: str) -> Finding:
    found, _, remedy = line.partition(": ")
    return warn("tasks", found, f"{remedy[0].upper()}{remedy[1:]}.")
