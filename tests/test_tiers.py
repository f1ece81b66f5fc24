"""The tables of the tiers name what there is."""

from __future__ import annotations

import ast

from tests.tiers import QUICK, SLOW, TESTS


def test_every_entry_names_a_folder_a_file_or_a_test() -> None:
    for entry in (*QUICK, *SLOW):
        path, _, name = entry.partition("::")
        assert (TESTS / path).exists(), entry
        if name:
            tree = ast.parse((TESTS / path).read_text())
            assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
