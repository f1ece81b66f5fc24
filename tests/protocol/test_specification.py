"""``docs/protocol.md`` names what the code does."""

import re
import sys
import unicodedata
from pathlib import Path

import pytest

from protocol import codec, envelope, identity, messages
from protocol.announcement import AUTHORS_A_SHARD, CLOCK_SKEW, LIFETIME_EPOCHS
from protocol.errors import ProtocolError
from protocol.manifest import MAX_NESTING
from protocol.profile import MAX_LINE, MAX_MODEL, MAX_NAME, MAX_VERSION
from tests.protocol.cases_values import BLANK
from tests.protocol.strategies import is_told

SPECIFICATION = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def section(number: int) -> str:
    return re.split(r"^## \d+\. ", SPECIFICATION, flags=re.MULTILINE)[number]


def test_the_table_of_errors_is_complete() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", section(13), flags=re.MULTILINE)
    assert sorted(listed) == sorted(error.code for error in ProtocolError.__subclasses__())


def test_the_table_of_domains_is_complete_and_each_fits_its_length_byte() -> None:
    listed = re.findall(r"^\| `(swarm-node/[12]/[a-z]+)` \|", section(3), flags=re.MULTILINE)
    defined = [value for name, value in vars(identity).items() if name.endswith("_DOMAIN")]
    assert {name.encode() for name in listed} == set(defined)
    assert len(set(defined)) == len(defined)
    assert all(0 < len(value) < 256 for value in defined)


def code_points(pattern: str, number: int) -> set[int]:
    """Those that a passage of a section lists, ranges among them."""
    (passage,) = re.findall(pattern, section(number), flags=re.DOTALL)
    ranges = re.findall(r"U\+([0-9A-F]{4,5})(?:–([0-9A-F]{4,5}))?", passage)
    return {n for a, b in ranges for n in range(int(a, 16), int(b or a, 16) + 1)}


def test_the_letters_that_show_nothing_are_listed_to_the_last_code_point() -> None:
    listed = code_points(r"shows nothing all\s+the same: (.*?) It is", 11)
    printable = [code for code in range(sys.maxunicode + 1) if chr(code).isprintable()]
    assert {c for c in printable if not is_told(f"x{chr(c)}")} >= listed & {*printable}
    composed = {c for c in printable if unicodedata.is_normalized("NFC", f"x{chr(c)}")} - {0x20}
    assert {c for c in composed if not is_told(f"x{chr(c)}")} <= listed


def test_the_white_space_that_is_stripped_is_listed_to_the_last_code_point() -> None:
    listed = code_points(r"which is (U\+0009.*?) and nothing else", 12)
    assert listed == {code for code in range(sys.maxunicode + 1) if not chr(code).strip()}
    assert listed == set(map(ord, BLANK))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (5, [k.magic.decode() for k in (envelope.MANIFEST, envelope.FRAME)]),
        (5, [k.magic.decode() for k in (envelope.ANNOUNCEMENT, envelope.PROFILE)]),
        (6, [f"At most {codec.MAX_MANIFEST_BYTES} bytes", f"2 … {codec.MAX_COMPLETIONS}, a group"]),
        (6, [f"up to {MAX_NESTING} deep"]),
        (
            7,
            [
                f"at most {codec.MAX_FRAME_BYTES}",
                f"items {codec.MAX_ITEMS}",
                f"1 to {codec.MAX_GROUPS};",
            ],
        ),
        (8, [f"At most {codec.MAX_RECORD_BYTES} bytes", f"now + {CLOCK_SKEW:.0f} s"]),
        (8, [f"now + {LIFETIME_EPOCHS} × `epoch_seconds`", f"+ {LIFETIME_EPOCHS + 1}) ×"]),
        (11, [messages.MANIFEST_STREAM, messages.PULL_STREAM, messages.GOSSIP_STREAM]),
        (11, [f"{messages.MAX_GOSSIP_REQUEST_BYTES} bytes", f"0 … {messages.MAX_DIGESTS}"]),
        (8, [f"0 … {codec.MAX_DEPTH}"]),
        (11, [messages.PROFILE_STREAM, f"At most {messages.MAX_PROFILE_RESPONSE_BYTES} bytes"]),
        (11, [f"up to {most} characters and {3 * most} bytes" for most in (MAX_NAME, MAX_LINE)]),
        (11, [f"ASCII, 0 to {most} " for most in (MAX_MODEL, MAX_VERSION)]),
        (9, [f"a shard: {AUTHORS_A_SHARD}"]),
        (11, [f"1 … {messages.MAX_GOSSIP}", f"{messages.MAX_GOSSIP_RESPONSE_BYTES} bytes"]),
    ],
)
def test_the_numbers_and_names_are_those_of_the_code(number: int, words: list[str]) -> None:
    for word in words:
        assert word in section(number)
