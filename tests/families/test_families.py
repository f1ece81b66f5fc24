"""docs/models.md matches the record, and the record matches new measurements."""

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
"""Built in every run; their layer types differ the most."""


def test_models_page_matches_the_record():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.families"


@pytest.mark.skipif(transformers.__version__ != VERSION, reason=f"recorded with {VERSION}")
def test_every_architecture_works_is_refused_or_has_a_skip_reason():
    assert set(FAMILIES) == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    for name, family in FAMILIES.items():
        assert sum(map(bool, (family.works, family.refused, family.untried))) == 1, name
    assert sum(family.works for family in FAMILIES.values()) >= 120


def assert_as_recorded(name: str) -> None:
    record, result = FAMILIES[name], tried(name)
    assert (result.works, bool(result.refused)) == (record.works, bool(record.refused)), result


@pytest.mark.parametrize("name", OFTEN)
def test_common_families_match_the_record(name):
    assert_as_recorded(name)


@pytest.mark.families
@pytest.mark.skipif(transformers.__version__ != VERSION, reason=f"recorded with {VERSION}")
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in OFTEN])
def test_other_families_match_the_record(name):
    assert_as_recorded(name)


def test_family_over_one_limit_does_not_work():
    measured = FAMILIES["llama"].measured
    assert measured is not None and Family(measured).works
    off = {"greedy": 3, "rows": 2e-3, "many": 1.0, "joins": float("inf"), "turns": 0.1}
    for field, value in {**off, "moved": 0.0}.items():
        assert not Family(replace(measured, **{field: value})).works
