"""What a manifest would open on this machine, told from its words alone: nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence

from node.environments.libraries.library import LIBRARIES
from node.environments.shipped import SHIPPED
from node.tasks.catalogue import NO_FILE, NO_PACKAGE, UNREPEATED, Allowed, evaluates, in_file
from node.tasks.sources import environments, plugins
from node.tasks.sources.unsafe_families import UNREPEATABLE
from node.tasks.working.families import FAMILIES
from protocol.manifest import ENVIRONMENT, EnvSpec


def overview(specs: Sequence[EnvSpec], allowed: Allowed) -> list[str]:
    """One line for all that would be opened, and one for each env that would not.

    What a manifest says is shown escaped, since whoever founded the swarm wrote it.
    """
    closed = {spec.name: why for spec in specs if (why := _closed(spec, allowed))}
    opened = [_entry(spec) for spec in specs if spec.name not in closed]
    return [f"this swarm's tasks here: {', '.join(opened) or 'none'}", *closed.values()]


def _closed(spec: EnvSpec, allowed: Allowed) -> str | None:
    """What keeps an env closed; what a package evaluates is known only once it is open."""
    reason = None
    if in_file(spec) and spec.name not in allowed.files:
        reason = NO_FILE
    elif not in_file(spec) and not _is_here(spec):
        reason = environments.absent(spec.name) or NO_PACKAGE
    elif spec.source == "reasoning-gym" and spec.name in UNREPEATABLE:
        reason = UNREPEATED
    elif evaluates(spec):
        return allowed.closed(spec.name)
    return reason.format(name=spec.name) if reason else None


def _is_here(spec: EnvSpec) -> bool:
    """Whether what brings an env is installed."""
    brought = {"plugin": plugins.is_here, ENVIRONMENT: environments.is_here}.get(spec.source)
    return brought is None or brought(spec.name)


def _entry(spec: EnvSpec) -> str:
    levels = f"{len(spec.levels)} level" + "s" * (len(spec.levels) != 1)
    brought = "swarm-node" if spec.name in (FAMILIES.keys() | SHIPPED.keys()) else "your package"
    library = spec.name if spec.name in LIBRARIES else brought
    source = {"plugin": brought, ENVIRONMENT: library}.get(spec.source, spec.source)
    source = "your file" if in_file(spec) else source
    evaluating = ", evaluates answers" * evaluates(spec)
    return f"{spec.name} ({levels} of {source}{evaluating})"
