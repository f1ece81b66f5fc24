"""All targets by name, and the module of each: a process imports no other one."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz import lan_targets, node_targets, protocol_targets, swarm_targets
from tests.fuzz.target import Target

_MODULES = (protocol_targets, swarm_targets, lan_targets, node_targets)
TARGETS: dict[str, Callable[[], Target]] = {
    name: make for module in _MODULES for name, make in module.TARGETS.items()
}
MODULES = {name: module.__name__ for module in _MODULES for name in module.TARGETS}
