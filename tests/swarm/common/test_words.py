from __future__ import annotations

import pytest

from swarm.common.util import counted


@pytest.mark.parametrize(("count", "told"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds")])
def test_one_of_a_thing_is_told_in_the_singular(count: int, told: str) -> None:
    assert counted(count, "round") == told
