"""A walk through a page that does not hold says so, and goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.documents.walk import Walk


def faults(folder: Path, text: str) -> list[str]:
    """Of a page with this text, in shells that find no program of ours."""
    page = folder / "page.md"
    page.write_text(text)
    return Walk(page, folder, {"PATH": os.defpath, "HOME": str(folder)}).go()


def block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


def test_a_page_that_holds_has_no_faults(tmp_path: Path) -> None:
    page = (
        block("sh", "cd node\nONE=1\necho state: $ONE")
        + block("text", "state: 1\n…")
        + "The catalogue `sums.toml`:\n\n"
        + block("toml", "a = 1")
        + block("sh", "grep 'a = 1' sums.toml")
    )
    assert faults(tmp_path, page) == []


@pytest.mark.parametrize(
    ("page", "told"),
    [
        (block("sh", "false\ntrue"), "page.md:1 ended with 1"),
        (block("sh", "ONE=1") + block("sh", "echo $ONE"), "page.md:4 ended with "),
        (block("sh", "false | true"), "page.md:1 ended with 1"),
        (block("sh", "echo Traceback"), "page.md:1 printed a traceback"),
        (block("sh", "echo a") + block("text", "state: 1"), "not printed: ['state']"),
        (block("sh", "function swarm-node { :; }\nswarm-node seed"), "was to go on"),
        (block("sh", "sleep 60 &"), "left at work: ["),
    ],
)
def test_what_does_not_hold_is_told_with_its_line(tmp_path: Path, page: str, told: str) -> None:
    (fault,) = faults(tmp_path, page)
    assert told in fault


def test_a_walk_goes_on_behind_a_fault(tmp_path: Path) -> None:
    assert len(faults(tmp_path, block("sh", "false") * 2)) == 2


def test_what_goes_on_is_interrupted_at_the_end_of_its_section(tmp_path: Path) -> None:
    seed = (
        "function swarm-node {\n"
        "    trap 'echo stopping in order; exit 0' INT\n"
        "    echo others join with: swarm-node join --peers /ip4/1\n"
        "    while :; do sleep 0.1; done\n"
        "}\n"
        "swarm-node seed"
    )
    page = f"# One\n\n{block('sh', seed)}\n{block('sh', 'test ADDRESS = /ip4/1')}\n# Two\n"
    assert faults(tmp_path, page) == []
