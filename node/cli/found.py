"""``swarm-node found``: the manifest of a new swarm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.common import ConfigOption, DebugOption, JsonOption, Node, open_node, print_json
from node.errors import NodeError, UsageError
from node.monitor.terminal import as_typed, say

if TYPE_CHECKING:
    from node.tasks.verifier.replay_trial import Trial


def command(
    name: Annotated[str, typer.Option("--name", help="What people call the swarm.")],
    catalogue: Annotated[
        str,
        typer.Option(
            "--catalogue", help="tiny, games, working, reasoning-gym, or your own TOML file."
        ),
    ] = "tiny",
    epoch_seconds: Annotated[
        float,
        typer.Option("--epoch-seconds", help="How often each node announces; about a round."),
    ] = 60.0,
    admission: Annotated[
        str,
        typer.Option(
            "--admission",
            metavar="open|allow:FILE|pow:BITS",
            help="Everybody, the peer ids in a file, or whoever has done that much work.",
        ),
    ] = "open",
    answer_tokens: Annotated[
        int | None,
        typer.Option(
            "--answer-tokens",
            help="Longest answers that groups are to fit with; left out, the usual bounds.",
            show_default=False,
        ),
    ] = None,
    group_size: Annotated[
        int, typer.Option("--group-size", help="Answers in such a group; see --answer-tokens.")
    ] = 8,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="New file, to be copied to manifest.swarm in the folder of a node that has none. "
            "Left out: straight there.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Make and sign what the members of a new swarm agree on."""
    from node.cli.admission_option import parse_admission
    from node.monitor.terminal import Terminal
    from node.network.answer_bounds import bounds_for
    from node.network.founding import found_swarm, try_catalogue
    from node.storage.atomic_files import write_new
    from node.tasks.errors import CatalogueError
    from protocol.errors import BadSchema
    from protocol.identity import Identity
    from protocol.manifest import swarm_id
    from swarm.verification import JudgeRefused

    node = open_node(config)
    path = out or node.folder.manifest
    _check_new(path)
    try:
        answers = None if answer_tokens is None else bounds_for(answer_tokens, group_size)
        manifest = found_swarm(
            Identity.load(node.folder.identity),
            name=name,
            catalogue=catalogue,
            epoch_seconds=epoch_seconds,
            admission=parse_admission(admission),
            answers=answers,
        )
        with Terminal(stderr=True).status("opening the catalogue, and playing its environments"):
            trial = try_catalogue(catalogue, node.config.tasks)
    except JudgeRefused as refused:
        remedy = "See what this machine lacks with: swarm-node doctor."
        raise NodeError("the catalogue cannot be tried", str(refused), remedy) from refused
    except CatalogueError as error:
        remedy = "Correct it, or name tiny, reasoning-gym or another file."
        raise UsageError("--catalogue", f"{catalogue} ({error})", remedy) from error
    except BadSchema as error:
        field, _, wrong = str(error).partition(": ")
        remedy = "See what it takes with: swarm-node found --help."
        raise UsageError(f"--{field.replace('_', '-')}", wrong, remedy) from error
    write_new(path, manifest)
    identifier = swarm_id(manifest).hex()
    if json:
        told = {"swarm_id": identifier, "manifest": str(path), "bytes": len(manifest)}
        tried = {"environments": asdict(trial)}
        print_json(told | tried | ({"answers": asdict(answers)} if answers else {}))
        return
    say(f"wrote {path}")
    say(f"the swarm is {identifier}")
    if answers:
        say(
            f"{group_size} answers of {answer_tokens} tokens weigh up to {answers.weight} bytes, "
            f"and a frame may have {answers.max_frame_bytes}"
        )
    for line in _tried(trial):
        say(line)
    for line in _next(path, node):
        say(as_typed(line))


def _check_new(path: Path) -> None:
    """Look for what the manifest would replace, before the catalogue is tried for a while.

    Raises:
        NodeError: something is there.
    """
    if os.path.lexists(path):
        remedy = "Name a new file with --out, or move this one away if no swarm runs on it yet."
        raise NodeError("cannot write the manifest (File exists)", path, remedy)


def _next(path: Path, node: Node) -> Iterator[str]:
    """How the manifest comes to be a swarm: a node reads the one in its own folder alone."""
    pinned = node.folder.manifest
    seed = f"swarm-node seed --config {quote(str(node.path))}"
    if pinned.exists() and pinned.samefile(path):
        yield f"next: {seed}"
        return
    if pinned.exists():
        yield f"{pinned} is another swarm's: this one takes another node"
        yield "next: swarm-node init FOLDER"
        yield f"then: install -m 600 {quote(str(path))} FOLDER/{pinned.name}"
        yield "then: swarm-node seed --config FOLDER"
        return
    yield f"next: install -m 600 {quote(str(path))} {quote(str(pinned))}"
    yield f"then: {seed}"


def _tried(trial: Trial) -> Iterator[str]:
    """What came of opening the catalogue and playing its environments."""
    if trial.replayed:
        names = ", ".join(trial.replayed)
        yield f"replayed {trial.episodes} episodes of {names} in other processes: all alike"
    for name in trial.unshared:
        yield f"{name} says that it is not replayable: every node practises it for itself"
    for reason in trial.absent.values():
        yield f"not tried: {reason}"
