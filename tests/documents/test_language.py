"""Whether pages and the program's texts are in plain English, and pages as short as before."""

import ast
import tomllib

import pytest

from tests.documents.language import LIMITS, WRITTEN, figures, sentences
from tests.documents.spoken import KINDS, found, shown, spoken

MOST = tomllib.loads(LIMITS.read_text())
LOWER = "run: python -m tests.documents.language"


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_keeps_to_its_words_and_to_plain_english(page: str) -> None:
    assert page in MOST, LOWER
    found = figures(WRITTEN[page].read_text())
    assert {key: value for key, value in found.items() if value > MOST[page][key]} == {}
    assert MOST[page]["words"] <= 1.25 * found["words"] + 50, f"the page is shorter: {LOWER}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_program_says_keeps_to_plain_english(kind: str) -> None:
    said = figures(spoken()[kind])
    assert {key: said[key] for key, limit in MOST[kind].items() if said[key] > limit} == {}
    assert MOST[kind]["mean"] <= 17
    assert MOST[kind]["awkward"] <= 3 * said["words"] / 1000


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


def test_each_text_of_the_program_has_its_kind() -> None:
    assert list(found(ast.parse(SOURCE))) == [
        ("docstrings", "A module."),
        ("help", "The text to ask."),
        ("help", "Ask it."),
        ("messages", "cannot ask the node"),
        ("messages", "Wait for Code to end."),
        ("configuration", "A part."),
        ("configuration", "Size of the part."),
    ]


def test_texts_of_a_page_are_found_between_its_code() -> None:
    script = "// Not this one.\nx = 'No'; html`<p title='Told to you'>${x} of the <b>peers</b></p>`"
    assert shown(script) == ["Told to you", "Code of the peers"]


def test_awkward_phrases_are_found_outside_of_code() -> None:
    text = "Nobody told a peer. What it sends is no group; 40 tokens a second go on.\n"
    text += "\n| Where | `nobody` of a second node |\n\n```sh\nwhoever\n```\n"
    assert figures(text)["awkward"] == 7


def test_a_sentence_ends_with_its_list_item_or_paragraph() -> None:
    text = (
        "# Not one\n\nOne `code`. Two, [a link](x.md)\nthat wraps:\n\n- three\n- four\n\n| no |\n"
    )
    assert len(sentences(text)) == 4
