"""What is planted in right answers surprises the policy that is to imitate them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.config.learning import LearnerSection
from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.off_policy import FALL, SURPRISE, plausibility, usefulness
from node.policy.policy import Policy
from tests.node.learner.test_learner import CONFIG, gradient_of, group
from tests.support import lone_logprobs, random_policy

SPREAD = 0.3
nats = st.floats(0, 60)


@given(surprise=nats, further=nats, entropy=st.floats(0, 12))
def test_a_token_counts_in_full_up_to_a_margin_beyond_the_entropy_and_then_as_it_is_probable(
    surprise, further, entropy
):
    values = plausibility(
        torch.tensor([-entropy - surprise, -entropy - surprise - further]), torch.tensor(entropy)
    )
    assert 0 <= values[1] <= values[0] <= 1
    expected = math.exp(min(0.0, FALL * (SURPRISE - surprise)))
    assert float(values[0]) == pytest.approx(expected, rel=1e-3, abs=1e-9)


def row(number: int, first: int, completions: int, *, own: bool = False) -> Row:
    done = (TrainingCompletion((1, 2), (True, True)),) * completions
    return Row((1,), done, (1.0,) * completions, own, group=number, first=first)


def test_a_group_of_which_three_quarters_are_plausible_is_of_no_use_and_nine_tenths_of_full():
    rows = [row(0, 0, 1, own=True), row(1, 1, 2), row(2, 3, 1), row(3, 4, 1), row(4, 5, 1)]
    sums = {1: (2.0, 2.0), 2: (1.3, 2.0), 3: (1.8, 2.0), 4: (1.5, 2.0)}
    assert usefulness(rows, sums) == pytest.approx({1: 0.5, 2: 1.0, 3: 0.0, 4: 0.0}, abs=1e-9)


def settled() -> Policy:
    """A policy that is fairly sure of what it writes."""
    return random_policy(spread=SPREAD)


def written(policy: Policy, seed: int, plant: tuple[int, ...] = ()) -> TrainingGroup:
    """An external group of what this policy would write, with ``plant`` before right answers."""
    prompt = (3, 1 + seed, 4)
    done, rewards = [], []
    for place in range(4):
        ids = (*plant * (place % 2), *likely(policy, prompt, place))
        done.append(TrainingCompletion(ids, (True,) * len(ids), (-65504.0,) * len(ids)))
        rewards.append(place % 2)
    return TrainingGroup(prompt, tuple(done), tuple(map(float, rewards)), own=False)


def likely(policy: Policy, prompt: tuple[int, ...], place: int) -> tuple[int, ...]:
    """Three tokens: the first is the policy's choice number ``place``, the others its first."""
    ids = prompt
    for choice in (place, 0, 0):
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1, :95]
        ids = (*ids, int(logits.topk(4).indices[choice]))
    return ids[len(prompt) :]


def improbable(policy: Policy) -> tuple[int, ...]:
    """Tokens that it would not write at the start of an answer."""
    logits = policy.model(input_ids=torch.tensor([(3, 1, 4)])).logits[0, -1]
    return tuple(logits[:95].topk(3, largest=False).indices.tolist())


def test_a_phrase_that_mallory_puts_before_right_answers_is_not_taken_up():
    """Half of the groups of forty updates are hers; without the defence it gains twelve nats."""
    policy = settled()
    plant = improbable(policy)
    learner = Learner(policy, LearnerSection(lr=1e-3), correction="tapered")

    def logprob() -> float:
        with torch.no_grad():
            return float(lone_logprobs(policy, (3, 1, 4), plant)[0])

    before = logprob()
    for seed in range(40):
        learner.update([written(policy, seed % 8, plant), group(seed, (0.0, 1.0))])
    assert logprob() - before < 2


def test_mallorys_planted_group_is_of_no_use_and_an_honest_one_of_full_use():
    policy = settled()
    groups = [written(policy, 1), written(policy, 0, improbable(policy))]
    stats = Learner(policy, CONFIG, correction="tapered").update(groups)
    assert stats.useful == pytest.approx((1.0, 0.0), abs=0.2)


@pytest.mark.parametrize("together", [True, False])
def test_a_group_of_no_use_leaves_the_gradient_to_the_others(together, monkeypatch):
    if not together:
        monkeypatch.setattr("node.learner.group_gradients.MOST_BYTES", 0)
    own, policy = group(1, (0.0, 1.0, 0.0)), settled()
    planted = written(policy, 0, 8 * improbable(policy))
    idle = replace(planted, rewards=(1.0,) * len(planted.rewards))
    found, expected = (
        gradient_of([own, each], spread=SPREAD, correction="tapered") for each in (planted, idle)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("together", [True, False])
def test_an_update_of_nothing_useful_makes_no_step(together, monkeypatch):
    if not together:
        monkeypatch.setattr("node.learner.group_gradients.MOST_BYTES", 0)
    policy = settled()
    learner = Learner(policy, CONFIG, correction="tapered")
    learner.update([group(1, (0.0, 1.0))])
    before = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    stats = learner.update([written(policy, 0, 8 * improbable(policy))])
    assert stats.skipped and stats.useful == (0.0,)
    after = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    assert torch.equal(before, after)


def test_a_correction_that_takes_external_rollouts_as_they_are_weighs_no_token():
    policy = settled()
    stats = Learner(policy, CONFIG).update([written(policy, 0, improbable(policy))])
    assert stats.masked_fraction == 0.0 and not stats.skipped
