"""What a node's status file says about it now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from node.errors import NodeError
from node.storage.run_folder import RunFolder

STARTING, RUNNING, STOPPING, STOPPED = "starting", "running", "stopping", "stopped"


CRASHED = "crashed"
"""What a process that said nothing at its end has done."""


TOLD = ("name", "line", "model", "version")
"""What a peer may say of itself, signed and checked by nobody; null where it does not."""


OF_A_CONNECTION = ("link", "round_trip_s", "clock_ahead_s")
"""What is told of a peer as long as it is connected; null where it is not."""


def present_status(folder: RunFolder) -> dict[str, Any]:
    """What is true of a node now, by its status file and by who holds its folder.

    Besides what the file says: ``running``, ``state`` and ``age_s``, seconds since it was written.
    A node that does not run is connected to nobody.

    Raises:
        NodeError: it never ran, or its folder may not be read.
    """
    holder = folder.holder()
    try:
        told: Mapping[str, Any] = folder.read_status()
    except NodeError:
        if holder is None:
            raise
        told = {}
    state = _state(told, holder)
    works = state in (RUNNING, STOPPING)
    peers = [_now(peer, works) for peer in told.get("peers", [])]
    age = max(0.0, time.time() - told["time"]) if "time" in told else None
    return {
        **dict.fromkeys(("peer_id", "swarm_id", "swarm_name", "record")),
        "addresses": [],
        "pid": holder,
        **told,
        "dashboard": told.get("dashboard") if works else None,
        "public": told.get("public") if works else None,
        "peers": peers,
        "running": holder is not None,
        "state": state,
        "age_s": age,
    }


def _now(peer: Mapping[str, Any], works: bool) -> dict[str, Any]:
    """What was told of a peer, as far as it holds for a node that works or does not."""
    present = {**peer, "connected": works and peer.get("connected", False)}
    gone = () if works else (key for key in OF_A_CONNECTION if key in peer)
    return {**present, **dict.fromkeys(gone)}


def _state(told: Mapping[str, Any], holder: int | None) -> str:
    said = told.get("state", RUNNING if holder else STOPPED)  # not said by an earlier release
    if holder is None:
        return STOPPED if said == STOPPED else CRASHED
    return str(said) if told.get("pid") == holder else STARTING
