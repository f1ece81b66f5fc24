"""Standing: earned by useful groups alone, bounded, and lost faster than patience lasts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.reputation import BAR_AT, FULL, MEMORY, PROOF_HALF_LIFE_S, PROVEN, Proof
from tests.swarm.experience_parts import START

usefulness = st.floats(0, 1)
histories = st.lists(st.tuples(st.floats(0, 1e6), usefulness), max_size=40)


def standing(proof: Proof, now: float = START, strikes: float = 0.0) -> float:
    return proof.standing(strikes, BAR_AT, now)


def after(*values: float) -> Proof:
    proof = Proof()
    for value in values:
        proof = proof.after(value, START)
    return proof


@given(histories, usefulness, usefulness, st.floats(0, 2 * BAR_AT))
def test_standing_lies_between_none_and_all_and_grows_with_usefulness(history, less, more, strikes):
    proof, now = Proof(), START
    for pause, value in history:
        now += pause
        proof = proof.after(value, now)
    assert 0.0 <= standing(proof, now, strikes) <= standing(proof, now) <= 1.0
    less, more = sorted((less, more))
    assert standing(proof.after(less, now), now) <= standing(proof.after(more, now), now)
    assert standing(proof, now + PROOF_HALF_LIFE_S) <= PROVEN


def test_it_takes_four_useful_groups_to_be_proven_and_eight_useless_ones_not_to_be():
    assert standing(after(*[1.0] * 3)) < PROVEN <= standing(after(*[1.0] * 4))
    assert standing(after(*[1.0] * 100, *[0.0] * 8)) < PROVEN


def test_whoever_is_worth_less_than_a_quarter_is_never_proven():
    assert standing(after(*[0.24] * 500)) < PROVEN <= standing(after(*[0.3] * 500))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.0])
def test_a_usefulness_that_is_no_share_earns_nothing(value):
    assert after(value).earned == 0.0


def test_nothing_is_earned_beyond_the_full_proof_and_a_clock_that_goes_back_adds_nothing():
    proof = after(*[2.0] * 100)
    assert (proof.earned, standing(proof, START - 1e9)) == (FULL, 1.0)


def test_a_further_group_adds_to_what_time_has_left():
    late = after(*[1.0] * 4).after(1.0, START + PROOF_HALF_LIFE_S)
    assert late.earned == pytest.approx(after(*[1.0] * 4).earned / 2 * (1 - 1 / MEMORY) + 1.0)
    assert late.at == START + PROOF_HALF_LIFE_S


def test_half_of_the_strikes_that_ban_take_half_of_the_standing():
    proof = after(*[1.0] * 4)
    assert standing(proof, strikes=BAR_AT / 2) == pytest.approx(standing(proof) / 2)
    assert standing(proof, strikes=BAR_AT) == 0.0
