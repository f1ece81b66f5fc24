import sys
from copy import deepcopy

import pytest
import torch

from node.errors import ConfigError
from node.learner import optimizer
from node.learner.learner import Learner
from tests.node.learner.parts import CONFIG, MIXED, weights
from tests.support import changed, random_policy

EIGHT_BIT = changed(CONFIG, optimizer="adamw8bit")

OFFLOADED = changed(CONFIG, offload=True)


def moments(learner):
    states = learner.state_dict()["optimizer"]["adam"]["state"].values()
    return [t for state in states for t in state.values() if torch.is_tensor(t) and t.numel() > 1]


def trained(config, updates, **settings):
    """Return a policy after some updates, and its learner."""
    policy = random_policy(**settings)
    learner = Learner(policy, config)
    for _ in range(updates):
        assert not learner.update(MIXED).skipped
    return policy, learner


def continued(policy, learner, config, state):
    """Return the weights after one more update, and those of a restored learner."""
    other = random_policy(seed=9, dtype=policy.model.dtype)
    other.model.load_state_dict(policy.model.state_dict())
    restored = Learner(other, config)
    restored.load_state_dict(state)
    for each in (learner, restored):
        each.update(MIXED)
    return weights(policy), weights(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_8bit_optimizer_takes_nearly_the_same_steps(dtype):
    pytest.importorskip("bitsandbytes")
    start, steps, sizes = weights(random_policy(dtype=dtype)), [], []
    for config in (CONFIG, EIGHT_BIT):
        policy, learner = trained(config, 4, dtype=dtype)
        steps.append(weights(policy) - start)
        sizes.append(sum(t.nbytes for t in moments(learner)))
    assert torch.cosine_similarity(*steps, dim=0) > 0.9 and sizes[1] < sizes[0] / 3


def test_8bit_optimizer_resumes_from_a_checkpoint(tmp_path):
    pytest.importorskip("bitsandbytes")
    policy, learner = trained(EIGHT_BIT, 1)
    torch.save(learner.state_dict(), tmp_path / "learner.pt")
    saved = torch.load(tmp_path / "learner.pt", weights_only=True)
    assert torch.equal(*continued(policy, learner, EIGHT_BIT, saved))


@pytest.mark.parametrize("config", [CONFIG, OFFLOADED], ids=["in place", "offloaded"])
def test_optimizer_holds_at_most_one_half_precision_gradient(config):
    policy, counts = random_policy(dtype=torch.bfloat16), []
    learner = Learner(policy, config)
    for each in policy.model.parameters():
        each.register_post_accumulate_grad_hook(
            lambda _: counts.append(sum(p.grad is not None for p in policy.model.parameters()))
        )
    learner.update(MIXED)
    assert set(counts) == {1} and len(counts) >= len(learner.optimizer.masters)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_added_in_slabs_equal_whole_gradients(monkeypatch, dtype):
    several, stepped = changed(CONFIG, micro_batch_tokens=24), []
    for slab in (1 << 30, 1 << 10):
        monkeypatch.setattr(optimizer, "SLAB_BYTES", slab)
        policy, learner = trained(several, 1, dtype=dtype)
        assert len(learner.batches(learner.rows(MIXED))) > 1
        stepped.append(weights(policy))
    assert torch.equal(*stepped)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_steps_are_identical_and_runs_can_switch_offload(dtype):
    policies = [trained(config, 3, dtype=dtype)[0] for config in (CONFIG, OFFLOADED)]
    assert all(p.grad is None for policy in policies for p in policy.model.parameters())
    assert torch.equal(*map(weights, policies))
    for before, after in ((CONFIG, OFFLOADED), (OFFLOADED, CONFIG)):
        policy, learner = trained(before, 1, dtype=dtype)
        assert torch.equal(*continued(policy, learner, after, learner.state_dict()))


class OnceOnly(torch.Tensor):
    def __deepcopy__(self, memo):
        raise AssertionError("it is in main memory twice")


def test_moving_moments_to_a_gpu_does_not_copy_in_main_memory():
    _, learner = trained(CONFIG, 1)
    saved = learner.optimizer.state_dict()
    for state in saved["adam"]["state"].values():
        state.update({name: each.as_subclass(OnceOnly) for name, each in state.items()})
    elsewhere = [torch.nn.Parameter(p.detach().to("meta")) for p in learner.optimizer.masters]
    moved = optimizer.Optimizer(elsewhere, CONFIG)
    moved.load_state_dict(saved)
    assert {each["exp_avg"].device.type for each in moved.adam.state.values()} == {"meta"}


def test_resumed_run_uses_config_settings_not_checkpoint_settings():
    _, learner = trained(CONFIG, 1)
    resumed = Learner(random_policy(), changed(CONFIG, betas=(0.5, 0.6), weight_decay=0.1))
    resumed.load_state_dict(learner.state_dict())
    (group,) = resumed.state_dict()["optimizer"]["adam"]["param_groups"]
    assert (group["betas"], group["weight_decay"]) == ((0.5, 0.6), 0.1)
    assert not resumed.update(MIXED).skipped


def test_learner_rejects_checkpoint_of_another_optimizer():
    state = Learner(random_policy(), CONFIG).state_dict()
    state["optimizer"]["kind"] = "adamw8bit"
    with pytest.raises(ConfigError, match=r"learner.optimizer: 'adamw'.*'adamw8bit'"):
        Learner(random_policy(), CONFIG).load_state_dict(state)


def test_missing_library_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match=r"learner.optimizer: 'adamw8bit'.*'\.\[adamw8bit"):
        Learner(random_policy(), EIGHT_BIT)


@pytest.mark.parametrize("size", [(40, 64), (700,)])
def test_8bit_optimizer_steps_identically_in_slabs_and_whole(monkeypatch, size):
    pytest.importorskip("bitsandbytes")
    results = []
    for slab in (1 << 30, 512):
        monkeypatch.setattr(optimizer, "SLAB", slab)
        torch.manual_seed(0)
        weights = torch.randn(8 * size[0], *size[1:])
        adam = optimizer.eight_bit_adam([weights], EIGHT_BIT)
        for _ in range(3):
            weights.grad = torch.randn_like(weights)
            adam.step()
        state = deepcopy(adam.state_dict()["state"][0])
        results.append((weights, state.pop("step"), state))
    (whole, steps, moments), (slabs, slab_steps, slab_moments) = results
    assert steps == slab_steps == 3 and torch.equal(whole, slabs)
    torch.testing.assert_close(slab_moments, moments, rtol=0, atol=0)
