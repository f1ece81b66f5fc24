"""Pages and program texts stay within their limits of length and style."""

import ast
import tomllib

import pytest

from tests.documents.language import LIMITS, WRITTEN, figures, sentences
from tests.documents.spoken import KINDS, found, shown, spoken

MAXIMUM = tomllib.loads(LIMITS.read_text())
LOWER = "run: python -m tests.documents.language"


@pytest.mark.parametrize("page", WRITTEN)
def test_page_stays_within_word_and_style_limits(page: str) -> None:
    assert page in MAXIMUM, LOWER
    found = figures(WRITTEN[page].read_text())
    assert {key: value for key, value in found.items() if value > MAXIMUM[page][key]} == {}
    assert MAXIMUM[page]["words"] <= 1.25 * found["words"] + 50, f"the page became shorter: {LOWER}"


@pytest.mark.parametrize("kind", KINDS)
def test_program_texts_stay_within_style_limits(kind: str) -> None:
    stats = figures(spoken()[kind])
    assert {key: stats[key] for key, limit in MAXIMUM[kind].items() if stats[key] > limit} == {}
    assert MAXIMUM[kind]["mean"] <= 17
    assert MAXIMUM[kind]["awkward"] <= 3 * stats["words"] / 1000


SOURCE = '''
"""A module."""
def ask_command(q: Annotated[str, Option("--q", help="The text to ask.")]) -> None:
    """Ask it."""
    raise NodeError("cannot ask the node", q, f"Wait for {q} to end.")
class Part(Section):
    """A part."""
    size: int = key(1, "Size of the part.", unit="x")
SQL = "SELECT a FROM table of words"
'''


def test_each_program_text_has_the_right_kind() -> None:
    assert list(found(ast.parse(SOURCE))) == [
        ("docstrings", "A module."),
        ("help", "The text to ask."),
        ("help", "Ask it."),
        ("messages", "cannot ask the node"),
        ("messages", "Wait for Code to end."),
        ("configuration", "A part."),
        ("configuration", "Size of the part."),
    ]


def test_parser_extracts_page_text_from_script() -> None:
    script = "// Not this one.\nx = 'No'; html`<p title='Told to you'>${x} of the <b>peers</b></p>`"
    assert shown(script) == ["Told to you", "Code of the peers"]


def test_linter_finds_awkward_phrases_outside_code() -> None:
    text = "Nobody told a peer. What it sends is no group; 40 tokens a second go on.\n"
    text += "\n| Where | `nobody` of a second node |\n\n```sh\nwhoever\n```\n"
    assert figures(text)["awkward"] == 7


def test_sentence_ends_at_list_item_or_paragraph_end() -> None:
    text = (
        "# Not one\n\nOne `code`. Two, [a link](x.md)\nthat wraps:\n\n- three\n- four\n\n| no |\n"
    )
    assert len(sentences(text)) == 4
