"""What a manifest would open on this machine, told from its words alone: nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence

from node.tasks.catalogue import NO_FILE, NO_PACKAGE, UNREPEATED, Allowed, evaluates
from node.tasks.sources.plugins import is_here
from node.tasks.sources.unsafe_families import UNREPEATABLE
from node.tasks.working.families import FAMILIES
from protocol.manifest import EnvSpec


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
    if spec.source == "jsonl" and spec.name not in allowed.files:
        reason = NO_FILE
    elif spec.source == "plugin" and not is_here(spec.name):
        reason = NO_PACKAGE
    elif spec.source == "reasoning-gym" and spec.name in UNREPEATABLE:
        reason = UNREPEATED
    elif evaluates(spec):
        return allowed.closed(spec.name)
    return reason.format(name=spec.name) if reason else None


def _entry(spec: EnvSpec) -> str:
    levels = f"{len(spec.levels)} level" + "s" * (len(spec.levels) != 1)
    brought = "swarm-node" if spec.name in FAMILIES else "your package"
    source = {"jsonl": "your file", "plugin": brought}.get(spec.source, spec.source)
    evaluating = ", evaluates answers" * evaluates(spec)
    return f"{spec.name} ({levels} of {source}{evaluating})"
