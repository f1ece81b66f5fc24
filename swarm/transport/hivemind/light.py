"""Importing hivemind's network without its training.

``import hivemind`` loads torch and scipy for averaging and experts, of which a node uses nothing:
3 s of CPU and 250 MiB.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec

PACKAGES = ("hivemind", "hivemind.dht", "hivemind.utils")
"""Those whose ``__init__`` imports torch."""
USED = {
    "logging": ("get_logger",),
    "serializer": ("MSGPackSerializer", "SerializerBase"),
    "timed_storage": ("get_dht_time",),
}
"""What hivemind's DHT takes from ``hivemind.utils``, by the module that defines it."""


def import_network() -> None:
    """Make ``hivemind.p2p`` and ``hivemind.dht.node`` importable without torch.

    The packages around them stay empty for as long as the process lives, so this is for a process
    that runs nothing but the network. Without hivemind it does nothing.
    """
    if find_spec("hivemind") is None:
        return
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None, f"hivemind has no {name}"
        package = sys.modules[name] = module_from_spec(spec)  # its __init__ is not run
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, package)
    utils = sys.modules["hivemind.utils"]
    for module, names in USED.items():
        defined = import_module(f"hivemind.utils.{module}")
        for name in names:
            setattr(utils, name, getattr(defined, name))
