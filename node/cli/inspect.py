"""Commands that inspect, stop or roll back existing nodes."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from node.cli.options import (
    ConfigOption,
    JsonOption,
    open_folder,
    open_node,
    print_json,
    say_lines,
    waiting,
)
from node.errors import NodeError, UsageError
from node.monitor.groups import in_full, read_rollouts
from node.monitor.logs import LogTail
from node.monitor.output import as_typed, say
from node.monitor.record import (
    NONE,
    RoundRecord,
    Terminal,
    figure_columns,
    one_line,
    refusals,
    share,
    short_ids,
    size,
    split,
)
from node.storage.checkpoints import (
    CheckpointEntry,
    Checkpoints,
    list_checkpoints,
    named_round,
    no_checkpoint,
)
from node.storage.run_folder import CRASHED, STOPPED, present_status
from swarm.common.counters import Counters
from swarm.common.util import counted, duration

if TYPE_CHECKING:
    from node.run.status import Run


def list_command(
    path: Annotated[Path, typer.Argument(help="Folder to look in.")] = Path(),
    depth: Annotated[
        int, typer.Option(min=0, max=16, help="Maximum depth of the folders to look in.")
    ] = 4,
    json: JsonOption = False,
) -> None:
    """List the run folders in and below a folder, with the state of each.

    The command skips links and hidden folders.
    """
    from node.run.status import find_runs

    if not path.is_dir():
        raise UsageError("no such folder", path, "Name one that may hold run folders.")
    with waiting("looking for run folders"):
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
    columns = [
        *(Column("run", overflow="fold"), Column("state", no_wrap=True)),
        *(Column("swarm", overflow="fold"), Column("", no_wrap=True)),
        *figure_columns("round", "reward", "size", "age"),
    ]
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    ids = short_ids([run.swarm_id or "" for run in runs], least=8)
    for run, short_id in zip(runs, ids, strict=True):
        table.add_row(
            run.path,
            run.state,
            run.swarm_name or NONE,
            short_id,
            NONE if run.round is None else str(run.round),
            share(run.reward),
            size(run.size),
            NONE if run.age_s is None else duration(run.age_s),
        )
    return table


PAGES = {"dashboard": "page", "public": "public"}  # labels of the lines with their addresses


def status_command(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show what the node is doing, or its last state."""
    status = present_status(open_folder(config))
    if json:
        print_json(status)
        return
    for name, value in _lines(status):
        say(f"{name:<10}{value}")


def _lines(status: dict[str, Any]) -> list[tuple[str, str]]:
    process = f" as process {status['pid']}" if status["running"] else ""
    age = "" if status["age_s"] is None else f", reported {duration(status['age_s'])} ago"
    lines = [("state", f"{status['state']}{process}{age}")]
    if not status["peer_id"]:
        return lines
    lines += [
        ("peer id", status["peer_id"]),
        ("swarm", f"{status['swarm_name']} {status['swarm_id']}"),
        *(("address", address) for address in status["addresses"]),
        *(("reach", line) for line in _reach(status)),
        ("peers", _peers(status["peers"], status["swarm_id"], status.get("peers_more") or 0)),
        *((name, status[page]) for page, name in PAGES.items() if status[page]),
    ]
    if status["record"] is None:
        return [*lines, ("round", "none done yet; a bootstrap node has none")]
    record = RoundRecord.from_dict(status["record"])
    return [
        *lines,
        ("last", one_line(record)),
        ("time", split(record.seconds)),
        ("refused", refusals(record.refused)),
        ("memory", f"{record.rss_mb:.0f} MB"),
    ]


def _reach(status: dict[str, Any]) -> list[str]:
    reach = status.get("reach")
    if not reach or not status["running"]:
        return []
    summary = f"{reach['way']}: {reach['cause']}" if reach["cause"] else reach["way"]
    return [summary, f"-> {reach['remedy']}"] if reach["remedy"] else [summary]


def _peers(peers: list[dict[str, Any]], swarm_id: str, extra: int) -> str:
    in_swarm = [peer for peer in peers if peer.get("swarm_id") in (None, swarm_id)]
    connected, num_others = sum(peer["connected"] for peer in in_swarm), len(peers) - len(in_swarm)
    suffix = f"; {num_others} in another swarm" if num_others else ""
    return f"{connected} connected, {len(in_swarm) + extra} present{suffix}"


LOOK_SECONDS = 0.5


def logs_command(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until the node ends.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Lines to show from the end of the log.")
    ] = 20,
    config: ConfigOption = None,
) -> None:
    """Show the end of the node's log, node.log in its run folder.

    With --follow it shows new lines until the node ends or you press Ctrl-C.
    """
    folder = open_folder(config)
    with closing(LogTail(folder.log)) as tail:
        say_lines(tail.last(lines))
        while follow:
            # Checked before the log is read: once the node has ended, its log is complete.
            follow = folder.holder() is not None
            say_lines(tail.new())
            if follow:
                time.sleep(LOOK_SECONDS)
        say_lines(tail.rest())


def stop_command(
    config: ConfigOption = None,
    now: Annotated[
        bool, typer.Option("--now", help="Stop immediately instead of after the round.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Stop the node after its round, and wait for its checkpoint.

    Ctrl-C ends only the wait. It is not an error if no node runs.
    """
    from node.run.background import stop_node

    folder = open_folder(config)
    with waiting("waiting for the node to end"):
        pid = stop_node(folder, now=now)
    status: dict[str, Any] = {"state": STOPPED, "record": None}  # of a node that never ran
    if pid is not None or folder.status.exists():
        status = present_status(folder)
    if pid is not None and status["state"] == CRASHED:
        remedy = f"Its last messages are in {folder.log}."
        raise NodeError("the node ended without a message", f"process {pid}", remedy)
    checkpoints = Checkpoints(folder.checkpoints)
    checkpoint = next((str(checkpoints.path(step)) for step in checkpoints.steps()[-1:]), None)
    last = status["record"]["round"] if status["record"] else None
    if json:
        print_json({"pid": pid, "state": status["state"], "round": last, "checkpoint": checkpoint})
        return
    say(f"no running node in {folder.root}" if pid is None else f"stopped process {pid}")
    if last is not None:
        say(f"its last round is {last}, its last checkpoint {checkpoint or 'not written yet'}")


def rollouts_command(
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Rollouts to show.")] = 3,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the last rollouts of a running or stopped node, newest last.

    These are the worst and the best completion of one local and one peer group of a round; of
    several rounds within two seconds, the node keeps one.
    """
    rollouts = read_rollouts(open_folder(config).groups)[-number:]
    if json:
        print_json([asdict(rollout) for rollout in rollouts])
        return
    Terminal().print(in_full(rollouts))


def checkpoints_command(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the checkpoints: round, policy step, held-out reward, size and age.

    The round identifies a checkpoint and names its folder in checkpoints/.
    """
    folder = open_folder(config).checkpoints
    entries = list_checkpoints(Checkpoints(folder))
    if json:
        print_json([asdict(entry) for entry in entries])
        return
    if not entries:
        raise no_checkpoint(folder)
    Terminal().print_table(_checkpoints_table(entries))


def _checkpoints_table(entries: list[CheckpointEntry]) -> Table:
    names = "round", "policy step", "held-out reward", "size", "written"
    table = Table(*figure_columns(*names), Column("", no_wrap=True))
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
            f"{duration(entry.age_s)} ago",
            ", ".join(mark for mark, is_set in marks.items() if is_set),
        )
    return table


def rollback_command(
    to: Annotated[
        str,
        typer.Option(
            metavar="ROUND|best",
            help="Round of the checkpoint, as in swarm-node checkpoints, or best.",
        ),
    ],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make a stopped node resume from an earlier checkpoint.

    The command sets later checkpoints aside. You can return to one of them in the same way.
    """
    from node.run.resume import roll_back

    if to != "best":
        named_round(to, "--to")
    node = open_node(config)
    with waiting("reading the checkpoints"):
        entry, rounds = roll_back(node.folder, node.config.schedule, to)
    if json:
        print_json({"round": entry.round, "policy_step": entry.policy_step, "set_aside": rounds})
        return
    text = ", ".join(map(str, rounds)) or "none"
    say(f"rolled back to round {entry.round}, policy step {entry.policy_step}; set aside: {text}")
    say(as_typed(f"next: swarm-node join --config {quote(str(node.path))}"))


def dashboard_command(
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the page. [default: port 8710 of this machine, or the next free one]",
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Serve the dashboard of a run folder, read-only, until Ctrl-C."""
    from node.dashboard.server import Dashboard
    from node.run.status import stopping

    node = open_node(config)

    def tell(url: str) -> None:
        say(f"dashboard: {url}")

    with stopping() as stop, stop.working():
        dashboard = Dashboard(node.folder, node.config, address or True, Counters(), tell)
        with closing(dashboard):
            while not stop.wait(LOOK_SECONDS):
                pass  # Windows interrupts no wait that has no limit
