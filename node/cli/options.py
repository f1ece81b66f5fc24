"""Options that several commands share, and the node or model that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from node.config.overrides import Overrides, parse_assignments, parse_mix, pasted_peer
from node.errors import MOST, ConfigError, NodeError, UsageError
from node.monitor.output import display_on, say, say_if_long
from node.monitor.record import Terminal
from node.storage.checkpoints import Checkpoints, named_round, no_checkpoint
from protocol.errors import BadKey, ProtocolError
from protocol.identity import author_of
from protocol.manifest import AdmissionRule, AllowList, Open, ProofOfWork
from swarm.common.util import Say, plain_json

DEFAULT_CONFIGS = (Path("node.toml"), Path("swarm-run/node.toml"))  # if --config is left out

LOADING = "loading torch and transformers"  # shown while a command loads them

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Config file of the node, or its folder. [default: ./node.toml, else ./swarm-run]",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Config key to override for this run, as in learner.lr=1e-5; repeatable.",
    ),
]
PeersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peers", metavar="ADDRESS...", help="Peers to dial instead of those in the config."
    ),
]
LanOption = Annotated[
    bool,
    typer.Option("--lan", help="Find peers on the local network, and announce this node there."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]


@dataclass(frozen=True, slots=True)
class LoadedNode:
    """A node as its files describe it: config path, config and run folder."""

    path: Path
    config: Any
    folder: Any


def find_config(given: Path | None) -> Path | None:
    """Return the config file to use; ``None`` if none is named and none is here."""
    if given is None:
        return next((path for path in DEFAULT_CONFIGS if path.is_file()), None)
    return given / "node.toml" if os.path.isdir(given) else given  # noqa: PTH112 - never raises


def open_node(given: Path | None, overrides: Overrides | None = None) -> LoadedNode:
    """Read the config that a command needs; raise NodeError if it is missing or wrong."""
    from node.config.config import load, run_folder

    path = find_config(given)
    if path is None:
        remedy = "Write one with: swarm-node init, or name yours with --config."
        raise NodeError("no node.toml here or in ./swarm-run", None, remedy)
    config = load(path, overrides)
    node = LoadedNode(path, config, run_folder(path, config))
    node.folder.check()
    return node


def open_trained(given: Path | None, overrides: Overrides | None = None) -> LoadedNode:
    """Open a node as :func:`open_node` does; raise NodeError if it has no checkpoint."""
    node = open_node(given, overrides)
    folder = node.folder.checkpoints
    if not Checkpoints(folder).steps():
        raise no_checkpoint(folder)
    return node


def open_folder(given: Path | None) -> Any:
    """Open a node's run folder, with a warning if its config is not valid.

    An error in ``node.toml`` must not hide a running node.
    """
    from node.config.config import run_folder_alone

    try:
        return open_node(given).folder
    except ConfigError as error:
        path = find_config(given)
        folder = run_folder_alone(path) if path else None
        if folder is None:
            raise
        folder.check()
        say(f"warning: {error}", err=True)
        return folder


def overrides_of(
    assignments: Sequence[str] | None,
    peers: Sequence[str] | None = None,
    mix: str | None = None,
    rounds: int | None = None,
    lan: bool = False,
    public: str | None = None,
    snapshot: Path | None = None,
) -> dict[str, Any]:
    """Collect the config keys that command-line options set."""
    overrides = parse_assignments(assignments or ())
    options: dict[str, Any] = {
        "network.peers": None if peers is None else list(peers),
        "network.lan": lan or None,
        "schedule.rounds": rounds,
        "monitor.public": public,
        "monitor.snapshot": None if snapshot is None else str(snapshot.absolute()),
    }
    if mix is not None:
        options["mixture.local"], options["mixture.external"] = parse_mix(mix)
    return overrides | {key: value for key, value in options.items() if value is not None}


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    typer.echo(plain_json(value))


def say_lines(lines: Iterable[str], *, err: bool = False) -> None:
    for line in lines:
        say(line, err=err)


ADMISSION_OPTION = "--admission"


def parse_admission(text: str) -> AdmissionRule:
    """Parse ``open``, ``allow:FILE`` (one peer id per line) or ``pow:BITS``."""
    kind, _, value = text.partition(":")
    try:
        if kind == "open" and not value:
            return Open()
        if kind == "allow" and value:
            return AllowList(_authors(Path(value)))
        if kind == "pow" and value.isdecimal():
            return ProofOfWork(int(value))
    except ProtocolError as error:
        raise UsageError(ADMISSION_OPTION, f"{text} ({error})", "Change that value.") from error
    raise UsageError(ADMISSION_OPTION, text, "Write open, allow:FILE or pow:BITS.")


def _authors(path: Path) -> tuple[bytes, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        failure = f"cannot read the allow list ({reason})"
        raise UsageError(failure, path, "Write one peer id per line.") from error
    authors = set()
    for number, line in enumerate(text.splitlines(), 1):
        if entry := line.partition("#")[0].strip():
            try:
                authors.add(author_of(pasted_peer(entry)))
            except BadKey as error:
                failure = (
                    f"{ADMISSION_OPTION}: line {number} of {path} does not have exactly one peer id"
                )
                remedy = "Write one whole peer id per line, as swarm-node identity show prints it."
                raise UsageError(failure, entry[:MOST], remedy) from error
    return tuple(sorted(authors))


PEERS_OPTION = "--peers"
DEBUG = "--debug"
STOP_ON_EOF = "--stop-on-eof"  # ends a node with the program that started it


def debugging() -> bool:
    """Return whether ``--debug`` was given, also for a command line that cannot be parsed."""
    return DEBUG in sys.argv


class Command(TyperCommand):
    """A command whose ``--peers`` takes several values; two options are read from ``sys.argv``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, [each for each in spread(args) if each not in (DEBUG, STOP_ON_EOF)]
        )


def spread(args: Sequence[str]) -> list[str]:
    """Rewrite ``--peers A B --json`` as ``--peers A --peers B --json``."""
    result: list[str] = []
    in_peers = False
    for arg in args:
        if arg.startswith("-"):
            in_peers = arg == PEERS_OPTION
        elif in_peers and result[-1] != PEERS_OPTION:
            result.append(PEERS_OPTION)
        result.append(arg)
    return result


PublicOption = Annotated[
    str | None,
    typer.Option(
        "--public",
        metavar="HOST:PORT",
        help="Address at which to serve the page of the whole swarm to everyone (monitor.public).",
    ),
]
SnapshotOption = Annotated[
    Path | None,
    typer.Option(
        "--snapshot",
        metavar="DIR",
        help="Folder to which to write that page repeatedly, for any web host (monitor.snapshot).",
    ),
]


StepOption = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="ROUND",
        help="Round, folder name or (if it is not another checkpoint's round) policy step of the "
        "checkpoint. [default: the newest]",
    ),
]
BestOption = Annotated[
    bool, typer.Option("--best", help="Use the checkpoint with the best held-out reward.")
]


def check_choice(step: str | None, best: bool, model: str | None = None) -> None:
    """Raise UsageError for more than one of --model, --step and --best, or a wrong --step."""
    options = {"--model": model, "--step": step}
    choices = [f"{option} {value}" for option, value in options.items() if value is not None]
    choices += ["--best"] if best else []
    if len(choices) > 1:
        raise UsageError("contradicting options", " and ".join(choices), "Keep only one of them.")
    if step is not None:
        named_round(step, "--step")


@contextmanager
def waiting(what: str) -> Iterator[Say]:
    """Show what the command waits for; the yielded function shows another text.

    Without a terminal and ``--json``, one line says it if the wait is long.
    """
    console = Terminal(stderr=True)
    silent = console.is_terminal or "--json" in sys.argv
    timer = None if silent else say_if_long(what, err=True)
    try:
        with console.status(what) as status, display_on(console):
            yield status.update
    finally:
        if timer:
            timer.cancel()


def model_of(
    node: LoadedNode, *, model: str | None = None, step: str | None = None, best: bool = False
) -> tuple[Any, str]:
    """Load ``model`` (folder, hub id or shipped) and its name, or raise NodeError.

    Without it, ``step`` and ``best`` are as in :func:`node.policy.checkpoint_policy.chosen`.
    """
    with waiting(LOADING) as tell:
        from node.config.learning import PolicySection
        from node.policy.checkpoint_policy import checkpoint_policy, chosen
        from node.policy.policy import Policy

        config = node.config.policy
        if model:
            # Another model's chat template may not have the same options.
            options = config.chat_template_kwargs if model == config.model else {}
            settings = PolicySection(
                model=model, dtype=config.dtype, device=config.device, chat_template_kwargs=options
            )
            return Policy.load(settings, tell=tell), model
        with chosen(node.folder, step=step, best=best) as checkpoint:
            say_lines(checkpoint.notes, err=True)
            return checkpoint_policy(config, checkpoint, tell), str(checkpoint.path)


def node_named(name: str) -> LoadedNode | None:
    """Return the trained node whose config or folder this is; check and return None if a model."""
    from node.policy.model_source import check_model

    path = find_config(Path(name))
    is_node = path is not None and path.suffix == ".toml" and path.is_file()
    if is_node:
        return open_trained(path)
    check_model(name)
    return None
