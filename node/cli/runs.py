"""``swarm-node runs``: the nodes of this machine, by their run folders."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.common import DebugOption, JsonOption, print_json
from node.errors import UsageError
from node.monitor.terminal import say
from swarm.common.util import counted

if TYPE_CHECKING:
    from rich.table import Table

    from node.run.status import Run


def command(
    path: Annotated[Path, typer.Argument(help="Folder to look in.")] = Path(),
    depth: Annotated[
        int, typer.Option("--depth", min=0, max=16, help="Folders to go down at most.")
    ] = 4,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the run folders in and below a folder, with what is true of each.

    No link is followed, and no hidden folder entered.
    """
    from node.monitor.terminal import Terminal
    from node.run.status import find_runs

    if not path.is_dir():
        raise UsageError("no such folder", path, "Name one that may hold run folders.")
    with Terminal(stderr=True).status("looking for run folders"):
        runs, unread = find_runs(path, depth)
    if json:
        print_json({"runs": [asdict(run) for run in runs], "unread": unread})
        return
    if runs:
        Terminal().print_table(_table(runs))
    else:
        say(f"no run folders in {path} or {counted(depth, 'folder')} below it")
    if unread:
        say(f"{counted(len(unread), 'folder')} could not be read, such as {unread[0]}", err=True)


def _table(runs: list[Run]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from node.monitor.record import NONE, lapse, share, short_ids, size

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("swarm", overflow="fold")
    table.add_column("", no_wrap=True)
    for column in ("round", "reward", "size", "age"):
        table.add_column(column, justify="right", no_wrap=True)
    ids = short_ids([run.swarm_id or "" for run in runs], least=8)
    for run, shown in zip(runs, ids, strict=True):
        table.add_row(
            run.path,
            run.state,
            run.swarm_name or NONE,
            shown,
            NONE if run.round is None else str(run.round),
            share(run.reward),
            size(run.size),
            NONE if run.age_s is None else lapse(run.age_s),
        )
    return table
