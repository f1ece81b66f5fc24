"""``swarm-node init``: a commented config and an identity."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.common import LOADING, DebugOption, JsonOption, open_node, print_json
from node.cli.plan import TASK_TOKENS, TaskTokensOption, planned
from node.errors import UsageError
from node.monitor.terminal import as_typed, say

if TYPE_CHECKING:
    from node.plan.plan import Plan


def command(
    directory: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path(),
    systemd: Annotated[
        bool,
        typer.Option(
            "--systemd",
            help="Write a unit for your systemd as well; into the folder of a node that is there, "
            "nothing else.",
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Choose what suits this model on this machine, as swarm-node plan shows it.",
            show_default=False,
        ),
    ] = None,
    task_tokens: TaskTokensOption = TASK_TOKENS,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write node.toml, with every key explained, and the node's identity."""
    from node.run.background import write_unit
    from node.run.preflight import open_identity, prepare
    from node.storage.run_folder import RunFolder

    folder = RunFolder(directory)
    made = not (systemd and folder.config.exists())
    if model and not made:
        remedy = "Leave --model out, or name a new folder."
        raise UsageError("--model", f"{folder.config} is there already", remedy)
    wanted = model and not folder.config.exists()
    plan = _plan(model, task_tokens, directory) if model and wanted else None
    if made:
        folder, identity = prepare(directory, plan.choice.keys if plan else None)
    else:
        folder = open_node(folder.config).folder
        identity, _ = open_identity(folder)
    config = directory / folder.config.name
    unit = write_unit(config) if systemd else None
    if json:
        paths = {"config": str(config), "identity": str(folder.identity)}
        known = {"peer_id": identity.peer_id, "unit": str(unit) if unit else None}
        print_json({**paths, **known, **({"plan": plan.as_json()} if plan else {})})
        return
    if plan:
        _show(plan)
    if made:
        say(f"wrote {config} and {folder.identity}")
    say(f"this node is {identity.peer_id}")
    _say_next(config, unit)


def _show(plan: Plan) -> None:
    from node.plan.table import lines

    for line in lines(plan):
        say(line)


def _say_next(config: Path, unit: Path | None) -> None:
    if unit is None:
        say(as_typed(f"next: swarm-node join --config {quote(str(config))} --peers ADDRESS"))
        return
    say(f"wrote {unit}")
    say(f"next: systemctl --user link {quote(str(unit))}")
    say(f"then: systemctl --user enable --now {unit.name}")


def _plan(model: str, tokens: int, directory: Path) -> Plan:
    from node.monitor.terminal import Terminal

    with Terminal(stderr=True).status(LOADING):
        return planned(model, tokens, directory)
