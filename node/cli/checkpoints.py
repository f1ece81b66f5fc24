"""``swarm-node checkpoints``: what a run can go back to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from node.cli.common import ConfigOption, DebugOption, JsonOption, open_node, print_json


def command(
    config: ConfigOption = None, json: JsonOption = False, debug: DebugOption = False
) -> None:
    """List the checkpoints: round, policy step, held-out reward, size."""
    from node.storage.checkpoint_list import list_checkpoints, no_checkpoint
    from node.storage.checkpoints import Checkpoints

    folder = open_node(config).folder.checkpoints
    entries = list_checkpoints(Checkpoints(folder))
    if json:
        print_json([asdict(entry) for entry in entries])
        return
    if not entries:
        raise no_checkpoint(folder)
    from node.monitor.terminal import Terminal

    Terminal().print_table(_table(entries))


def _table(entries: list[Any]) -> Any:
    from rich.table import Table

    from node.monitor.record import NONE, age, share, size

    table = Table()
    for column in ("round", "step", "held-out reward", "size", "written"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    newest = max((e.round for e in entries if not e.rolled_back), default=None)
    for entry in entries:
        marks = {
            "newest": entry.round == newest and not entry.rolled_back,
            "best": entry.best,
            "rolled back": entry.rolled_back,
        }
        table.add_row(
            str(entry.round),
            NONE if entry.policy_step is None else str(entry.policy_step),
            share(entry.reward),
            size(entry.bytes),
            age(entry.age_s),
            ", ".join(mark for mark, holds in marks.items() if holds),
        )
    return table
