"""``swarm-node status``: what a node is doing."""

from __future__ import annotations

from typing import Any

from node.cli.common import ConfigOption, DebugOption, JsonOption, open_node, print_json
from node.monitor.terminal import say

PAGES = {"dashboard": "page", "public": "public"}
"""What a line with the address of each page begins with."""


def command(
    config: ConfigOption = None, json: JsonOption = False, debug: DebugOption = False
) -> None:
    """Show what the node is doing, or did last."""
    from node.monitor.terminal import present_status

    status = present_status(open_node(config).folder)
    if json:
        print_json(status)
        return
    for name, value in _lines(status):
        say(f"{name:<10}{value}")


def _lines(status: dict[str, Any]) -> list[tuple[str, str]]:
    from node.monitor.record import RoundRecord, one_line, refusals, split

    process = f" as process {status['pid']}" if status["running"] else ""
    age = "" if status["age_s"] is None else f", told {status['age_s']:.0f} s ago"
    lines = [("state", f"{status['state']}{process}{age}")]
    if not status["peer_id"]:
        return lines
    lines += [
        ("peer id", status["peer_id"]),
        ("swarm", f"{status['swarm_name']} {status['swarm_id']}"),
        *(("address", address) for address in status["addresses"]),
        *(("reach", line) for line in _reach(status)),
        ("peers", _peers(status)),
        *((name, status[page]) for page, name in PAGES.items() if status[page]),
    ]
    if status["record"] is None:
        return [*lines, ("round", "none done yet")]
    record = RoundRecord.from_dict(status["record"])
    return [
        *lines,
        ("last", one_line(record)),
        ("time", split(record.seconds)),
        ("refused", refusals(record.refused)),
        ("memory", f"{record.rss_mb:.0f} MB"),
    ]


def _reach(status: dict[str, Any]) -> list[str]:
    """Whether others can dial a node that runs, why not, and what would help."""
    reach = status.get("reach")  # not told by an earlier release
    if not reach or not status["running"]:
        return []
    told = f"{reach['way']}: {reach['cause']}" if reach["cause"] else reach["way"]
    return [told, f"-> {reach['remedy']}"] if reach["remedy"] else [told]


def _peers(status: dict[str, Any]) -> str:
    met = [peer for peer in status["peers"] if not _stranger(peer, status["swarm_id"])]
    connected = sum(peer["connected"] for peer in met)
    strangers = len(status["peers"]) - len(met)
    others = f"; {strangers} in another swarm" if strangers else ""
    return f"{connected} connected, {len(met)} met{others}"


def _stranger(peer: dict[str, Any], ours: str) -> bool:
    return peer.get("swarm_id") not in (None, ours)
