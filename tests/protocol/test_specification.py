"""``docs/protocol.md`` and the pages beside it describe what the code does."""

import ast
import json
import re
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from node.tasks.answer_forms import Form, form_of
from node.tasks.answer_patterns import DAYS, TRUTH
from node.tasks.sources import propositional_logic, reasoning_gym
from protocol import codec, envelope, identity, messages
from protocol.announcement import AUTHORS_A_SHARD, CLOCK_SKEW, LIFETIME_EPOCHS
from protocol.errors import ProtocolError
from protocol.manifest import MAX_NESTING
from protocol.profile import MAX_LINE, MAX_MODEL, MAX_NAME, MAX_VERSION
from swarm.collector import FEW
from swarm.directory import ALL_DEPTHS, COUNTS_KEPT, LARGEST_STEP, LEAST_STEP, SOUNDING_EPOCHS
from swarm.directory import LIFETIME_EPOCHS as OURS
from swarm.publisher import MAX_ANNOUNCEMENTS
from swarm.transport.hivemind.dht import MAX_KEYS, MAX_RECORDS, MAX_VERSIONS
from swarm.transport.libp2p import introductions
from swarm.transport.libp2p.calls import FIND, MOST_KEYS, PING, STORE
from swarm.transport.reachability import PAUSE_SECONDS
from swarm.transport.records import DICTIONARY_CODE, MAX_SUBKEYS
from swarm.transport.search import (
    BUCKET,
    MOST_ASKED,
    PATIENCE_SECONDS,
    REPLICAS,
    SEARCH_SECONDS,
    WORKERS,
)
from tests.protocol.strategies import is_told

DOCS = Path(__file__).parents[2] / "docs"
SPECIFICATION = (DOCS / "protocol.md").read_text()
REWARDS = (DOCS / "rewards.md").read_text()
MEMBER = (DOCS / "minimal_member.md").read_text()
VECTORS = Path(__file__).parent / "vectors"

IN_CASE = {"day": re.IGNORECASE, "truth": re.IGNORECASE}
FORMED = (
    *(name.title() for name in (*DAYS, *TRUTH)),
    *("0", "-3", "+21", "007", "1.50", ".5", "1e5", "2E-03", "1e5000", "1,234", "1,234.5", "12,34"),
    *("(B)", "٣", "anna", "x1", "7-5", "it's", "a_b", "B", "b", "é", "-", "the fox", "[a]", "x?"),
    *("3 * (4 + 1)", "1/2", "-3/4", "1e+5", "-3 + 4", "(1)+ 2"),
    *("3 × 4", "2 ^ 3", "1 +", "3 * 4 = 12", "1, 2"),
)
"""Right answers of every one-line form, and some that almost match a form."""


def section(title: str) -> str:
    """Return the text under a heading, with any number."""
    parts = re.split(r"^## (?:\d+\. )?(.+)$", SPECIFICATION, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def test_clauses_are_numbered_by_section_and_in_order() -> None:
    headings = re.findall(r"^## (\d+)\. ", SPECIFICATION, flags=re.MULTILINE)
    assert headings == [str(n) for n in range(1, len(headings) + 1)]
    bodies = re.split(r"^## \d+\. .+$", SPECIFICATION, flags=re.MULTILINE)[1:]
    for number, body in enumerate(bodies, 1):
        clauses = re.findall(r"^\*\*(\d+\.\d+)\*\* ", body, flags=re.MULTILINE)
        assert clauses == [f"{number}.{n}" for n in range(1, len(clauses) + 1)]


def test_every_referenced_clause_exists() -> None:
    defined = set(re.findall(r"^\*\*(\d+\.\d+)\*\* ", SPECIFICATION, flags=re.MULTILINE))
    for page in (SPECIFICATION, MEMBER):
        cells = re.sub(r"`[^`]*`|```.*?```|\*\*[\d.]+\*\*", "", page, flags=re.DOTALL)
        named = re.findall(r"(?:\(|by |to |, |and |see |clauses? |Clauses )(\d{1,2}\.\d+)", cells)
        assert set(named) - defined <= {"0.001", "1.1"}, page[:20]


def test_the_list_of_errors_is_complete() -> None:
    listed = re.findall(r"^- `(\w+)`: ", section("Errors"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(error.code for error in ProtocolError.__subclasses__())


def test_domain_table_is_complete_and_lengths_fit_a_byte() -> None:
    listed = re.findall(
        r"^\| `(swarm-node/[12]/[a-z]+)` \|", section("Signatures and hashes"), flags=re.MULTILINE
    )
    defined = [value for name, value in vars(identity).items() if name.endswith("_DOMAIN")]
    assert {name.encode() for name in listed} == set(defined)
    assert len(set(defined)) == len(defined)
    assert all(0 < len(value) < 256 for value in defined)


def code_points(pattern: str, page: str) -> set[int]:
    """Return the code points that a passage lists, including ranges."""
    (passage,) = re.findall(pattern, page, flags=re.DOTALL)
    ranges = re.findall(r"U\+([0-9A-F]{4,5})(?:–([0-9A-F]{4,5}))?", passage)
    return {n for a, b in ranges for n in range(int(a, 16), int(b or a, 16) + 1)}


def test_specification_lists_all_invisible_letters() -> None:
    listed = code_points(r"which show nothing: (.*?) It is", section("Profile"))
    printable = [code for code in range(sys.maxunicode + 1) if chr(code).isprintable()]
    assert {c for c in printable if not is_told(f"x{chr(c)}")} >= listed & {*printable}
    composed = {c for c in printable if unicodedata.is_normalized("NFC", f"x{chr(c)}")} - {0x20}
    assert {c for c in composed if not is_told(f"x{chr(c)}")} <= listed


def test_rewards_page_lists_all_stripped_white_space() -> None:
    listed = code_points(r"which is (U\+0009.*?) and nothing else", REWARDS)
    assert listed == {code for code in range(sys.maxunicode + 1) if not chr(code).strip()}
    vectors = json.loads((VECTORS / "answers.json").read_text())["vectors"]
    assert "nothing but white space" in [
        each["name"]
        for each in vectors
        if set(map(ord, bytes.fromhex(each["input"]).decode())) == listed
    ]


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Envelope", [k.magic.decode() for k in (envelope.MANIFEST, envelope.FRAME)]),
        ("Envelope", [k.magic.decode() for k in (envelope.ANNOUNCEMENT, envelope.PROFILE)]),
        ("Manifest", [f"at most {codec.MAX_MANIFEST_BYTES} bytes"]),
        ("Manifest", [f"2 … {codec.MAX_COMPLETIONS}, a group", f"at most {MAX_NESTING}, the"]),
        ("Manifest", [f"1024 … {codec.MAX_FRAME_BYTES}.\n"]),
        ("Frame", [f"items {codec.MAX_ITEMS}", f"1 to {codec.MAX_GROUPS};"]),
        ("Announcement", [f"at most {codec.MAX_RECORD_BYTES} bytes", f"now + {CLOCK_SKEW:.0f} s"]),
        ("Announcement", [f"now + {LIFETIME_EPOCHS} × `epoch_seconds`", f"0 … {codec.MAX_DEPTH}"]),
        ("Announcement", [f"+ {LIFETIME_EPOCHS + 1}) ×", f"now + {OURS:.0f} × `epoch_seconds`"]),
        ("Connections and streams", [messages.MANIFEST_STREAM, messages.PULL_STREAM]),
        ("Connections and streams", [messages.GOSSIP_STREAM, messages.PROFILE_STREAM]),
        ("Connections and streams", [messages.DIAL_BACK_STREAM, introductions.IDENTIFY]),
        ("Connections and streams", [introductions.ROUTING, introductions.PUSH]),
        ("Connections and streams", [f"`{call}`" for call in (PING, FIND, STORE)]),
        ("Pull and gossip", [f"{messages.MAX_GOSSIP_REQUEST_BYTES} bytes"]),
        ("Pull and gossip", [f"0 … {messages.MAX_DIGESTS}", f"1 … {messages.MAX_GOSSIP}"]),
        ("Pull and gossip", [f"{messages.MAX_GOSSIP_RESPONSE_BYTES} bytes"]),
        ("DHT", [f"up to {BUCKET} nodes", f"the {REPLICAS} nodes nearest", f"{MOST_KEYS} keys"]),
        ("DHT", [f"at most {MAX_VERSIONS + 1} versions"]),
        ("DHT", [f"up to {MAX_SUBKEYS} entries", f"`{DICTIONARY_CODE:#x}`"]),
        ("Depth, reading and counting", [f"{AUTHORS_A_SHARD} authors per shard"]),
        ("Depth, reading and counting", [f"all {len(ALL_DEPTHS)} depths", "last three results"]),
        ("Depth, reading and counting", ["one slot of sixteen", f"by at most {LARGEST_STEP:.0f}"]),
        ("Dial-back", [f"1 … {messages.MAX_PORTS} integers", f"last {PAUSE_SECONDS:.0f} s"]),
        ("Profile", [f"at most {messages.MAX_PROFILE_RESPONSE_BYTES} bytes"]),
        ("Profile", [f"up to {m} characters and {3 * m} bytes" for m in (MAX_NAME, MAX_LINE)]),
        ("Profile", [f"ASCII, 0 to {most} " for most in (MAX_MODEL, MAX_VERSION)]),
    ],
)
def test_specification_matches_code_constants(title: str, words: list[str]) -> None:
    for word in words:
        assert word in section(title)
    assert (COUNTS_KEPT, SOUNDING_EPOCHS) == (3, 16), "the page spells these numbers out"


@pytest.mark.parametrize(
    "words",
    [
        f"`expiry` at least {LEAST_STEP} s after",
        f"{MAX_SUBKEYS} authors per key, {MAX_KEYS} keys, {MAX_RECORDS:,} records",
        f"{WORKERS} calls in parallel, another one {PATIENCE_SECONDS} s after",
        f"{MOST_ASKED} nodes, {SEARCH_SECONDS:.0f} s",
        f"up to {MAX_ANNOUNCEMENTS} per slot",
        f"`limit` {FEW} if",
    ],
)
def test_recommended_values_match_the_code(words: str) -> None:
    assert words in MEMBER


def constants(module: ModuleType) -> list[Any]:
    """Return the strings and tuples that a module's source contains."""
    source = Path(str(module.__file__)).read_text()
    nodes = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.expr)]
    found = []
    for each in nodes:
        with suppress(ValueError):
            found.append(ast.literal_eval(each))
    return [each for each in found if isinstance(each, str | tuple)]


def test_answer_and_question_patterns_match_the_code() -> None:
    blocks = re.findall(r"^```text\n(.*?)^```$", REWARDS, flags=re.DOTALL | re.MULTILINE)
    spellings, question, forms = (block.rstrip("\n") for block in blocks)
    shown = [line.split(maxsplit=1) for line in spellings.splitlines()]
    read = [(each[1], each[0]) for each in shown]
    assert read in [list(each) for each in constants(propositional_logic)]
    assert question in constants(reasoning_gym)
    of = dict(line.split(maxsplit=1) for line in forms.splitlines())
    plain = ("number", "option", "word", "fraction")
    patterns, term = {kind: of[kind] for kind in plain}, of["arithmetic"]
    patterns |= {kind: of[kind].removesuffix(", in any case") for kind in IN_CASE}
    whole, part = term.split(" with T = ")
    patterns["arithmetic"] = whole.replace("T", part)
    kinds = {"number": Form.NUMBER, "day": Form.DAY, "truth": Form.TRUTH, "option": Form.OPTION}
    kinds |= {"word": Form.WORD, "fraction": Form.FRACTION, "arithmetic": Form.EXPRESSION}
    for text in FORMED:
        fits = [kind for kind in kinds if re.fullmatch(patterns[kind], text, IN_CASE.get(kind, 0))]
        assert form_of(text) is (kinds[fits[0]] if fits else Form.LINE), text


def example() -> tuple[str, list[tuple[str, str]]]:
    """Return the text above the example, and its lines: hex bytes and their meaning."""
    parts = r"## Example\n\n(.*?)\n\n```text\n(.*?)\n```"
    ((text, block),) = re.findall(parts, MEMBER, flags=re.DOTALL)
    lines = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in block.splitlines()]
    return text, [(line[0], line[-1] if line[1:] else "") for line in lines]


def test_example_matches_the_vector_it_names() -> None:
    text, lines = example()
    named, file = re.findall(r"`([^`]+)`", text)[:2]
    vectors = json.loads((VECTORS / file).read_text())["vectors"]
    (vector,) = (each for each in vectors if each["name"] == named)
    expected, frame = vector["expected"], bytes.fromhex(vector["input"])
    assert f"{len(frame)} bytes; its content id is `{expected['content_id']}`" in text
    assert any(identity.peer_id_of(bytes.fromhex(expected["author"])) in said for _, said in lines)
    body = len(frame) - envelope.HEAD_BYTES - envelope.COMPRESSED_HEAD_BYTES
    assert ("00 00000170", f"not compressed, {body} bytes") in lines
    shown = "".join(found.replace(" ", "") for found, _ in lines)
    pattern = "".join("[0-9a-f]*" if each == "…" else each for each in shown)
    assert re.fullmatch(pattern, vector["input"])
