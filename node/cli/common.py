"""Options that several commands share, and the node they are about."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from node.config.config import parse_assignments, parse_mix
from node.errors import NodeError

DEFAULT_CONFIGS = (Path("node.toml"), Path("swarm-run/node.toml"))
"""Where a node is looked for when --config is left out."""

LOADING = "loading torch and transformers"
"""What a command shows while it does."""

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The node's config file, or its folder. Left out: ./node.toml, then ./swarm-run.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key for this run, as in learner.lr=1e-5; may be repeated.",
        show_default=False,
    ),
]
PeersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peers",
        metavar="ADDRESS...",
        help="Peers to dial, instead of those in the config.",
        show_default=False,
    ),
]
LanOption = Annotated[
    bool,
    typer.Option("--lan", help="Find members on the local network, and be found by them."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Log more, and show stack traces.")]
StopOption = Annotated[bool, typer.Option("--stop-on-eof", hidden=True)]


@dataclass(frozen=True, slots=True)
class Node:
    """A node as its files describe it: config path, config and run folder."""

    path: Path
    config: Any
    folder: Any


def find_config(given: Path | None) -> Path | None:
    """The config file that a command is about; ``None`` when none was named and none is here."""
    if given is None:
        return next((path for path in DEFAULT_CONFIGS if path.is_file()), None)
    return given / "node.toml" if os.path.isdir(given) else given  # noqa: PTH112 - never raises


def open_node(given: Path | None, overrides: Mapping[str, Any] | None = None) -> Node:
    """Read the config that a command is about.

    Raises:
        NodeError: there is none, or it is wrong.
    """
    from node.config.config import load, run_folder

    path = find_config(given)
    if path is None:
        raise NodeError(
            "no node.toml here or in ./swarm-run",
            None,
            "Write one with: swarm-node init, or name yours with --config.",
        )
    config = load(path, overrides)
    return Node(path, config, run_folder(path, config))


def overrides_of(
    assignments: Sequence[str] | None,
    peers: Sequence[str] | None = None,
    mix: str | None = None,
    rounds: int | None = None,
    lan: bool = False,
) -> dict[str, Any]:
    """Config keys that the options of a command line set."""
    overrides = parse_assignments(assignments or ())
    if peers is not None:
        overrides["network.peers"] = list(peers)
    if lan:
        overrides["network.lan"] = True
    if mix is not None:
        overrides["mixture.local"], overrides["mixture.external"] = parse_mix(mix)
    if rounds is not None:
        overrides["schedule.rounds"] = rounds
    return overrides


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value))
