"""The page of a swarm, as files."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from node.dashboard.public_server import SHARED, STATIC
from swarm.verification import STRIKES
from tests.dashboard.swarm_page.laid_out import sent

MOST_BYTES = 60_000
MOST_LINES = 300
OURS = sorted(path for path in STATIC.rglob("*") if path.is_file())


def loaded() -> set[str]:
    """All that a browser fetches for the page, by what its markup and its modules name."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    found = {"index.html"} | set(re.findall(r'(?:href|src)="(static/[\w./-]+)"', page))
    waiting = {name for name in found if name.endswith(".js")}
    while waiting:
        name = waiting.pop()
        folder = name.rsplit("/", 1)[0]
        text = sent()[name].read_text(encoding="utf-8")
        imported = {
            f"{folder}/{each}" for each in re.findall(r"^import .*'\./([^']+)';", text, re.M)
        }
        waiting |= imported - found
        found |= imported
    return found


def test_the_page_is_less_than_sixty_kilobytes_packed_file_by_file() -> None:
    files = sent()
    assert sum(len(gzip.compress(files[name].read_bytes(), 9)) for name in loaded()) < MOST_BYTES


def test_what_is_sent_is_what_is_loaded_and_its_licences() -> None:
    assert {name for name in sent() if not name.endswith(".LICENSE")} == loaded()
    assert len(set(SHARED)) == len(SHARED)


def test_every_module_is_fetched_with_the_page() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'(?:href|src)="(static/[\w./-]+)"', page))
    assert named == loaded() - {"index.html"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_file_of_the_swarms_page_is_short_and_asks_nobody_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    assert not re.search(r"https?://|//\w+\.\w+/|@import|[\"'`(=]/\w", re.sub(r"/\^.*?/", "", text))
    assert not re.search(r"innerHTML|dangerously|document\.write|eval\(|new Function", text)


def test_the_swarms_page_has_no_code_and_no_style_in_its_markup() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>([^<]+)</script>|<style|\sstyle=|\son\w+=", page) == []
    assert """http-equiv="Content-Security-Policy" content="default-src 'self';""" in page


def test_every_reason_for_a_refusal_has_its_words() -> None:
    words = (STATIC / "words.js").read_text(encoding="utf-8")
    table = words[words.index("const REASONS") :]
    assert set(re.findall(r"^  (\w+):", table, re.M)) == set(STRIKES)


def test_every_figure_that_is_asked_about_has_a_sentence() -> None:
    words = (STATIC / "words.js").read_text(encoding="utf-8")
    said = set(re.findall(r"^  (\w+): '", words[: words.index("const BROKEN")], re.M))
    asked = set()
    for path in OURS:
        asked |= set(
            re.findall(
                r"Help\} of=\"(\w+)\"|word[:=] ?['\"](\w+)|^ +\['(\w+)', '|Chart\} id=\"(\w+)\""
                r"|figure\('\w+', '[\w ]+', '(\w+)'|text\('\w+', '\w+', '(\w+)'",
                path.read_text(encoding="utf-8"),
                re.M,
            )
        )
    words_asked = {word for found in asked for word in found if word}
    assert len(words_asked) > 12
    assert words_asked <= said
