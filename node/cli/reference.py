"""``python -m node.cli.reference`` writes docs/cli.md and docs/api.md."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from node.cli.program import PROGRAM, app
from node.config.registry import REGISTRIES

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLI_HEAD = """\
# Command line

Written by `python -m node.cli.reference`. Every command has `--help`, and an error is one line with
the remedy. The exit status is 0, 1 where something failed, 2 where what was asked for makes no
sense, and 130 after Ctrl-C.

`swarm-node --install-completion` has your shell (bash, zsh, fish, PowerShell) complete commands and
options from its next start on. Without a change to any file, in bash:

```sh
eval "$(_SWARM_NODE_COMPLETE=source_bash swarm-node)"
```
"""
CLI_FOOT = """\
---

[Tutorial](tutorial.md) · [configuration](configuration.md) · [README](../README.md)
"""


def cli_page() -> str:
    """Return the whole page: every command, its options with defaults, an example."""
    return "\n".join([CLI_HEAD, *_commands(PROGRAM, get_command(app)), CLI_FOOT])


def _commands(name: str, command: Any) -> Iterator[str]:
    if inner := getattr(command, "commands", None):
        for each in inner.values():
            yield from _commands(f"{name} {each.name}", each)
        return
    context = command.make_context(name, [], resilient_parsing=True)
    usage = command.collect_usage_pieces(context)
    yield f"## `{' '.join([name, *usage])}`\n"
    yield "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    yield ""
    if rows := [row for each in command.params if (row := each.get_help_record(context))]:
        yield "| option | what it does |"
        yield "|---|---|"
        yield from (f"| `{_cell(option)}` | {_cell(about)} |" for option, about in rows)
        yield ""
    if command.epilog:
        about, _, example = command.epilog.partition(": ")
        yield f"{about}: `{example}`\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


DRIVEN = (
    "node.run.node:Node",
    "node.run.training_loop:TrainingLoop",
    "node.storage.run_folder:RunFolder",
    "node.policy.policy:Policy",
    "node.monitor.record:RoundRecord",
)  # Classes with which another program drives a node.
DECORATED = (classmethod, staticmethod, property)
API_HEAD = """\
# Python API

This page lists the classes for programs that [drive a node](../examples/drive_from_python.py) and
for packages that extend it. A package names its class in an [entry point](configuration.md). The
page is written from the docstrings by `python -m node.cli.reference`.
"""
API_FOOT = """\
---

[Command line](cli.md) · [architecture](architecture.md) · [README](../README.md)
"""


def api_page() -> str:
    """Return the whole page: classes that drive a node, then those to extend."""
    lines = [API_HEAD, "## Drive a node\n"]
    for place in DRIVEN:
        lines += _class_lines(place)
    lines.append("## Extend a node\n")
    for registry in REGISTRIES:
        lines += _class_lines(registry.base)
    return "\n".join([*lines, API_FOOT])


def _class_lines(place: str) -> Iterator[str]:
    module, _, name = place.partition(":")
    kind = getattr(importlib.import_module(module), name)
    yield f"### `{module}.{name}`\n"
    yield f"```text\n{inspect.getdoc(kind)}\n```\n"
    for name, member in vars(kind).items():
        documentation = inspect.getdoc(member)
        method = inspect.isfunction(member) or isinstance(member, DECORATED)
        if method and documentation and not name.startswith("_"):
            summary = " ".join(documentation.split("\n\n")[0].split()).replace("``", "`")
            yield f"- `{name}{_arguments(member)}`: {summary}"
    yield ""


def _arguments(member: Any) -> str:
    if isinstance(member, property):
        return ""
    signature = inspect.signature(getattr(member, "__func__", member))
    parameters = [_spelled(parameter) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters))
    return text.replace("'", "").replace("Ellipsis", "...")


def _spelled(parameter: inspect.Parameter) -> inspect.Parameter:
    """Hide defaults that print a momentary state, such as a logger's level."""
    lasting = isinstance(parameter.default, str | int | float | tuple | None)
    if parameter.default is inspect.Parameter.empty or lasting:
        return parameter
    return parameter.replace(default=...)


PAGES = {DOCS / "cli.md": cli_page, DOCS / "api.md": api_page}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
