import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from node.config.learning import LearnerSection
from node.learner import off_policy
from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.off_policy import FALL, MIN_SCORED, SURPRISE, Answer, budget, overlong, unlikely
from tests.node.learner import parts
from tests.node.learner.parts import CONFIG, gradient_of, group, weights
from tests.support import changed, lone_logprobs, random_policy

nats = st.floats(0, 60)
settled = partial(random_policy, spread=0.3)
"""A policy with low entropy."""
PLAIN = changed(CONFIG, loss="dr_grpo")
"""The denominator of this loss does not depend on what is trained."""
FRESH = group(1, (0.0, 0.0, 1.0))


@given(surprise=nats, further=nats, entropy=st.floats(0, 12))
def test_token_plausibility_falls_beyond_a_surprise_margin(surprise, further, entropy):
    values = off_policy.plausibility(
        torch.tensor([-entropy - surprise, -entropy - surprise - further]), torch.tensor(entropy)
    )
    assert 0 <= values[1] <= values[0] <= 1
    expected = math.exp(min(0.0, FALL * (SURPRISE - surprise)))
    assert float(values[0]) == pytest.approx(expected, rel=1e-3, abs=1e-9)


def row(number, first, completions, *, local=False):
    done = (TrainingCompletion((1, 2), (True, True)),) * completions
    return Row((1,), done, (1.0,) * completions, local, group=number, first=first)


def test_usefulness_rises_from_75_to_90_percent_plausible_tokens():
    rows = [row(0, 0, 1, local=True), row(1, 1, 2), row(2, 3, 1), row(3, 4, 1), row(4, 5, 1)]
    sums = {1: (2.0, 2.0), 2: (1.3, 2.0), 3: (1.8, 2.0), 4: (1.5, 2.0)}
    expected = {1: 0.5, 2: 1.0, 3: 0.0, 4: 0.0}
    assert off_policy.usefulness(rows, sums) == pytest.approx(expected, abs=1e-9)


def peer_group(policy, seed, plant=()):
    """Build a peer group of likely answers, with ``plant`` before the right ones."""
    prompt = (3, 1 + seed, 4)
    done, rewards = [], []
    for place in range(4):
        ids = (*plant * (place % 2), *likely(policy, prompt, place))
        done.append(TrainingCompletion(ids, (True,) * len(ids), (-65504.0,) * len(ids)))
        rewards.append(place % 2)
    return TrainingGroup(prompt, tuple(done), tuple(map(float, rewards)), local=False)


def likely(policy, prompt, place):
    """Return the policy's choice number ``place`` and two first choices after it."""
    ids = prompt
    for choice in (place, 0, 0):
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1, :95]
        ids = (*ids, int(logits.topk(4).indices[choice]))
    return ids[len(prompt) :]


def improbable(policy):
    """Return tokens that the policy would not sample at the start of an answer."""
    logits = policy.model(input_ids=torch.tensor([(3, 1, 4)])).logits[0, -1]
    return tuple(logits[:95].topk(3, largest=False).indices.tolist())


def test_learner_does_not_learn_a_phrase_planted_by_mallory():
    """Mallory sends half of the groups; the gain is 12 nats without the defense."""
    policy = settled()
    plant = improbable(policy)
    learner = Learner(policy, LearnerSection(lr=1e-3), correction="tapered")

    def logprob():
        with torch.no_grad():
            return float(lone_logprobs(policy, (3, 1, 4), plant)[0])

    before = logprob()
    for seed in range(40):
        learner.update([peer_group(policy, seed % 8, plant), group(seed, (0.0, 1.0))])
    assert logprob() - before < 2


def test_planted_group_has_zero_use_and_honest_group_full_use():
    policy = settled()
    groups = [peer_group(policy, 1), peer_group(policy, 0, improbable(policy))]
    stats = Learner(policy, CONFIG, correction="tapered").update(groups)
    assert stats.useful == pytest.approx((1.0, 0.0), abs=0.2)
    stats = Learner(settled(), CONFIG).update(groups[1:])
    assert stats.masked_fraction == 0.0 and not stats.skipped, "the default masks no token"


@pytest.mark.parametrize("together", [True, False])
def test_useless_group_does_not_affect_gradient_or_step_alone(together, monkeypatch):
    if not together:
        monkeypatch.setattr("node.learner.group_gradients.MOST_BYTES", 0)
    local, policy = group(1, (0.0, 1.0, 0.0)), settled()
    planted = peer_group(policy, 0, 8 * improbable(policy))
    idle = replace(planted, rewards=(1.0,) * len(planted.rewards))
    assert_close(*(gradient_of([local, each], correction="tapered") for each in (planted, idle)))
    learner = Learner(policy, CONFIG, correction="tapered")
    learner.update([group(1, (0.0, 1.0))])
    before = weights(policy)
    stats = learner.update([peer_group(policy, 0, 8 * improbable(policy))])
    assert stats.skipped and stats.useful == (0.0,) and torch.equal(weights(policy), before)


def test_budget_follows_local_lengths_and_is_none_for_few_samples():
    assert budget([10] * 31) is None and budget([10] * 95 + [500] * 5) == 28
    answer = Answer("", (0,) * 29, 28, elsewhere=False)
    assert overlong(answer) and not overlong(replace(answer, ids=(0,) * 28))
    assert not overlong(replace(answer, budget=None))


def test_unlikely_uses_median_and_low_quantile_not_single_surprises():
    likely, surprise, few = -0.5, -14.0, MIN_SCORED - 1
    rows = [[likely] * 12, [likely] * 11 + [surprise], [likely] * 8 + [surprise] * 4]
    rows += [[-5.0] * 12, [-5.0] * few + [0.0] * (12 - few)]
    mask = torch.ones(5, 12, dtype=torch.bool)
    mask[4, few:] = False
    assert unlikely(torch.tensor(rows), mask).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("epochs", [1, 2])
def test_learner_skips_and_counts_unlikely_answers(epochs):
    """Random text of Mallory is trained only without the floor."""
    each = parts.drawn(0, 2, 20)
    wrong, right = each.completions
    alone = replace(each, completions=(replace(wrong, trained=(False,) * 20), right))
    for floor in (False, True):
        policy = random_policy()
        before = weights(policy)
        learner = Learner(policy, LearnerSection(lr=1e-3, epochs=epochs), floor=floor)
        assert learner.update([alone]).unlikely == floor
        assert torch.equal(weights(policy), before) == floor
