"""Whether every page is written in plain English, and as short as it has been."""

import tomllib

import pytest

from tests.documents.language import LIMITS, WRITTEN, figures, sentences

MOST = tomllib.loads(LIMITS.read_text())
LOWER = "run: python -m tests.documents.language"


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_keeps_to_its_words_and_to_plain_english(page: str) -> None:
    assert page in MOST, LOWER
    found = figures(WRITTEN[page].read_text())
    assert {key: value for key, value in found.items() if value > MOST[page][key]} == {}
    assert MOST[page]["words"] <= 1.25 * found["words"] + 50, f"the page is shorter: {LOWER}"


def test_awkward_phrases_are_found_outside_of_code() -> None:
    text = "Nobody told a peer. What it sends is no group; 40 tokens a second go on.\n"
    text += "\n| Where | `nobody` of a second node |\n\n```sh\nwhoever\n```\n"
    assert figures(text)["awkward"] == 7


def test_a_sentence_ends_with_its_list_item_or_paragraph() -> None:
    text = (
        "# Not one\n\nOne `code`. Two, [a link](x.md)\nthat wraps:\n\n- three\n- four\n\n| no |\n"
    )
    assert len(sentences(text)) == 4
