"""Statistics of an update, from hand-computed sums."""

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


def row(count=2, *, local=True, behaviour=None, versions=None, trained=(), advantage=1.0, first=0):
    """Build a row of one completion."""
    done = TrainingCompletion((5,) * count, trained or (True,) * count, behaviour, versions)
    return Row((1, 2), (done,), (advantage,), local, first=first)


def batch(*rows):
    (laid_out,) = micro_batches(rows, 10_000, 0, CPU)
    return laid_out


def summed(laid_out, loss=None, log_ratio=None, weights=None):
    """Sum a batch; by default, ratios and weights are one."""
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
    row(local=False, behaviour=(-9.0, -9.0)),
)


def mixed():
    tally = UpdateSums()
    entropy = torch.tensor([[1.0, 2.0], [3.0, 100.0], [4.0, 5.0], [6.0, 7.0]])
    tally.add_behaviour(CUR, entropy, MIXED, VERSION)
    return bounded(tally, MIXED)


def test_entropy_uses_trained_tokens_and_ratios_use_known_local_logprobs():
    stats = mixed().stats()
    assert stats.tokens_trained == 7 and stats.entropy == pytest.approx(28 / 7)
    assert stats.ratio_max == pytest.approx(math.exp(1.0))
    assert stats.ratio_median == pytest.approx(math.exp(0.5))
    assert stats.staleness == (1, 0, 1, 1)


certain = st.sampled_from((0.0, -1e-30, -7.0, -90.0, -65504.0, -3e38, -math.inf))


@given(cur=st.lists(certain, min_size=2, max_size=2), mu=st.lists(certain, min_size=2, max_size=2))
def test_stats_are_finite_for_extreme_logprobs(cur, mu):
    mu = tuple(max(each, -65504.0) for each in mu)  # the minimum that a group can hold
    laid_out = batch(row(behaviour=mu, versions=(VERSION,) * 2))
    tally, log_ratio = UpdateSums(), torch.tensor([cur]) - torch.tensor([mu])
    tally.add_behaviour(torch.tensor([cur]), torch.zeros(1, 2), laid_out, VERSION)
    stats = bounded(tally, laid_out, log_ratio=log_ratio).stats()
    figures = [value for value in asdict(stats).values() if isinstance(value, float)]
    assert len(figures) >= 8 and all(map(math.isfinite, figures))
    assert json.loads(plain_json(asdict(stats))) == json.loads(json.dumps(asdict(stats)))


def test_logprob_mismatch_uses_local_tokens_of_the_current_version():
    assert mixed().stats().logprob_mismatch == pytest.approx(0.5)
    stats = summed(batch(row(local=False, behaviour=(-1.0, -1.0)))).stats()
    assert (stats.logprob_mismatch, stats.ratio_max) == (None, None)
    assert (stats.ratio_low, stats.ratio_median, stats.ratio_high) == (None, None, None)
    assert stats.staleness == ()


def test_stats_report_ratio_percentiles_1_50_and_99_and_maximum():
    count, tally = 101, UpdateSums()
    one = batch(row(count, behaviour=(0.0,) * count, versions=(VERSION,) * count))
    ratios = torch.arange(1.0, count + 1)
    tally.add_behaviour(ratios.log()[None], torch.zeros(1, count), one, VERSION)
    stats = bounded(tally, one).stats()
    actual = (stats.ratio_low, stats.ratio_median, stats.ratio_high, stats.ratio_max)
    assert actual == pytest.approx((2.0, 51.0, 100.0, 101.0), rel=1e-4)


def test_clip_fraction_uses_both_bounds_and_tokens_of_every_epoch():
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
    for ratio, clip, outside in (
        (0.75, Clip(0.2, 0.3), True),
        (0.75, Clip(0.3, 0.2), False),
        (1.25, Clip(0.3, 0.2), True),
        (1.25, Clip(0.2, 0.3), False),
    ):
        tally = summed(batch(row(2)), Grpo(clip), torch.full((1, 2), ratio).log())
        assert tally.stats().clip_fraction == outside, "each bound applies to its own side"


@pytest.mark.parametrize(
    ("loss", "clipped", "dropped"),
    [
        # Trained tokens: 0.5, 2.0, 1.0 | 1.4, 1.4 | 0.5, 0.5, 0.5 | 1.5.
        (Grpo, 8 / 9, 4 / 9),
        (Cispo, 4 / 9, 4 / 9),
        # Geometric means: 1.0 | 1.4 | 0.5 | 1.5; the third has weight zero.
        (Gspo, 3 / 4, 1 / 4),
    ],
)
def test_clip_and_mask_fractions_count_tokens_or_sequences_by_loss(loss, clipped, dropped):
    trained = [(True,) * 3, (True, True, False), (True,) * 3, (True, False, False)]
    laid_out = batch(*(row(3, trained=each) for each in trained))
    stats = summed(laid_out, loss(Clip(0.2, 0.28)), RATIOS.log(), WEIGHTS).stats()
    assert stats.clip_fraction == pytest.approx(clipped)
    assert stats.masked_fraction == pytest.approx(dropped)


def test_plausible_sums_cover_better_answers_of_peers():
    laid_out = batch(
        row(first=0),
        row(local=False, first=1, trained=(True, False)),
        row(local=False, first=2, advantage=-1.0),
        row(local=False, first=3),
    )
    tally = UpdateSums()
    assert tally.plausible() == {}
    tally.add_plausible(torch.tensor([[1.0, 1.0], [0.25, 9.0], [1.0, 1.0], [0.5, 1.0]]), laid_out)
    assert tally.plausible() == {0: (0.0, 0), 1: (0.25, 1), 2: (0.0, 0), 3: (1.5, 2)}


@pytest.mark.parametrize("moved", [False, True])
def test_update_sums_merge_as_if_summed_in_one_place(moved):
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
