"""``python -m node.cli.reference`` writes docs/cli.md from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from node.cli.program import PROGRAM, app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
HEAD = """\
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
FOOT = """\
---

[Tutorial](tutorial.md) · [configuration](configuration.md) · [README](../README.md)
"""


def page() -> str:
    """Return the whole page: every command, its options with defaults, an example."""
    return "\n".join([HEAD, *_commands(PROGRAM, get_command(app)), FOOT])


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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
