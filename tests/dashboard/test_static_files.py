"""Static files of a node's dashboard and of the public swarm page."""

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

MAX_BYTES = 60_000
MAX_LINES = 300
VENDORED = {"htm-preact.js": ("htm", "preact"), "uplot.js": ("uplot",)}
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".LICENSE")
OURS = [path for path in FILES if path.suffix in (".js", ".css", ".html") and path.parent == STATIC]
PUBLIC_FILES = sorted(path for path in PUBLIC.rglob("*") if path.is_file())
PAGE = (STATIC / "index.html").read_text(encoding="utf-8")
PUBLIC_PAGE = (PUBLIC / "index.html").read_text(encoding="utf-8")
PUBLIC_WORDS = (PUBLIC / "words.js").read_text(encoding="utf-8")
SENTENCE = r"^  (\w+): '"
HELP_IDS = r"Help\} of=\"(\w+)\"|word: '(\w+)'|id: '(\w+)', title|<\$\{Chart\} id=\"(\w+)\""
PUBLIC_HELP_IDS = (
    r"Help\} of=\"(\w+)\"|word[:=] ?['\"](\w+)|^ +\['(\w+)', '|Chart\} id=\"(\w+)\""
    r"|figure\('\w+', '[\w ]+', '(\w+)'|text\('\w+', '\w+', '(\w+)'"
)


def loaded() -> set[str]:
    """Return the files that the markup and modules of the public page refer to."""
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


def help_ids(paths: list[Path], pattern: str) -> set[str]:
    """Return the ids of the help marks in files."""
    texts = (path.read_text(encoding="utf-8") for path in paths)
    groups = (found for text in texts for found in re.findall(pattern, text, re.M))
    return {word for found in groups for word in found if word}


def test_dashboard_files_are_under_60_kb_compressed():
    assert len(gzip.compress(b"".join(path.read_bytes() for path in FILES), 9)) < MAX_BYTES


def test_public_page_is_under_60_kb_with_per_file_gzip():
    files = sent()
    assert sum(len(gzip.compress(files[name].read_bytes(), 9)) for name in loaded()) < MAX_BYTES


def test_vendored_files_have_their_licenses():
    vendor = STATIC / "vendor"
    assert {path.name for path in vendor.iterdir() if path.suffix != ".LICENSE"} == set(VENDORED)
    for name in (name for names in VENDORED.values() for name in names):
        assert "Copyright" in (vendor / f"{name}.LICENSE").read_text()


def test_public_page_sends_only_loaded_files_and_licenses():
    assert {name for name in sent() if not name.endswith(".LICENSE")} == loaded()
    assert len(set(SHARED)) == len(SHARED)


@pytest.mark.parametrize("path", [*OURS, *PUBLIC_FILES], ids=lambda path: path.name)
def test_page_file_is_short_and_loads_no_remote_code(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_LINES
    if path in OURS:
        outside, text_without = r"", text.replace("http://www.w3.org/", "")
    else:
        outside, text_without = r"|[\"'`(=]/\w", re.sub(r"/\^.*?/", "", text)
    assert not re.search(rf"https?://|//\w+\.\w+/|@import{outside}", text_without)
    assert not re.search(r"innerHTML|dangerously|document\.write|eval\(|new Function", text)


@pytest.mark.parametrize("page", [PAGE, PUBLIC_PAGE], ids=["dashboard", "public"])
def test_page_has_no_inline_scripts_or_styles(page):
    assert re.findall(r"<script[^>]*>([^<]+)</script>|<style|\sstyle=|\son\w+=", page) == []


def test_public_page_sets_content_security_policy():
    policy = """http-equiv="Content-Security-Policy" content="default-src 'self';"""
    assert policy in PUBLIC_PAGE


def test_charts_use_only_fields_of_a_round_record():
    learning = (STATIC / "learning.js").read_text(encoding="utf-8")
    drawn = set(re.findall(r"line\('(\w+)'", learning))
    assert len(drawn) > 20
    assert drawn <= {each.name for each in fields(RoundRecord)}
    named = re.search(r"const PHASES = \[([^\]]+)\]", learning)
    assert named and tuple(re.findall(r"'(\w+)'", named[1])) == PHASES


def test_page_preloads_every_javascript_module():
    early = set(re.findall(r'rel="modulepreload" href="static/([\w./-]+)"', PAGE))
    modules = {path.name for path in OURS if path.suffix == ".js"}
    assert early == modules - {"app.js", "theme.js"} | {"vendor/htm-preact.js"}
    named = set(re.findall(r'(?:href|src)="(static/[\w./-]+)"', PUBLIC_PAGE))
    assert named == loaded() - {"index.html"}


def test_every_penalty_has_a_description():
    table = PUBLIC_WORDS[PUBLIC_WORDS.index("const REASONS") :]
    assert set(re.findall(r"^  (\w+):", table, re.M)) == set(PENALTIES)


def test_every_help_icon_has_an_explanation():
    entries = re.findall(SENTENCE, (STATIC / "words.js").read_text(encoding="utf-8"), re.M)
    words = help_ids([path for path in OURS if path.suffix == ".js"], HELP_IDS)
    assert len(words) > 20 and words <= set(entries) and len(entries) == len(set(entries))
    entries = re.findall(SENTENCE, PUBLIC_WORDS[: PUBLIC_WORDS.index("const BROKEN")], re.M)
    words = help_ids(PUBLIC_FILES, PUBLIC_HELP_IDS)
    assert len(words) > 12 and words <= set(entries)
