"""``swarm-node peers``: who is there, and what came of it."""

from __future__ import annotations

from typing import Any

from node.cli.common import ConfigOption, DebugOption, JsonOption, open_node, print_json


def command(
    config: ConfigOption = None, json: JsonOption = False, debug: DebugOption = False
) -> None:
    """List the peers met, with what they gave and what was refused."""
    from node.run.status_file import present_status

    peers = present_status(open_node(config).folder)["peers"]
    if json:
        print_json(peers)
        return
    from node.monitor.terminal import Terminal

    Terminal().print(_table(peers) if peers else "no peers met yet")


def _table(peers: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    from node.monitor.words import refusals, size

    table = Table()
    table.add_column("peer", overflow="fold")
    for column in ("in", "out", "admitted", "strikes"):
        table.add_column(column, justify="right")
    table.add_column("refused")
    for peer in peers:
        banned = " (banned)" if peer["banned"] else ""
        refused = peer["refused"]
        table.add_row(
            peer["peer_id"],
            size(peer["bytes_in"]),
            size(peer["bytes_out"]),
            str(peer["admitted"]),
            f"{peer['strikes']:g}{banned}",
            refusals(refused) if isinstance(refused, dict) else str(refused),
        )
    return table
