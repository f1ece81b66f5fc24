"""Means over seeds, noise, and rewards at equal cost."""

import pytest

from experiments.arms import MIXES, mix
from experiments.measures import heldout_within, mean_reward_within, summarize
from experiments.recording import Recording, RoundFigures
from node.evaluation.comparison import ScoreEstimate

BOTH = (0, 1)


def recording(arm: str, seed: int, rewards: list[float], tokens: float, cpu: float) -> Recording:
    rows = tuple(
        RoundFigures((reward, reward), reward, tokens, 0.5, 0.0, 1.0, None, 0.1, reward)
        for reward in rewards
    )
    return Recording(arm, seed, rows, (cpu,) * len(rows))


def test_single_seed_gives_no_noise_estimate():
    one = ScoreEstimate.of([3.0])
    assert (one.mean, one.error, one.margin, one.beyond_noise) == (3.0, None, None, None)


def test_noise_margin_uses_student_t():
    # Mean 2, standard deviation 1: the error is 1/sqrt(3), and the margin 4.303 times that.
    three = ScoreEstimate.of([1.0, 2.0, 3.0])
    assert three.error == pytest.approx(3**-0.5)
    assert three.margin == pytest.approx(4.303 * 3**-0.5)
    assert not three.beyond_noise
    assert ScoreEstimate.of([2.0, 2.1, 2.2]).beyond_noise


def test_partial_round_counts_in_proportion_to_the_budget():
    assert mean_reward_within([1.0, 0.0, 1.0], [10, 10, 10], 15) == pytest.approx(10 / 15)
    assert mean_reward_within([1.0, 0.0, 1.0], [10, 10, 10], 30) == pytest.approx(2 / 3)


def test_heldout_rewards_interpolate_linearly_over_cost():
    looks = [0.0, None, 0.4, None, 0.8]
    rows = (RoundFigures((0.0,), 0.0, 1.0, 0.5, 0.0, 1.0, None, 0.1, look) for look in looks)
    run = Recording("auto", 0, tuple(rows), (1.0,) * 5)
    # The evaluations are before the first round, after two rounds and after all five.
    costs = [10.0, 10.0, 10.0, 10.0, 20.0]
    assert heldout_within(run, costs, 20.0) == pytest.approx(0.2)
    assert heldout_within(run, costs, 10.0) == pytest.approx(0.1)
    assert heldout_within(run, costs, 60.0) == pytest.approx((20 * 0.2 + 40 * 0.6) / 60)


def test_arms_are_compared_by_seed_at_equal_rounds_tokens_and_seconds():
    runs = {
        ("8/0", 0): recording("8/0", 0, [0.1, 0.2], tokens=100, cpu=4.0),
        ("4/4", 0): recording("4/4", 0, [0.1, 0.5], tokens=50, cpu=2.0),
        ("4/4", 1): recording("4/4", 1, [0.9, 0.9], tokens=50, cpu=2.0),
    }
    reference, arm = summarize((mix("8/0"), mix("4/4")), runs, BOTH)
    assert reference.comparison is None
    assert arm.seeds == (0, 1)
    assert arm.comparison is not None
    assert arm.comparison.gain.values == pytest.approx((0.3,))
    assert arm.comparison.factor.mean == pytest.approx(2.0)
    # 100 tokens are one round of 8/0 (reward 0.1) and two rounds of 4/4 (mean reward 0.3).
    assert arm.comparison.at_equal_tokens.mean == pytest.approx(3.0)
    assert arm.comparison.at_equal_cpu.mean == pytest.approx(3.0)
    # Held-out rewards equal the rewards here: mean 0.15 for 8/0, and 0.3 for 4/4.
    assert arm.comparison.heldout.values == pytest.approx((0.15,))
    # After one of two rounds, 8/0 has risen half way: its mean is 0.125.
    assert arm.comparison.heldout_at_equal_tokens.values == pytest.approx((0.175,))
    assert arm.comparison.heldout_at_equal_cpu.values == pytest.approx((0.175,))


def test_reference_without_reward_gives_no_comparison():
    runs = {(arm, 0): recording(arm, 0, [reward], 1, 1) for arm, reward in (("8/0", 0), ("4/4", 1))}
    assert [summary.comparison for summary in summarize(MIXES, runs, BOTH)] == [None, None]


def test_summary_omits_arms_without_runs():
    assert summarize(MIXES, {}, BOTH) == ()
