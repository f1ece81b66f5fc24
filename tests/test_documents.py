"""What the documents tell people to type."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from node.cli.program import COMMANDS, app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))


def blocks(page: Path) -> list[str]:
    """What a page shows of a shell: every block of no other language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    return [block for language, block in fenced if language in ("", "sh", "bash", "console")]


def unset(block: str) -> set[str]:
    """Shell variables that a block reads and does not set before."""
    read = {m[1]: m.start() for m in reversed(list(re.finditer(r"\$\{?([A-Za-z_]\w*)", block)))}
    made = {m[1]: m.start() for m in reversed(list(re.finditer(r"(?m)^([A-Za-z_]\w*)=", block)))}
    return {name for name, at in read.items() if made.get(name, at) >= at}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_can_be_typed_into_a_fresh_shell(page: Path) -> None:
    assert [unset(block) for block in blocks(page) if unset(block)] == []


def test_a_variable_is_missed_that_another_block_set() -> None:
    assert unset('join "$LOCAL"') == {"LOCAL"}
    assert unset('join "$LOCAL"\nLOCAL=x') == {"LOCAL"}
    assert unset('LOCAL=x\njoin "${LOCAL}"') == set()


def commands(page: Path) -> list[str]:
    """What a page has people type that begins with the program's name."""
    lines = re.sub(r"\\\n\s*", "", "\n".join(blocks(page))).splitlines()
    return [line for line in lines if line.startswith("swarm-node ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_the_documents_is_one_that_the_program_reads(page: Path) -> None:
    for line in commands(page):
        command, words = get_command(app), shlex.split(line, comments=True)[1:]
        context = command.make_context("swarm-node", [*words])
        while hasattr(command, "resolve_command"):
            name, command, words = command.resolve_command(context, words)
            context = command.make_context(name, [*words], parent=context)


def test_the_documents_have_people_type_commands_and_each_exists_for_a_reason() -> None:
    typed = {line.split()[1] for page in PAGES for line in commands(page)}
    assert {name for name, *_ in COMMANDS} <= typed, "a command that no document shows"
