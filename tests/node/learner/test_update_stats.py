"""What an update reports, from sums that were worked out by hand."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.learner.batches import Row, TrainingCompletion, micro_batches
from node.learner.losses import Cispo, Clip, Grpo, Gspo, Terms
from node.learner.update_stats import UpdateSums
from swarm.common.util import plain_json

VERSION = 3
CPU = torch.device("cpu")
CUR = torch.tensor([[-1.5, -1.0], [-0.5, -7.0], [-3.0, -3.0], [-0.1, -0.1]])
RATIOS = torch.tensor([[0.5, 2.0, 1.0], [1.4, 1.4, 9.0], [0.5, 0.5, 0.5], [1.5, 0.7, 1.0]])
WEIGHTS = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])


def row(count=2, *, own=True, behaviour=None, versions=None, trained=(), advantage=1.0, first=0):
    """One completion behind a prompt."""
    done = TrainingCompletion((5,) * count, trained or (True,) * count, behaviour, versions)
    return Row((1, 2), (done,), (advantage,), own, first=first)


def batch(*rows):
    (laid_out,) = micro_batches(rows, 10_000, 0, CPU)
    return laid_out


def summed(laid_out, loss=None, log_ratio=None, weights=None):
    """Sums of a batch; without more there is nothing to tell of trust regions."""
    tally, nothing = UpdateSums(), torch.zeros(laid_out.mask.shape)
    tally.add_behaviour(nothing, nothing, laid_out, VERSION)
    return bounded(tally, laid_out, loss, log_ratio, weights)


def bounded(tally, rows, loss=None, log_ratio=None, weights=None):
    log_ratio = torch.zeros(rows.mask.shape) if log_ratio is None else log_ratio
    weights = torch.ones(rows.mask.shape) if weights is None else weights
    prox = torch.full(log_ratio.shape, -3.0)
    terms = Terms(prox + log_ratio, prox, rows.advantages, rows.mask, weights, rows.shares)
    tally.add_bounded(loss or Grpo(Clip(0.2, 0.2)), terms)
    tally.add_unlikely(torch.zeros(len(rows.mask), dtype=torch.bool))
    return tally


MIXED = batch(
    row(behaviour=(-1.0, -2.0), versions=(3, 1)),
    row(behaviour=(-1.0, -1.0), versions=(0, 0), trained=(True, False)),
    row(),
    row(own=False, behaviour=(-9.0, -9.0)),
)


def mixed():
    tally = UpdateSums()
    entropy = torch.tensor([[1.0, 2.0], [3.0, 100.0], [4.0, 5.0], [6.0, 7.0]])
    tally.add_behaviour(CUR, entropy, MIXED, VERSION)
    return bounded(tally, MIXED)


def test_means_are_over_trained_tokens_ratios_and_ages_over_own_ones_of_known_behaviour():
    stats = mixed().stats()
    assert stats.tokens_trained == 7 and stats.entropy == pytest.approx(28 / 7)
    assert stats.ratio_max == pytest.approx(math.exp(1.0))
    assert stats.ratio_median == pytest.approx(math.exp(0.5))
    assert stats.staleness == (1, 0, 1, 1)


certain = st.sampled_from((0.0, -1e-30, -7.0, -90.0, -65504.0, -3e38, -math.inf))


@given(cur=st.lists(certain, min_size=2, max_size=2), mu=st.lists(certain, min_size=2, max_size=2))
def test_figures_are_finite_however_extreme_a_log_prob_is(cur, mu):
    mu = tuple(max(each, -65504.0) for each in mu)  # what a group can hold
    laid_out = batch(row(behaviour=mu, versions=(VERSION,) * 2))
    tally, log_ratio = UpdateSums(), torch.tensor([cur]) - torch.tensor([mu])
    tally.add_behaviour(torch.tensor([cur]), torch.zeros(1, 2), laid_out, VERSION)
    stats = bounded(tally, laid_out, log_ratio=log_ratio).stats()
    figures = [value for value in asdict(stats).values() if isinstance(value, float)]
    assert len(figures) >= 8 and all(map(math.isfinite, figures))
    assert json.loads(plain_json(asdict(stats))) == json.loads(json.dumps(asdict(stats)))


def test_the_engines_gap_is_of_own_tokens_of_the_version_that_is_updated():
    assert mixed().stats().engine_gap == pytest.approx(0.5)
    stats = summed(batch(row(own=False, behaviour=(-1.0, -1.0)))).stats()
    assert (stats.engine_gap, stats.ratio_max) == (None, None)
    assert (stats.ratio_low, stats.ratio_median, stats.ratio_high) == (None, None, None)
    assert stats.staleness == ()


def test_quantiles_are_those_of_one_half_and_one_in_a_hundred_at_either_end():
    count, tally = 101, UpdateSums()
    one = batch(row(count, behaviour=(0.0,) * count, versions=(VERSION,) * count))
    ratios = torch.arange(1.0, count + 1)
    tally.add_behaviour(ratios.log()[None], torch.zeros(1, count), one, VERSION)
    stats = bounded(tally, one).stats()
    told = (stats.ratio_low, stats.ratio_median, stats.ratio_high, stats.ratio_max)
    assert told == pytest.approx((2.0, 51.0, 100.0, 101.0), rel=1e-4)


def test_the_trust_region_has_two_sides_and_counts_trained_tokens_of_every_epoch():
    laid_out = batch(row(4), row(4, trained=(True, True, False, False)))
    ratios = torch.tensor([[0.75, 1.25, 1.0, 1.4], [0.69, 1.31, 9.0, 0.01]])
    weights = torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
    loss = Grpo(Clip(0.3, 0.35))
    tally = bounded(summed(laid_out, loss, ratios.log(), weights), laid_out, loss)
    tally.add_unlikely(torch.tensor([True, False]))
    tally.add_unlikely(torch.tensor([True, True]))
    stats = tally.stats()
    assert stats.clip_fraction == pytest.approx(2 / 12)
    assert stats.masked_fraction == pytest.approx(3 / 12)
    assert (stats.unlikely, stats.tokens_trained) == (3, 6)
    for ratio, clip, left in (
        (0.75, Clip(0.2, 0.3), True),
        (0.75, Clip(0.3, 0.2), False),
        (1.25, Clip(0.3, 0.2), True),
        (1.25, Clip(0.2, 0.3), False),
    ):
        tally = summed(batch(row(2)), Grpo(clip), torch.full((1, 2), ratio).log())
        assert tally.stats().clip_fraction == left, "each side is its own"


@pytest.mark.parametrize(
    ("loss", "clipped", "dropped"),
    [
        # Of the trained tokens 0.5, 2.0, 1.0 | 1.4, 1.4 | 0.5, 0.5, 0.5 | 1.5.
        (Grpo, 8 / 9, 4 / 9),
        (Cispo, 4 / 9, 4 / 9),
        # Of geometric means 1.0 | 1.4 | 0.5 | 1.5, the third of which weighs nothing.
        (Gspo, 3 / 4, 1 / 4),
    ],
)
def test_what_is_clipped_and_dropped_is_counted_in_what_the_loss_clips(loss, clipped, dropped):
    trained = [(True,) * 3, (True, True, False), (True,) * 3, (True, False, False)]
    laid_out = batch(*(row(3, trained=each) for each in trained))
    stats = summed(laid_out, loss(Clip(0.2, 0.28)), RATIOS.log(), WEIGHTS).stats()
    assert stats.clip_fraction == pytest.approx(clipped)
    assert stats.masked_fraction == pytest.approx(dropped)


def test_plausible_is_what_this_node_would_imitate_of_others():
    laid_out = batch(
        row(first=0),
        row(own=False, first=1, trained=(True, False)),
        row(own=False, first=2, advantage=-1.0),
        row(own=False, first=3),
    )
    tally = UpdateSums()
    assert tally.plausible() == {}
    tally.add_plausible(torch.tensor([[1.0, 1.0], [0.25, 9.0], [1.0, 1.0], [0.5, 1.0]]), laid_out)
    assert tally.plausible() == {0: (0.0, 0), 1: (0.25, 1), 2: (0.0, 0), 3: (1.5, 2)}


@pytest.mark.parametrize("moved", [False, True])
def test_what_another_has_summed_counts_as_if_it_had_been_summed_here(moved):
    together, parts = mixed(), (mixed(), mixed())
    for each in parts:
        each.add_unlikely(torch.tensor([True]))
        each.add_plausible(torch.ones(MIXED.mask.shape), MIXED)
    for each in parts:
        together.add(each.on("cpu") if moved else each)
    alone = UpdateSums()
    alone.add(parts[0])
    assert alone.stats() == parts[0].stats()
    assert alone.plausible() == parts[0].plausible() != {} and alone.stats().unlikely == 1
    stats = together.stats()
    assert (stats.tokens_trained, stats.unlikely, stats.staleness) == (21, 2, (3, 0, 3, 3))
