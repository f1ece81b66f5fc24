"""The program ``swarm-node``: its commands, and how errors become exit codes.

Commands import torch and the network in their bodies, so that ``--help`` answers immediately.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.checks import conformance_command, doctor_command
from node.cli.demo import demo_command, play_command, plot_command
from node.cli.identity import identity_app
from node.cli.inspect import (
    checkpoints_command,
    dashboard_command,
    list_command,
    logs_command,
    rollback_command,
    rollouts_command,
    status_command,
    stop_command,
)
from node.cli.join import bootstrap_command, join_command, observe_command
from node.cli.model import ask_command, compare_command, evaluate_command, warm_start_command
from node.cli.options import Command, debugging
from node.cli.peers import block_command, peers_command, trust_command
from node.cli.setup import create_command, export_command, init_command, plan_command
from node.errors import NodeError, TaskSetError, UsageError
from node.monitor.logs import ERROR, log_error
from node.monitor.output import (
    as_typed,
    drop_failed_output,
    guard_output,
    guard_terminal,
    printable_lines,
    say,
)
from protocol.errors import ProtocolError
from protocol.identity import KeyFileError
from swarm.common.util import version
from swarm.journal import JournalError
from swarm.transport.transport import TransportError
from swarm.verification import VerifierError

BEGINNING = """\
watch a swarm learn here:  swarm-node demo
join a swarm:              swarm-node init my-node; swarm-node join --config my-node --peers ADDRESS
see all commands:          swarm-node --help, and docs/tutorial.md of the source"""

TRANSPORTS = ("hivemind", "libp2p")  # packages over which nodes connect; one is enough


EXPECTED = (
    *(NodeError, TaskSetError, VerifierError, JournalError, KeyFileError, ProtocolError),
    TransportError,
)
"""Errors whose text says what failed."""


def versions() -> str:
    """Return the versions of relevant packages, from metadata, importing nothing."""
    transports = ", ".join(f"{name} {release}" for name in TRANSPORTS if (release := version(name)))
    rows = {
        "swarm-node": version() or "a source tree that is not installed",
        "Python": platform.python_version(),
        "torch": version("torch") or "not installed",
        "transport": transports or "none installed",
    }
    return "\n".join(f"{name:<10} {value}" for name, value in rows.items())


def check_text(arguments: Sequence[str]) -> None:
    """Raise UsageError if an argument or the folder's name is not text in the locale."""
    folder = ""
    with suppress(FileNotFoundError):  # if it was deleted, what needs it reports that
        folder = str(Path.cwd())
    for kind, text in [("folder", folder), *(("argument", text) for text in arguments)]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            remedy = "Rename it, or use a locale that supports its characters: LC_ALL=C.UTF-8."
            raise UsageError(f"{kind} is not valid text in this locale", text, remedy)


def usage_error(error: typer.TyperException, program: str) -> UsageError:
    """Convert typer's error: name the option, its value and the way to the help."""
    context: Any = getattr(error, "ctx", None)
    # the parser's own errors have no command
    command = context.command_path if context else " ".join([program, *sys.argv[1:2]])
    remedy = f"See the options with: {command} --help."
    parameter, cause = getattr(error, "param", None), error.__cause__
    if parameter is not None and isinstance(cause, ValueError):
        return _wrong_value(f"{command} {max(parameter.opts, key=len)}", cause, remedy)
    problem, _, hint = error.format_message().rstrip(".").partition(". ")
    if guesses := getattr(error, "possibilities", None):
        problem, hint = error.message, f"Did you mean {' or '.join(guesses)}?"
    return UsageError(f"{command}: {problem}", None, f"{hint} {remedy}".strip())


def _wrong_value(option: str, cause: ValueError, remedy: str) -> UsageError:
    from pydantic import ValidationError

    from node.config.schema import wording

    if not isinstance(cause, ValidationError):
        return UsageError(option, cause, remedy)
    detail = cause.errors()[0]
    return UsageError(option, repr(detail["input"]), f"{wording(detail)}. {remedy}")


PROGRAM = "swarm-node"
app = typer.Typer(name=PROGRAM, invoke_without_command=True, pretty_exceptions_enable=False)
GROUP = "swarm_node.commands"  # entry points by which a package adds commands
PEER = "/ip4/10.0.0.5/tcp/31337/p2p/12D3Koo…"
OBSERVE = f"observe --peers {PEER} --snapshot public --seconds 60"
COMMANDS: Mapping[str, tuple[tuple[str, Callable[..., None], str], ...]] = {
    "Run": (
        ("demo", demo_command, "demo --nodes 4 --rounds 150 --mix 2/6"),
        ("plan", plan_command, "plan Qwen/Qwen2.5-0.5B-Instruct --task-tokens 1024"),
        ("init", init_command, "init my-node"),
        ("create", create_command, "create --name sums --task-set tiny"),
        ("join", join_command, f"join --peers {PEER} --set learner.lr=1e-5"),
        ("bootstrap", bootstrap_command, "bootstrap --config public/node.toml"),
        ("warm-start", warm_start_command, "warm-start --config my-node"),
    ),
    "Inspect": (
        ("status", status_command, "status --json"),
        ("list", list_command, "list ~ --depth 3"),
        ("logs", logs_command, "logs -f -n 50 --config my-node"),
        ("peers", peers_command, "peers 12D3KooWAbCd --config my-node"),
        ("observe", observe_command, OBSERVE),
        ("dashboard", dashboard_command, "dashboard --config my-node"),
        ("rollouts", rollouts_command, "rollouts -n 8"),
        ("plot", plot_command, "plot demo-run/20260101-120000 --out swarm.png"),
        ("doctor", doctor_command, f"doctor --peers {PEER}"),
    ),
    "Evaluate": (
        ("eval", evaluate_command, "eval --tasks 128 --samples 8 --k 1 --k 8"),
        ("compare", compare_command, "compare tiny my-node --tasks 256"),
        ("ask", ask_command, "ask --base --config my-node"),
    ),
    "Manage": (
        ("stop", stop_command, "stop --config my-node"),
        ("trust", trust_command, "trust 12D3KooWAbCd… --config my-node"),
        ("block", block_command, "block 12D3KooWAbCd… --undo --config my-node"),
        ("checkpoints", checkpoints_command, "checkpoints --config my-node"),
        ("rollback", rollback_command, "rollback --to best"),
        ("export", export_command, "export --out my-model"),
    ),
    "Develop": (
        ("play", play_command, "play maze --level 1 --model tiny-games"),
        ("conformance", conformance_command, f"conformance --peers {PEER}"),
    ),
}  # by group of the help: name, function and example of each command

for _group, _commands in COMMANDS.items():
    for _name, _function, _example in _commands:
        _epilog = f"Example: swarm-node {_example}"
        app.command(_name, cls=Command, epilog=_epilog, rich_help_panel=_group)(_function)
app.add_typer(identity_app, name="identity", rich_help_panel="Manage")


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
            "--version",
            callback=_version,
            is_eager=True,
            help="Show the installed versions, and exit.",
        ),
    ] = False,
) -> None:
    """Train a language model together with others, peer to peer. Every command takes --debug."""
    if context.invoked_subcommand is None:
        typer.echo(as_typed(BEGINNING))


def add_commands() -> None:
    """Add commands of installed packages: functions that typer reads, or typer apps."""
    names = {name for group in COMMANDS.values() for name, *_ in group} | {"identity"}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name in names:
            conflict = f"there is already a command {entry.name}"
            say(f"warning: skipped {entry.value}: {conflict}", err=True)
            continue
        try:
            plugin = entry.load()
        except Exception as error:  # noqa: BLE001 - a package's fault takes no other command away
            failure = f"{entry.value} cannot be imported: {error}"
            say(f"warning: command {entry.name}: {failure}", err=True)
            continue
        if isinstance(plugin, typer.Typer):
            app.add_typer(plugin, name=entry.name)
        else:
            app.command(entry.name)(plugin)


def main(interrupted: Callable[[], bool], commands: typer.Typer = app, name: str = PROGRAM) -> int:
    """Run one command and return its status: 0, 1 (failure) or 2 (invalid request).

    Raises KeyboardInterrupt if ``interrupted``: libraries turn Ctrl-C into other errors.
    """
    guard_output()
    guard_terminal(debug=debugging())
    if commands is app:
        add_commands()
    try:
        check_text(sys.argv[1:])
        # standalone, typer would print a usage error in a dozen lines
        code = commands(prog_name=name, standalone_mode=False) or 0
        print(end="", flush=True)
        return code
    except typer.TyperException as error:
        # an error that shows the help instead has no message
        return _fail(usage_error(error, name)) if error.format_message() else 2
    except Exception as error:  # the outermost place: each error becomes one line and a status
        if interrupted() and not isinstance(error, EXPECTED):
            raise KeyboardInterrupt from error
        return _fail(error)
    finally:
        drop_failed_output()


def _fail(error: Exception) -> int:
    if debugging():
        sys.stderr.write(printable_lines("".join(traceback.format_exception(error))))
    text = as_typed(explain(error))
    if not log_error(text):
        say(f"{ERROR}{text}", err=True)
    return error.exit_code if isinstance(error, NodeError) else 1


def explain(error: Exception) -> str:
    """Return what to show of an error, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None:
        remedy = "Check the disk, and the owner and permissions of that file."
        return f"cannot use {error.filename} ({error.strerror}). {remedy}"
    if isinstance(error, EXPECTED):
        return text if text.endswith((".", "?", ")")) else f"{text}."
    return f"unexpected {type(error).__name__}: {text}. Add --debug to see where it comes from."
