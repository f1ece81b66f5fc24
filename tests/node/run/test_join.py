"""What a node says when it ends."""

from __future__ import annotations

import pytest

from node.run.commands import ended

GO_ON = "go on with a larger --rounds, or with --rounds 0 until you stop it"


@pytest.mark.parametrize(("done", "told"), [(1, "1 round is done"), (12, "12 rounds are done")])
@pytest.mark.parametrize("asked", [0, 20])
def test_a_node_that_was_stopped_goes_on_with_the_same_command(
    done: int, asked: int, told: str
) -> None:
    assert ended(done, asked) == f"{told}; the same command goes on from there"


def test_a_node_that_did_all_its_rounds_is_to_be_asked_for_more() -> None:
    assert ended(1, 1) == f"1 round is done; {GO_ON}"
    assert ended(12, 12) == f"12 rounds are done; {GO_ON}"


def test_a_node_that_is_asked_for_fewer_rounds_than_it_did_says_so() -> None:
    assert ended(1012, 5) == f"1012 rounds are done, of the 5 asked for; {GO_ON}"
