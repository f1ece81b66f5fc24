"""The answer is found in what the policy wrote, or is empty."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.task import extract

CASES = [
    ("text", " 42\n", "42"),
    ("answer_tag", "so <answer> 42 </answer>.", "42"),
    ("answer_tag", "<answer>1</answer> no, <answer>2</answer>", "2"),
    ("answer_tag", "<answer>1</answer> or <answer>2", "1"),
    ("answer_tag", "the answer is 42", ""),
    ("answer_tag", "</answer>42<answer>", ""),
    ("answer_tag", "<answer></answer>", ""),
    ("boxed", r"so \boxed{42}.", "42"),
    ("boxed", r"\boxed{1} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    ("boxed", r"\boxed{42", ""),
    ("boxed", "42", ""),
]


@pytest.mark.parametrize(("how", "text", "answer"), CASES)
def test_the_last_marked_answer_counts(how, text, answer):
    assert extract(text, how) == answer


@given(text=st.text(alphabet=r"<answer>/\boxed{}12 "), how=st.sampled_from(["answer_tag", "boxed"]))
def test_an_answer_is_always_a_part_of_the_text(text, how):
    assert extract(text, how) in text
