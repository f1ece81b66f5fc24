"""The page about hardware shows what the program plans."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.node.plan.hardware_table import PAGE, drawn


@pytest.mark.skipif(find_spec("vllm") is not None, reason="plans with vLLM are others")
def test_the_table_of_plans_is_as_plans_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == drawn(page), "run: python -m tests.node.plan.hardware_table"
