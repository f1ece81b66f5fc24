"""``swarm-node status``: what a node is doing."""

from __future__ import annotations

from typing import Any

from node.cli.common import ConfigOption, DebugOption, JsonOption, Node, open_node, print_json
from node.monitor.printable import say


def command(
    config: ConfigOption = None, json: JsonOption = False, debug: DebugOption = False
) -> None:
    """Show what the node is doing, or did last."""
    status = read(open_node(config))
    if json:
        print_json(status)
        return
    for name, value in _lines(status):
        say(f"{name:<10}{value}")


def read(node: Node) -> dict[str, Any]:
    """The node's status file, and whether it runs now.

    Raises:
        NodeError: it never ran.
    """
    status = dict(node.folder.read_status())
    return {**status, "running": node.folder.holder() is not None}


def _lines(status: dict[str, Any]) -> list[tuple[str, str]]:
    from node.monitor.record import RoundRecord
    from node.monitor.words import one_line, refusals, split

    lines = [
        ("state", f"running as process {status['pid']}" if status["running"] else "not running"),
        ("peer id", status["peer_id"]),
        ("swarm", f"{status['swarm_name']} {status['swarm_id']}"),
        *(("address", address) for address in status["addresses"]),
        ("peers", str(len(status["peers"]))),
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
