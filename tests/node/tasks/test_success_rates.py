"""What a node believes of its own success rates."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from node.tasks.curriculum import KEPT, Beliefs, teaches

GROUP = 8
LEVEL = ("gcd", 0)


def believed(beliefs: Beliefs) -> float:
    rng = random.Random(0)
    return fmean(beliefs.draw(LEVEL, rng) for _ in range(4000))


def test_nothing_is_believed_of_a_level_that_was_never_seen() -> None:
    assert believed(Beliefs()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_a_constant_success_rate_leads_to_the_known_limit(rate: float) -> None:
    beliefs = Beliefs()
    for _ in range(60):
        beliefs.observe(LEVEL, GROUP * rate, GROUP * (1 - rate))
    won, lost = (1 + GROUP * share / (1 - KEPT) for share in (rate, 1 - rate))
    assert believed(beliefs) == pytest.approx(won / (won + lost), abs=0.01)


def test_a_level_that_is_not_practised_any_more_becomes_unknown_again() -> None:
    beliefs = Beliefs()
    beliefs.observe(LEVEL, 0.0, GROUP)
    assert believed(beliefs) == pytest.approx(0.1, abs=0.02)
    for _ in range(2000):
        beliefs.tick()
    assert believed(beliefs) == pytest.approx(0.5, abs=0.02)


def test_a_group_teaches_most_often_where_half_of_it_is_solved() -> None:
    chances = [teaches(rate / 10, GROUP) for rate in range(11)]
    assert chances[0] == chances[10] == 0.0
    assert max(chances) == chances[5]
    assert chances == pytest.approx(chances[::-1])
