"""The transport over p2pd: hivemind's DHT for records, libp2p streams otherwise."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.node_transport import NodeTransport

PACKAGES = ("hivemind", "hivemind.dht", "hivemind.utils")  # their ``__init__`` imports torch
USED = {
    "logging": ("get_logger",),
    "serializer": ("MSGPackSerializer", "SerializerBase"),
    "timed_storage": ("get_dht_time",),
}
"""Names that hivemind's DHT imports from ``hivemind.utils``, by defining module."""


class HivemindTransport(NodeTransport):
    """:class:`NodeTransport` over a supervised p2pd, with the same arguments."""

    relays = True

    def __init__(self, identity: Path, **settings: Any) -> None:
        super().__init__(HivemindNode.start, identity, **settings)

    @staticmethod
    def prepare_process() -> None:
        import_network()


def import_network() -> None:
    """Make ``hivemind.p2p`` and ``hivemind.dht.node`` importable without torch.

    ``import hivemind`` loads torch and scipy for averaging and experts, which a node does not use:
    3 s of CPU and 250 MiB. The surrounding packages stay empty while the process lives, so use this
    only in a process that runs just the network. Without hivemind it does nothing.
    """
    if find_spec("hivemind") is None:
        return
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None, f"hivemind has no {name}"
        package = sys.modules[name] = module_from_spec(spec)  # its __init__ does not run
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, package)
    utils = sys.modules["hivemind.utils"]
    for module, names in USED.items():
        source = import_module(f"hivemind.utils.{module}")
        for name in names:
            setattr(utils, name, getattr(source, name))
