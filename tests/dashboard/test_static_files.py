"""What is sent to a browser, as files."""

from __future__ import annotations

import gzip
import re
from dataclasses import fields
from pathlib import Path

import pytest

from node.dashboard.app import STATIC
from node.monitor.record import PHASES, RoundRecord

MOST_BYTES = 60_000
MOST_LINES = 300
VENDORED = {"htm-preact.js": ("htm", "preact"), "uplot.js": ("uplot",)}


def sent() -> list[Path]:
    return sorted(
        path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".LICENSE"
    )


def ours(*suffixes: str) -> list[Path]:
    return [path for path in sent() if path.suffix in suffixes and path.parent == STATIC]


def test_all_that_a_browser_is_sent_has_less_than_sixty_kilobytes_when_packed() -> None:
    assert len(gzip.compress(b"".join(path.read_bytes() for path in sent()), 9)) < MOST_BYTES


def test_what_others_wrote_has_their_licences_beside_it() -> None:
    vendor = STATIC / "vendor"
    assert {path.name for path in vendor.iterdir() if path.suffix != ".LICENSE"} == set(VENDORED)
    for names in VENDORED.values():
        for name in names:
            assert "Copyright" in (vendor / f"{name}.LICENSE").read_text()


@pytest.mark.parametrize("path", ours(".js", ".css", ".html"), ids=lambda path: path.name)
def test_a_file_of_the_page_is_short_and_asks_nobody_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    assert not re.search(r"https?://|//\w+\.\w+/|@import", text.replace("http://www.w3.org/", ""))
    assert not re.search(r"innerHTML|dangerously|document\.write|eval\(|new Function", text)


def test_the_page_has_no_code_and_no_style_in_its_markup() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>([^<]+)</script>|<style|\sstyle=|\son\w+=", page) == []


def test_the_page_draws_no_figure_that_a_round_does_not_have() -> None:
    learning = (STATIC / "learning.js").read_text(encoding="utf-8")
    drawn = set(re.findall(r"line\('(\w+)'", learning))
    assert len(drawn) > 20
    assert drawn <= {each.name for each in fields(RoundRecord)}
    named = re.search(r"const PHASES = \[([^\]]+)\]", learning)
    assert named and tuple(re.findall(r"'(\w+)'", named[1])) == PHASES


def test_every_module_is_fetched_with_the_page_and_not_one_after_the_other() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    early = set(re.findall(r'rel="modulepreload" href="static/([\w./-]+)"', page))
    begun = {"app.js", "theme.js"}
    assert early == {path.name for path in ours(".js")} - begun | {"vendor/htm-preact.js"}


def test_every_question_mark_has_a_sentence_behind_it() -> None:
    said = set(re.findall(r"^  (\w+): '", (STATIC / "words.js").read_text(encoding="utf-8"), re.M))
    asked = set()
    for path in ours(".js"):
        text = path.read_text(encoding="utf-8")
        asked |= set(
            re.findall(
                r"Help\} of=\"(\w+)\"|word: '(\w+)'|id: '(\w+)', title|<\$\{Chart\} id=\"(\w+)\"",
                text,
            )
        )
    words = {word for found in asked for word in found if word}
    assert len(words) > 20
    assert words <= said
