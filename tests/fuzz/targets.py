"""All targets by name, and their modules: a process imports only its own module."""

from tests.fuzz import node_targets, protocol_targets, swarm_targets
from tests.fuzz.target import TARGETS

MODULES = {
    name: module.__name__
    for module in (protocol_targets, swarm_targets, node_targets)
    for name, make in TARGETS.items()
    if make.__module__ == module.__name__
}
