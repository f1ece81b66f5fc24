"""The program ``swarm-node``: its commands, and the one place where errors become exit codes.

Commands import torch and the network in their bodies, so that ``--help`` answers at once.
"""

from __future__ import annotations

import importlib.metadata
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer
from typer.core import TyperCommand

from node.cli import (
    ask,
    checkpoints,
    compare,
    conformance,
    dashboard,
    demo,
    doctor,
    evaluate,
    export,
    found,
    identity,
    init,
    join,
    logs,
    peers,
    plan,
    play,
    plot,
    rollback,
    rollouts,
    runs,
    seed,
    status,
    stop,
    watch,
)
from node.cli.first_words import BEGINNING, versions
from node.cli.peers_option import SpreadPeers
from node.cli.usage import check_text, usage_error
from node.errors import NodeError
from node.monitor.logs import drop_what_fails, last
from node.monitor.terminal import as_typed, guard_terminal, printable_lines, say

PROGRAM = "swarm-node"
app = typer.Typer(
    name=PROGRAM,
    help="Train a language model on this machine together with others, peer to peer.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


GROUP = "swarm_node.commands"
"""Entry points by which a package adds commands."""
PEER = "/ip4/10.0.0.5/tcp/31337/p2p/12D3Koo…"
COMMANDS: tuple[tuple[str, Callable[..., None], type[TyperCommand], str], ...] = (
    ("demo", demo.command, TyperCommand, "demo --nodes 4 --rounds 150 --mix 2/6"),
    ("plan", plan.command, TyperCommand, "plan Qwen/Qwen2.5-0.5B-Instruct --task-tokens 1024"),
    ("init", init.command, TyperCommand, "init my-node"),
    ("join", join.command, SpreadPeers, f"join --peers {PEER} --set learner.lr=1e-5"),
    ("seed", seed.command, SpreadPeers, "seed --config public/node.toml"),
    ("watch", watch.command, SpreadPeers, f"watch --peers {PEER} --snapshot public --seconds 60"),
    ("found", found.command, TyperCommand, "found --name sums --catalogue tiny"),
    ("status", status.command, TyperCommand, "status --json"),
    ("runs", runs.command, TyperCommand, "runs ~ --depth 3"),
    ("logs", logs.command, TyperCommand, "logs -f -n 50 --config my-node"),
    ("stop", stop.command, TyperCommand, "stop --config my-node"),
    ("peers", peers.command, TyperCommand, "peers 12D3KooWAbCd --config my-node"),
    ("plot", plot.command, TyperCommand, "plot demo-run/20260101-120000 --out swarm.png"),
    ("dashboard", dashboard.command, TyperCommand, "dashboard --config my-node"),
    ("rollouts", rollouts.command, TyperCommand, "rollouts -n 8"),
    ("doctor", doctor.command, SpreadPeers, f"doctor --peers {PEER}"),
    ("conformance", conformance.command, TyperCommand, f"conformance --peers {PEER}"),
    ("eval", evaluate.command, TyperCommand, "eval --tasks 128 --samples 8 --k 1 --k 8"),
    ("play", play.command, TyperCommand, "play maze --level 1 --model tiny-games"),
    ("ask", ask.command, TyperCommand, "ask --base --config my-node"),
    ("compare", compare.command, TyperCommand, "compare my-node tiny --tasks 256"),
    ("checkpoints", checkpoints.command, TyperCommand, "checkpoints --config my-node"),
    ("rollback", rollback.command, TyperCommand, "rollback --to best"),
    ("export", export.command, TyperCommand, "export --out my-model"),
)
"""Name, function, kind and example of each command."""

for _name, _function, _kind, _example in COMMANDS:
    app.command(_name, cls=_kind, epilog=f"Example: swarm-node {_example}")(_function)
app.add_typer(identity.app, name="identity")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(versions())
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show what is installed, and exit."
        ),
    ] = False,
) -> None:
    """Train a language model on this machine together with others, peer to peer."""
    if context.invoked_subcommand is None:
        typer.echo(as_typed(BEGINNING))


def add_commands() -> None:
    """Take in what installed packages name in the entry points ``swarm_node.commands``.

    Each is a function that typer can read, or a :class:`typer.Typer` of several.
    """
    taken = {name for name, *_ in COMMANDS} | {"identity"}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name in taken:
            say(f"warning: {entry.value} is left out: there is a command {entry.name}", err=True)
            continue
        try:
            found = entry.load()
        except Exception as error:  # noqa: BLE001 - a package's fault takes no other command away
            say(
                f"warning: command {entry.name}: {entry.value} cannot be imported: {error}",
                err=True,
            )
            continue
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=entry.name)
        else:
            app.command(entry.name)(found)


def main(interrupted: Callable[[], bool], commands: typer.Typer = app, name: str = PROGRAM) -> int:
    """Run one command; the exit status: 0, 1 (it failed) or 2 (what was asked for makes no sense).

    Args:
        interrupted: whether Ctrl-C came, of which libraries make errors of their own.
        commands: what there is to run.
        name: how the program is called.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    last()
    guard_terminal()
    if commands is app:
        add_commands()
    try:
        check_text(sys.argv[1:])
        # standalone, typer would show a wrong command line in a dozen lines
        status = commands(prog_name=name, standalone_mode=False) or 0
        print(end="", flush=True)
        return status
    except typer.TyperException as error:
        # what shows the help instead has no message
        return _fail(usage_error(error, name)) if error.format_message() else 2
    except Exception as error:
        if interrupted() and not isinstance(error, _expected()):
            raise KeyboardInterrupt from error
        return _fail(error)
    finally:
        drop_what_fails()


def _fail(error: Exception) -> int:
    """Show what went wrong; the exit status."""
    if "--debug" in sys.argv:
        sys.stderr.write(printable_lines("".join(traceback.format_exception(error))))
    text = as_typed(explain(error))
    from node.monitor.logs import ERROR, log_error

    if not log_error(text):
        say(f"{ERROR}{text}", err=True)
    return error.exit_code if isinstance(error, NodeError) else 1


def explain(error: Exception) -> str:
    """What to show of an error, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"cannot use {error.filename} ({error.strerror}). "
            "Look at the disk, and at the owner and permissions of that file."
        )
    if isinstance(error, _expected()):
        return text if text.endswith((".", "?", ")")) else f"{text}."
    return f"unexpected {type(error).__name__}: {text}. Add --debug to see where it comes from."


def _expected() -> tuple[type[Exception], ...]:
    """Errors whose message already says what to do."""
    from node.tasks.errors import CatalogueError
    from protocol.errors import ProtocolError
    from protocol.identity import KeyFileError
    from swarm.journal import JournalError
    from swarm.transport.transport import TransportError
    from swarm.verification import JudgeRefused

    return (
        NodeError,
        CatalogueError,
        JournalError,
        JudgeRefused,
        KeyFileError,
        ProtocolError,
        TransportError,
    )
