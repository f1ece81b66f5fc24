"""The present status of a node, from its status file and the lock of its folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from node.errors import NodeError
from node.storage.run_folder import RunFolder

STARTING, RUNNING, STOPPING, STOPPED = "starting", "running", "stopping", "stopped"

CRASHED = "crashed"  # the process ended without reporting it

# Signed but unchecked claims of a peer; null if absent.
PROFILE_KEYS = ("name", "line", "model", "version")

OF_A_CONNECTION = ("link", "round_trip_s", "clock_ahead_s")  # null for a peer that is not connected


def present_status(folder: RunFolder) -> dict[str, Any]:
    """Return a node's status: the status file, corrected by who holds the folder.

    Adds ``running``, ``state`` and ``age_s`` (seconds). Raises NodeError if it is unreadable.
    """
    holder = folder.holder()
    try:
        reported: Mapping[str, Any] = folder.read_status()
    except NodeError:
        if holder is None:
            raise
        reported = {}
    state = str(reported.get("state", RUNNING if holder else STOPPED))  # earlier releases lack it
    if holder is None:
        state = STOPPED if state == STOPPED else CRASHED
    elif reported.get("pid") != holder:
        state = STARTING
    works = state in (RUNNING, STOPPING)
    age = max(0.0, time.time() - reported["time"]) if "time" in reported else None
    return {
        **dict.fromkeys(("peer_id", "swarm_id", "swarm_name", "record")),
        "addresses": [],
        "pid": holder,
        **reported,
        "dashboard": reported.get("dashboard") if works else None,
        "public": reported.get("public") if works else None,
        "peers": [_now(peer, works) for peer in reported.get("peers", [])],
        "running": holder is not None,
        "state": state,
        "age_s": age,
    }


def _now(peer: Mapping[str, Any], works: bool) -> dict[str, Any]:
    present = {**peer, "connected": works and peer.get("connected", False)}
    gone = () if works else (key for key in OF_A_CONNECTION if key in peer)
    return {**present, **dict.fromkeys(gone)}
