from __future__ import annotations

import itertools

import pytest
import torch
from transformers import Qwen3ForCausalLM

from node.config.learning import LearnerSection
from node.errors import NodeError
from node.learner.learner import Learner
from node.policy.policy import Policy
from tests.node.learner.test_learner import CONFIG, MIXED, behaving, weights
from tests.support import changed, random_policy

ON_CPU = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
LONGEST = 1 + max(len(g.prompt_ids) + len(c.ids) - 1 for g in MIXED for c in g.completions)


class Cramped(Qwen3ForCausalLM):
    """A decoder on a machine whose memory holds so many tokens, on the way forth or back."""

    room = 1 << 30
    error: RuntimeError = torch.OutOfMemoryError("CUDA out of memory")
    backwards = False

    def forward(self, input_ids, **settings):
        full = input_ids.numel() > self.room
        if full and not self.backwards:
            raise self.error
        output = super().forward(input_ids, **settings)
        if full and output.logits.requires_grad:
            output.logits.register_hook(self._fail)
        return output

    def _fail(self, gradient):
        raise self.error


def cramped_policy(room: int, **settings) -> Policy:
    plain = random_policy(**settings)
    model = Cramped(plain.model.config).to(plain.model.dtype)
    model.load_state_dict(plain.model.state_dict())
    model.room = room
    return Policy(model, plain.tokenizer, "cramped")


def updated(policy: Policy, config: LearnerSection, **settings):
    stats = Learner(policy, config, **settings).update(behaving(MIXED, 0.1))
    return weights(policy), stats


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError(ON_CPU),
    ],
    ids=["gpu", "driver", "cpu"],
)
@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "backward"])
def test_an_update_that_runs_out_of_memory_ends_like_one_that_was_cut_small(
    epochs, error, backwards, caplog
):
    config = changed(CONFIG, epochs=epochs)
    policy = cramped_policy(2 * LONGEST)
    policy.model.error, policy.model.backwards = error, backwards
    found, stats = updated(policy, config, correction="tis")
    small = changed(config, micro_batch_tokens=2 * LONGEST)
    expected, usual = updated(random_policy(), small, correction="tis")
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)
    assert stats.halved > 0 and usual.halved == 0
    assert policy.version == epochs
    for figure in ("tokens_trained", "loss", "entropy", "ratio_mean", "clip_fraction"):
        assert getattr(stats, figure) == pytest.approx(getattr(usual, figure), abs=1e-4), figure
    assert f"lowered from {config.micro_batch_tokens} to" in caplog.text


def test_what_was_lowered_stays_so_and_the_next_update_runs_through():
    policy = cramped_policy(2 * LONGEST)
    learner = Learner(policy, CONFIG)
    assert learner.update(MIXED).halved > 0
    assert learner.update(MIXED).halved == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_that_runs_out_after_a_step_leaves_the_proximal_policy_as_it_was(dtype):
    """The second pass is cut anew, and its ratios are still against the update's beginning."""
    config = changed(CONFIG, epochs=2, lr=1e-2)
    policy, usual = cramped_policy(1 << 30, dtype=dtype), random_policy(dtype=dtype)
    learner = Learner(policy, config)
    step = learner.optimizer.step

    def step_and_shrink() -> None:
        step()
        policy.model.room = 2 * LONGEST

    learner.optimizer.step = step_and_shrink
    stats, expected = learner.update(MIXED), Learner(usual, config).update(MIXED)
    assert stats.halved > 0
    assert stats.clip_fraction == pytest.approx(expected.clip_fraction, abs=0.06)
    assert stats.clip_fraction > 0
    assert policy.version == 2


def test_a_pass_that_is_cut_anew_takes_no_padding_for_a_ratio_beyond_all_numbers():
    """At a low temperature the log-probs of what stands in for padding are far apart."""
    config = changed(CONFIG, epochs=2, lr=1e-5)
    policy = cramped_policy(1 << 30)
    learner = Learner(policy, config, temperature=0.02)
    step = learner.optimizer.step

    def step_and_shrink() -> None:
        step()
        policy.model.room = 2 * LONGEST

    learner.optimizer.step = step_and_shrink
    stats = learner.update(MIXED)
    assert stats.halved > 0
    assert (stats.refused, policy.version) == (0, 2)


def test_a_completion_that_does_not_fit_alone_is_told_by_what_would_help():
    policy = cramped_policy(3)
    learner = Learner(policy, CONFIG)
    before = weights(policy)
    with pytest.raises(NodeError, match="single completion") as refused:
        learner.update(MIXED)
    for key in (
        "learner.micro_batch_tokens",
        "learner.max_completion_tokens",
        "engine.max_new_tokens",
        "learner.gradient_checkpointing",
    ):
        assert key in str(refused.value)
    assert torch.equal(weights(policy), before)
    assert all(p.grad is None for p in policy.model.parameters())


def test_any_other_error_is_passed_on():
    policy = cramped_policy(3)
    policy.model.error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        Learner(policy, CONFIG).update(MIXED)


def test_an_update_that_fails_half_way_leaves_nothing_to_the_next_one():
    config = changed(CONFIG, micro_batch_tokens=1)
    policy, untroubled = random_policy(), random_policy()
    learner, calls = Learner(policy, config), itertools.count()
    whole = learner.optimizer.backward

    def backward(*arguments):
        if next(calls) == 2:
            raise RuntimeError("an unspecified launch failure")
        whole(*arguments)

    learner.optimizer.backward = backward
    with pytest.raises(RuntimeError, match="launch failure"):
        learner.update(MIXED)
    assert all(p.grad is None for p in policy.model.parameters())
    learner.update(MIXED)
    Learner(untroubled, config).update(MIXED)
    assert torch.equal(weights(policy), weights(untroubled))


def test_memory_that_runs_out_in_the_optimizers_step_is_told_by_what_would_help():
    policy = random_policy()
    learner = Learner(policy, CONFIG)

    def step():
        raise torch.OutOfMemoryError("CUDA out of memory")

    learner.optimizer.adam.step = step
    with pytest.raises(
        NodeError, match=r"optimizer's step.*adamw8bit.*learner.offload.*sleep_mode"
    ):
        learner.update(MIXED)
    assert policy.version == 0
