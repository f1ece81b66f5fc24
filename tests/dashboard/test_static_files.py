"""What is sent to a browser, as files: a node's dashboard and the public page of a swarm."""

import gzip
import re
from dataclasses import fields
from pathlib import Path

import pytest

from node.dashboard.app import STATIC
from node.dashboard.public_server import SHARED
from node.dashboard.public_server import STATIC as PUBLIC
from node.monitor.record import PHASES, RoundRecord
from swarm.verification import PENALTIES
from tests.dashboard.swarm_page.made_swarm import sent

MOST_BYTES = 60_000
MOST_LINES = 300
VENDORED = {"htm-preact.js": ("htm", "preact"), "uplot.js": ("uplot",)}
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".LICENSE")
OURS = [path for path in FILES if path.suffix in (".js", ".css", ".html") and path.parent == STATIC]
PUBLIC_FILES = sorted(path for path in PUBLIC.rglob("*") if path.is_file())
PAGE = (STATIC / "index.html").read_text(encoding="utf-8")
PUBLIC_PAGE = (PUBLIC / "index.html").read_text(encoding="utf-8")
PUBLIC_WORDS = (PUBLIC / "words.js").read_text(encoding="utf-8")
SENTENCE = r"^  (\w+): '"
ASKED = r"Help\} of=\"(\w+)\"|word: '(\w+)'|id: '(\w+)', title|<\$\{Chart\} id=\"(\w+)\""
PUBLIC_ASKED = (
    r"Help\} of=\"(\w+)\"|word[:=] ?['\"](\w+)|^ +\['(\w+)', '|Chart\} id=\"(\w+)\""
    r"|figure\('\w+', '[\w ]+', '(\w+)'|text\('\w+', '\w+', '(\w+)'"
)


def loaded() -> set[str]:
    """All that a browser fetches for the public page, by what its markup and its modules name."""
    found = {"index.html"} | set(re.findall(r'(?:href|src)="(static/[\w./-]+)"', PUBLIC_PAGE))
    waiting = {name for name in found if name.endswith(".js")}
    while waiting:
        name = waiting.pop()
        folder = name.rsplit("/", 1)[0]
        text = sent()[name].read_text(encoding="utf-8")
        named = re.findall(r"^import .*'\./([^']+)';", text, re.M)
        imported = {f"{folder}/{each}" for each in named}
        waiting |= imported - found
        found |= imported
    return found


def asked(paths: list[Path], pattern: str) -> set[str]:
    """The words of the question marks in some files."""
    texts = (path.read_text(encoding="utf-8") for path in paths)
    groups = (found for text in texts for found in re.findall(pattern, text, re.M))
    return {word for found in groups for word in found if word}


def test_all_that_a_browser_is_sent_has_less_than_sixty_kilobytes_when_packed():
    assert len(gzip.compress(b"".join(path.read_bytes() for path in FILES), 9)) < MOST_BYTES


def test_the_public_page_is_less_than_sixty_kilobytes_packed_file_by_file():
    files = sent()
    assert sum(len(gzip.compress(files[name].read_bytes(), 9)) for name in loaded()) < MOST_BYTES


def test_what_others_wrote_has_their_licences_beside_it():
    vendor = STATIC / "vendor"
    assert {path.name for path in vendor.iterdir() if path.suffix != ".LICENSE"} == set(VENDORED)
    for name in (name for names in VENDORED.values() for name in names):
        assert "Copyright" in (vendor / f"{name}.LICENSE").read_text()


def test_what_is_sent_of_the_public_page_is_what_is_loaded_and_its_licences():
    assert {name for name in sent() if not name.endswith(".LICENSE")} == loaded()
    assert len(set(SHARED)) == len(SHARED)


@pytest.mark.parametrize("path", [*OURS, *PUBLIC_FILES], ids=lambda path: path.name)
def test_a_file_of_a_page_is_short_and_asks_nobody_else(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    if path in OURS:
        outside, text_without = r"", text.replace("http://www.w3.org/", "")
    else:
        outside, text_without = r"|[\"'`(=]/\w", re.sub(r"/\^.*?/", "", text)
    assert not re.search(rf"https?://|//\w+\.\w+/|@import{outside}", text_without)
    assert not re.search(r"innerHTML|dangerously|document\.write|eval\(|new Function", text)


@pytest.mark.parametrize("page", [PAGE, PUBLIC_PAGE], ids=["dashboard", "public"])
def test_a_page_has_no_code_and_no_style_in_its_markup(page):
    assert re.findall(r"<script[^>]*>([^<]+)</script>|<style|\sstyle=|\son\w+=", page) == []


def test_the_public_page_has_a_security_policy_in_its_markup():
    policy = """http-equiv="Content-Security-Policy" content="default-src 'self';"""
    assert policy in PUBLIC_PAGE


def test_the_page_draws_no_figure_that_a_round_does_not_have():
    learning = (STATIC / "learning.js").read_text(encoding="utf-8")
    drawn = set(re.findall(r"line\('(\w+)'", learning))
    assert len(drawn) > 20
    assert drawn <= {each.name for each in fields(RoundRecord)}
    named = re.search(r"const PHASES = \[([^\]]+)\]", learning)
    assert named and tuple(re.findall(r"'(\w+)'", named[1])) == PHASES


def test_every_module_is_fetched_with_its_page_and_not_one_after_the_other():
    early = set(re.findall(r'rel="modulepreload" href="static/([\w./-]+)"', PAGE))
    modules = {path.name for path in OURS if path.suffix == ".js"}
    assert early == modules - {"app.js", "theme.js"} | {"vendor/htm-preact.js"}
    named = set(re.findall(r'(?:href|src)="(static/[\w./-]+)"', PUBLIC_PAGE))
    assert named == loaded() - {"index.html"}


def test_every_reason_for_a_refusal_has_its_words():
    table = PUBLIC_WORDS[PUBLIC_WORDS.index("const REASONS") :]
    assert set(re.findall(r"^  (\w+):", table, re.M)) == set(PENALTIES)


def test_every_question_mark_has_a_sentence_behind_it():
    said = re.findall(SENTENCE, (STATIC / "words.js").read_text(encoding="utf-8"), re.M)
    words = asked([path for path in OURS if path.suffix == ".js"], ASKED)
    assert len(words) > 20 and words <= set(said)
    said = re.findall(SENTENCE, PUBLIC_WORDS[: PUBLIC_WORDS.index("const BROKEN")], re.M)
    words = asked(PUBLIC_FILES, PUBLIC_ASKED)
    assert len(words) > 12 and words <= set(said)
