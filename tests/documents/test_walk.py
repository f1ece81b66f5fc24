"""Every block of the documents, typed as it stands, with real programs and real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.claims import remaining
from tests.documents.environment import build
from tests.documents.page import PAGES, blocks, name
from tests.documents.walk import Walk

pytestmark = pytest.mark.documents


def run(page: Path) -> int:
    typed = (block.text for block in blocks(page.read_text()) if block.language == "sh")
    return sum(bool(remaining(name(page), script)) for script in typed)


# The longest first: two workers share them.
WALKED = sorted(filter(run, PAGES), key=run, reverse=True)


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the shells begin with, in an environment of their own."""
    return build(tmp_path_factory.mktemp("environment"))


@pytest.mark.parametrize("page", WALKED, ids=name)
def test_every_block_of_a_page_does_what_the_page_says(
    page: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    faults = Walk(page, tmp_path, variables).go()
    assert faults == [], "\n\n".join(faults)
