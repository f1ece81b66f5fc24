"""The reference model that bounds peers' answers is the node's initial model."""

import copy

import pytest
import torch

from node.config.config import Config
from node.errors import ConfigError
from node.policy.lora import Adapter
from node.policy.policy import Policy
from node.run.update_groups import open_reference
from tests.node.learner.parts import drawn
from tests.node.run.test_resume import experienced, place  # noqa: F401 - a fixture
from tests.support import lone_logprobs, random_policy

PEERS = drawn(1, 2, 8)


def config(**keys):
    return Config.with_overrides({"policy.device": "cpu", **keys})


def read(reference):
    (group,) = reference.read([PEERS])
    return next(done.reference for done in group.completions if done.reference)


def perturb(policy):
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 0.05 * torch.randn_like(weight)


def test_a_new_node_keeps_a_copy_of_its_model():
    policy = random_policy()
    right = PEERS.completions[1].ids
    before = lone_logprobs(policy, PEERS.prompt_ids, right).tolist()
    reference = open_reference(config(), policy, None)
    perturb(policy)
    assert read(reference) == pytest.approx(before, abs=1e-4)


def test_lora_reference_is_the_base_model():
    policy = random_policy()
    before = read(open_reference(config(), policy, None))
    adapter = Adapter(policy.model, rank=4, alpha=8)
    adapted = Policy(policy.model, policy.tokenizer, policy.name, adapter)
    reference = open_reference(config(), adapted, None)
    moved_weights = [w for w in adapted.model.parameters() if w.requires_grad]
    with torch.no_grad():
        for weight in moved_weights:
            weight += 0.3
    assert read(reference) == pytest.approx(before, abs=1e-4)
    assert all(weight.requires_grad for weight in moved_weights), "the adapter stays trainable"


@pytest.mark.parametrize("keys", [{"mixture.peer_ratio": 0.0}, {"mixture.external": 0}])
def test_reference_is_skipped_without_bound_or_peers(keys):
    assert open_reference(config(**keys), random_policy(), None) is None


def test_resumed_run_references_its_initial_model(place, tmp_path):  # noqa: F811
    first = random_policy()
    first.save(tmp_path / "first")
    initial = config(**{"policy.model": str(tmp_path / "first")})
    assert place.state().reference(initial) is None, "a new run uses its policy"
    trainer = experienced()
    trainer.policy.name = initial.policy.model
    place.state().save(3, trainer)
    resumed = place.state()
    model = resumed.reference(initial)
    expected = copy.deepcopy(first.model).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert resumed.reference(config(**{"mixture.peer_ratio": 0.0})) is None
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"peer_ratio.*initial model.*mixture\.peer_ratio = 0"):
        resumed.reference(initial)
