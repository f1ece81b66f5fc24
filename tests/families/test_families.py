"""docs/models.md says what was measured, and that is still so."""

from dataclasses import replace

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.families.__main__ import tried
from tests.families.table import PAGE, Family, page, recorded

VERSION, FAMILIES = recorded()
OFTEN = (
    *("llama", "qwen2", "gemma2", "gpt_oss"),
    *("qwen3_next", "smollm3", "recurrent_gemma", "zamba2"),
)
"""Built in every run; the kinds of layers that differ most."""


def test_the_page_is_written_from_the_record():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.families"


@pytest.mark.skipif(transformers.__version__ != VERSION, reason=f"recorded with {VERSION}")
def test_every_causal_architecture_works_or_is_refused_or_was_not_tried_for_a_reason():
    assert set(FAMILIES) == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    for name, family in FAMILIES.items():
        assert sum(map(bool, (family.works, family.refused, family.untried))) == 1, name
    assert sum(family.works for family in FAMILIES.values()) >= 120


def assert_as_recorded(name: str) -> None:
    told, found = FAMILIES[name], tried(name)
    assert (found.works, bool(found.refused)) == (told.works, bool(told.refused)), found


@pytest.mark.parametrize("name", OFTEN)
def test_a_family_of_each_kind_is_as_the_page_says(name):
    assert_as_recorded(name)


@pytest.mark.families
@pytest.mark.skipif(transformers.__version__ != VERSION, reason=f"recorded with {VERSION}")
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in OFTEN])
def test_every_family_is_as_the_page_says(name):
    assert_as_recorded(name)


def test_a_family_that_is_a_little_off_does_not_work():
    measured = FAMILIES["llama"].measured
    assert measured is not None and Family(measured).works
    off = {"greedy": 3, "rows": 2e-3, "many": 1.0, "joins": float("inf"), "turns": 0.1}
    for field, value in {**off, "moved": 0.0}.items():
        assert not Family(replace(measured, **{field: value})).works
