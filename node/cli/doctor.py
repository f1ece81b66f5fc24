"""``swarm-node doctor``: what is wrong here, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from node.cli.options import (
    ConfigOption,
    DebugOption,
    JsonOption,
    Node,
    PeersOption,
    SetOption,
    find_config,
    open_node,
    overrides_of,
    print_json,
)

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor_command(
    peers: PeersOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check packages, device, disk, memory, key, clock, ports and peers. Exit 1 on a failure."""
    from node.doctor.machine import check_machine
    from node.doctor.network import check_network
    from node.monitor.terminal import Terminal

    overrides = overrides_of(assignments, peers)
    node = open_node(config, overrides) if find_config(config) else _unmade(overrides)
    with Terminal(stderr=True).status("looking at this machine and its network"):
        findings = [
            *check_machine(node.config, node.folder),
            *check_network(node.config, node.folder),
        ]
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        _show(findings)
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)


def _unmade(overrides: dict[str, Any]) -> Node:
    """The node that join would make here."""
    from node.cli.join import NEW_FOLDER
    from node.config.config import Config, run_folder

    config = Config.with_overrides(overrides)
    path = NEW_FOLDER / "node.toml"
    return Node(path, config, run_folder(path, config))


def _show(findings: list[Any]) -> None:
    from rich.text import Text

    from node.monitor.printable import as_typed, printable
    from node.monitor.terminal import Terminal

    console = Terminal(soft_wrap=True)
    for finding in findings:
        level = (f"{finding.level:<4}", COLOURS[finding.level])
        console.print(Text.assemble(level, f"  {finding.check:<11}{printable(finding.found)}"))
        if finding.remedy:
            console.print(
                f"      {'':<11}-> {printable(as_typed(finding.remedy))}", highlight=False
            )
