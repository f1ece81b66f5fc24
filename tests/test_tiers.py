"""The tables of the tiers name what there is."""

from __future__ import annotations

import re

from tests.tiers import QUICK, SLOW, TESTS, needless


def test_every_entry_names_a_folder_a_file_or_the_beginning_of_one_test() -> None:
    for entry in (*QUICK, *SLOW):
        path, _, name = entry.partition("::")
        assert (TESTS / path).exists(), entry
        if name:
            begun = re.findall(
                rf"^(?:(?:async )?def )?{name}\w*(?: =|\()", (TESTS / path).read_text(), re.M
            )
            assert len(begun) == 1, entry


def test_files_of_slow_tests_are_left_unread_in_the_fast_tier_alone() -> None:
    slow = TESTS / "node/environments/test_textarena.py"
    assert needless(slow, "not vllm and not slow")
    assert needless(TESTS / "experiments/scale", "not slow")
    assert not needless(slow, "not vllm and slow")
    assert not needless(slow, "not vllm")
    assert not needless(TESTS / "node/environments/test_gymnasium.py", "not slow")
