from __future__ import annotations

import pytest

from swarm.common.util import counted, in_words


@pytest.mark.parametrize(("count", "told"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds")])
def test_one_of_a_thing_is_told_in_the_singular(count: int, told: str) -> None:
    assert counted(count, "round") == told


def test_an_exit_status_names_its_signal_if_it_has_a_name() -> None:
    assert in_words(1) == "exit status 1"
    assert in_words(-9) == "signal SIGKILL"
    assert in_words(-40) == "signal 40"
