"""What the documents tell people to type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))


def unset(block: str) -> set[str]:
    """Shell variables that a block reads and does not set before."""
    read = {m[1]: m.start() for m in reversed(list(re.finditer(r"\$\{?([A-Za-z_]\w*)", block)))}
    made = {m[1]: m.start() for m in reversed(list(re.finditer(r"(?m)^([A-Za-z_]\w*)=", block)))}
    return {name for name, at in read.items() if made.get(name, at) >= at}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_can_be_typed_into_a_fresh_shell(page: Path) -> None:
    blocks = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", page.read_text(), re.M | re.S)
    assert [unset(block) for block in blocks if unset(block)] == []


def test_a_variable_is_missed_that_another_block_set() -> None:
    assert unset('join "$LOCAL"') == {"LOCAL"}
    assert unset('join "$LOCAL"\nLOCAL=x') == {"LOCAL"}
    assert unset('LOCAL=x\njoin "${LOCAL}"') == set()
