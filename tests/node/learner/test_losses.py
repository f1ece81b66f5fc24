import itertools
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from node.config.registry import ADVANTAGES, LOSSES
from node.learner import off_policy
from node.learner.losses import Cispo, Clip, Counts, Grpo, Gspo, Terms
from node.learner.off_policy import Span, decoupled_weights, tapered_weights, tis_weights

CLIP = Clip(0.2, 0.28)
grpo, gspo, cispo = Grpo(CLIP), Gspo(CLIP), Cispo(CLIP)
KNOWN = torch.ones(6, 1, dtype=torch.bool)
TREATMENTS = ("mask_tokens", "mask_sequences", "clamp")


def terms(seed=0, rows=6, tokens=9, drift=0.5):
    """Random log-probs; ``drift`` scales how far the current policy moved."""
    random = torch.Generator().manual_seed(seed)
    prox = -3 * torch.rand((rows, tokens), generator=random)
    cur = prox + drift * torch.randn((rows, tokens), generator=random)
    lengths = torch.randint(1, tokens + 1, (rows, 1), generator=random)
    return Terms(
        cur=cur.requires_grad_(),
        prox=prox,
        advantages=torch.randn(rows, generator=random),
        mask=torch.arange(tokens) < lengths,
        weights=0.5 + torch.rand((rows, tokens), generator=random),
        shares=torch.rand(rows, generator=random),
    )


extreme = st.sampled_from((0.0, -1e-30, -1.0, -30.0, -90.0, -200.0, -1e4, -65504.0, -3e38))
many = st.lists(extreme, min_size=8, max_size=8)
of_rows = partial(torch.Tensor.reshape, shape=(2, 4))


@pytest.mark.parametrize("name", LOSSES.builtin)
@given(cur=many, prox=many, better=st.booleans())
def test_loss_and_gradient_are_finite_for_extreme_logprobs(name, cur, prox, better):
    t = replace(
        terms(rows=2, tokens=4),
        cur=of_rows(torch.tensor(cur)).clamp(min=-1e30).requires_grad_(),
        prox=of_rows(torch.tensor(prox)),
        advantages=torch.tensor([1.0, -1.0]) if better else torch.tensor([-1.0, 0.0]),
    )
    loss = LOSSES.load(name)(CLIP)
    assert loss(t).isfinite() and gradient(loss, t).isfinite().all()


@given(prox=many, mu=many, treat=st.sampled_from(("mask_tokens", "mask_sequences", "clamp")))
def test_weights_are_bounded_for_extreme_logprobs(prox, mu, treat):
    prox, mu = of_rows(torch.tensor(prox)), of_rows(torch.tensor(mu))
    mask, known = torch.ones(2, 4, dtype=torch.bool), torch.tensor([[True], [False]])
    for weights in (
        decoupled_weights(prox, mu, mask, treat, 5.0),
        tis_weights(prox, mu, mask, 2.0),
        tapered_weights(prox, torch.ones(2, 4), mu, known, mask, torch.tensor([1.0, -1.0])),
    ):
        assert (weights >= 0).all() and (weights <= 5).all()


def gradient(loss, t):
    return torch.autograd.grad(loss(t), t.cur)[0]


def rows_of(t, rows):
    return Terms(*(getattr(t, f.name)[rows] for f in fields(t)))


@pytest.mark.parametrize("name", LOSSES.builtin)
def test_micro_batch_losses_sum_to_the_batch_loss(name):
    t, loss = terms(), LOSSES.load(name)(CLIP)
    assert_close(loss(rows_of(t, slice(0, 2))) + loss(rows_of(t, slice(2, None))), loss(t))


@pytest.mark.parametrize("name", LOSSES.builtin)
def test_masked_tokens_and_zero_advantage_rows_have_zero_gradient(name):
    t, loss = terms(), LOSSES.load(name)(CLIP)
    for value in (40.0, 400.0):  # exp(400) overflows float32
        spoiled = replace(t, cur=torch.where(t.mask, t.cur, value))
        assert_close(loss(spoiled), loss(t))
        assert_close(gradient(loss, spoiled), gradient(loss, t))
    assert not gradient(loss, t)[~t.mask].any()
    t = replace(t, advantages=t.advantages * torch.tensor([1, 0, 1, 0, 0, 1]))
    by_row = gradient(loss, t).abs().sum(-1)
    assert by_row[[1, 3, 4]].sum() == 0 and by_row[[0, 2, 5]].sum() > 0


@pytest.mark.parametrize("loss", [grpo, cispo])
def test_gradient_at_proximal_policy_is_weight_times_advantage(loss):
    t = terms(drift=0.0)
    expected = -t.weights * (t.shares * t.advantages)[:, None] * t.mask
    assert_close(gradient(loss, t), expected)


def test_masking_tokens_does_not_rescale_other_gradients():
    t = terms()
    fewer, whole = t.mask & (torch.arange(t.mask.shape[1]) % 2 == 0), gradient(grpo, t)
    assert_close(gradient(grpo, replace(t, mask=fewer)), torch.where(fewer, whole, 0.0))


def test_grpo_upper_clip_is_wider_than_lower():
    cur = torch.tensor([[0.79, 0.81, 1.27, 1.29]]).log().requires_grad_()
    ones = torch.ones(1, 4)
    for advantage, moving in ((1.0, [True, True, True, False]), (-1.0, [False, True, True, True])):
        t = Terms(cur, 0 * ones, torch.tensor([advantage]), ones.bool(), ones, torch.ones(1))
        assert (gradient(grpo, t)[0] != 0).tolist() == moving


def test_share_is_token_or_row_weight_in_the_mean_over_groups():
    counts = Counts(tokens=30, rows=4, cap=16)
    shares = {name: LOSSES.load(name)(CLIP).share(counts, groups=5) for name in LOSSES.builtin}
    expected = {"grpo": 1 / 150, "cispo": 1 / 150, "gspo": 1 / 20, "dr_grpo": 1 / 320}
    assert shares == pytest.approx(expected)


def test_gspo_spreads_one_sequence_ratio_over_its_tokens():
    t = replace(terms(drift=0.02), weights=torch.ones(6, 9))
    length = t.mask.sum(-1)
    ratio = (((t.cur - t.prox) * t.mask).sum(-1) / length).exp()
    expected = (-t.shares * t.advantages * ratio / length)[:, None] * t.mask
    assert_close(gradient(gspo, t), expected.detach())


def test_cispo_keeps_the_gradient_of_tokens_that_grpo_clips():
    t = terms(drift=2.0)
    assert ((gradient(grpo, t) == 0) & t.mask).any() and gradient(cispo, t)[t.mask].all()


def test_tis_weights_are_importance_ratios_up_to_cap():
    t = terms(drift=3.0)
    weights = tis_weights(t.prox, t.cur, t.mask, cap=2.0)
    assert not weights.requires_grad and (weights[~t.mask] == 1).all()
    importance = (t.prox - t.cur).exp().detach()
    assert importance.min() < 1 and importance.max() > 2
    assert_close(weights[t.mask], importance.clamp(max=2.0)[t.mask])


def test_tapered_weights_bound_wrong_answers_by_their_likelihood():
    """Without a claim, the policy's negative entropy stands for the log-probs."""
    t = terms(drift=0.0)
    wrong = t.mask & (t.advantages < 0)[:, None]
    mu = t.prox + torch.linspace(-1.0, 1.0, len(t.prox))[:, None]
    weights = tapered_weights(t.prox, 9.0 - t.prox, mu, KNOWN, t.mask, t.advantages)
    assert not weights.requires_grad and weights.min() < 1
    assert wrong.any() and (weights[~wrong] == 1).all()
    entropies = torch.rand(t.prox.shape, generator=torch.Generator().manual_seed(1))
    unclaimed = tapered_weights(t.prox, entropies, t.prox - 9, ~KNOWN, t.mask, t.advantages)
    for actual, drift in ((weights, t.prox - mu), (unclaimed, t.prox + entropies)):
        total = torch.where(t.mask, drift, 0.0).sum(-1).detach()
        expected = total.exp().clamp(max=1.0)[:, None].expand_as(actual)
        assert_close(actual[wrong], expected[wrong])


def test_tapered_weights_of_right_answers_are_their_plausibility():
    t = terms(drift=0.0)
    surprise = torch.linspace(-3.0, 12.0, t.prox.numel()).reshape(t.prox.shape)
    entropies = -t.prox.detach() - surprise
    weights = tapered_weights(t.prox, entropies, t.prox - 9, KNOWN, t.mask, t.advantages)
    right = t.mask & (t.advantages > 0)[:, None]
    assert right.any()
    expected = (off_policy.FALL * (off_policy.SURPRISE - surprise)).clamp(max=0.0).exp()
    assert_close(weights[right], expected[right])


@given(
    seed=st.integers(0, 999),
    claims=st.lists(st.floats(-65504, 0, width=32), min_size=54, max_size=54),
    known=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_author_claims_never_raise_tapered_weights(seed, claims, known):
    t = terms(seed, drift=0.0)
    mu, entropies = torch.tensor(claims).reshape(6, 9), -t.prox.detach() * 0.9
    stated = torch.tensor(known)[:, None]
    claimed = tapered_weights(t.prox, entropies, mu, stated, t.mask, t.advantages)
    unclaimed = tapered_weights(t.prox, entropies, mu, ~KNOWN, t.mask, t.advantages)
    assert (claimed <= unclaimed).all() and (claimed >= 0).all()


@pytest.mark.parametrize("treat", TREATMENTS)
@given(seed=st.integers(0, 999), drift=st.floats(0, 4), cap=st.floats(0.5, 5))
def test_decoupled_weights_stay_within_cap_and_are_one_if_masked(treat, seed, drift, cap):
    t = terms(seed, drift=drift)
    weights = decoupled_weights(t.prox, t.cur, t.mask, treat, cap)
    assert not weights.requires_grad and weights.min() >= 0 and weights[t.mask].max() <= cap
    assert (weights[~t.mask] == 1).all()


@pytest.mark.parametrize("treat", TREATMENTS)
@given(seed=st.integers(0, 999))
def test_decoupled_gradient_equals_ppo_if_proximal_policy_sampled(treat, seed):
    t = terms(seed)
    weights = decoupled_weights(t.prox, t.prox, t.mask, treat, 5.0)
    plain = gradient(grpo, replace(t, weights=torch.ones_like(t.prox)))
    assert_close(gradient(grpo, replace(t, weights=weights)), plain, rtol=0, atol=1e-6)


@given(seed=st.integers(0, 999))
def test_decoupled_gradient_at_ratio_one_is_weight_times_advantage(seed):
    t = terms(seed, drift=0.0)
    mu = t.prox + 0.3 * torch.randn(t.prox.shape, generator=torch.Generator().manual_seed(seed))
    weights = decoupled_weights(t.prox, mu, t.mask, "mask_tokens", 100.0)
    expected = -(t.prox - mu).exp() * (t.shares * t.advantages)[:, None] * t.mask
    assert_close(gradient(grpo, replace(t, weights=weights)), expected)


def test_dropping_half_of_the_tokens_does_not_rescale_other_gradients():
    prox, ones = torch.full((3, 8), -1.0), torch.ones(3, 8)
    cur, shares = prox.clone().requires_grad_(), torch.full((3,), 1 / 24)
    whole = Terms(cur, prox, torch.ones(3), ones.bool(), ones, shares)
    far = torch.arange(8) % 2 == 0
    weights = decoupled_weights(prox, prox - 3.0 * far, whole.mask, "mask_tokens", 5.0)
    reduced = replace(whole, weights=weights)
    assert_close(grpo(reduced), grpo(whole) / 2)
    assert_close(gradient(grpo, reduced), torch.where(far, 0.0, gradient(grpo, whole)))


def test_sequence_masking_uses_the_geometric_mean_ratio():
    mu = torch.tensor([[-4.0, 0.0, 0.0, 0.0], [-2.0, -2.0, -2.0, 30.0]])
    mask = torch.tensor([[True] * 4, [True] * 3 + [False]])
    weights = decoupled_weights(torch.zeros(2, 4), mu, mask, "mask_sequences", 5.0)
    assert_close(weights[0], torch.full((4,), 1.0).exp())
    assert weights[1].tolist() == [0.0, 0.0, 0.0, 1.0]


@given(
    seed=st.integers(0, 99),
    version=st.integers(0, 50),
    ages=st.lists(st.integers(0, 50), min_size=9, max_size=9),
    steps=st.integers(1, 4),
)
def test_interpolated_policy_is_between_behavior_and_current(seed, version, ages, steps):
    t = terms(seed)
    versions = (version - torch.tensor(ages)).expand(t.prox.shape)
    prox = off_policy.interpolated_prox(t.cur, t.prox, versions, Span(version, steps))
    assert not prox.requires_grad
    alphas = torch.tensor([age / (age + steps) for age in ages])
    assert_close(prox, t.prox + alphas * (t.cur.detach() - t.prox))
    local = torch.full(t.prox.shape, version)
    same = off_policy.interpolated_prox(t.cur, t.prox, local, Span(version, steps))
    assert torch.equal(same, t.prox)


def test_advantages_are_centered_scaled_and_zero_for_equal_rewards():
    standardized, centered = (ADVANTAGES.open(name, {}) for name in ("grpo", "dr_grpo"))
    rewards = torch.tensor([0.0, 0.0, 0.0, 1.0])
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert_close(torch.tensor(standardized(rewards.tolist())), expected)
    assert centered((0.0, 1.0)) == (-0.5, 0.5)
    for name, reward in itertools.product(ADVANTAGES.builtin, (0.0, 0.1, 1 / 3, 1.0)):
        assert ADVANTAGES.open(name, {})((reward,) * 7) == (0.0,) * 7
