"""Models that mix full attention with sliding, chunked, linear or state-space layers."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.kv_cache import GrowingLayer
from tests.node.engines.families import MIXED, family_policy
from tests.node.engines.test_transformers_backend import Writing
from tests.support import lone_logprobs

PROMPTS = [(5, 6, 7), (1, 2, 3, 4, 5, 6, 7, 8), (9,) * 30, (5, 6, 8)]
CLOSE = {"atol": 1e-3, "rtol": 0}


@pytest.mark.parametrize("family", MIXED)
@torch.no_grad()
def test_several_completions_of_several_prompts_have_the_log_probs_they_have_alone(family):
    policy = family_policy(family)
    samples = TransformersEngine(policy, seed=0).generate(PROMPTS, 3, Sampling(max_new_tokens=20))
    for prompt, group in zip(PROMPTS, samples, strict=True):
        assert len({sample.tokens.ids for sample in group}) == 3
        for told in (sample.tokens for sample in group):
            expected = lone_logprobs(policy, prompt, told.ids)
            assert_close(torch.tensor(told.logprobs), expected, **CLOSE)


@pytest.mark.parametrize("family", MIXED)
@torch.no_grad()
def test_rows_leave_and_join_and_weights_change_without_a_trace(family, tmp_path):
    policies = [family_policy(family, seed) for seed in (1, 2)]
    policies[1].version = 1
    writing, caps = Writing(tmp_path, policies[0]), [4, 25, 12, 30]
    for number, (prompt, cap) in enumerate(zip(PROMPTS, caps, strict=True)):
        writing.submit(number, prompt, cap)
        writing.steps(5)
    writing.update(policies[1])
    writing.steps()
    assert [len(writing.ids[number]) for number in range(4)] == caps
    assert {version for each in writing.versions.values() for version in each} == {0, 1}
    for number, prompt in enumerate(PROMPTS):
        versions = torch.tensor(writing.versions[number])
        for policy in policies:
            expected = lone_logprobs(policy, prompt, writing.ids[number])
            chosen = versions == policy.version
            assert_close(torch.tensor(writing.logprobs[number])[chosen], expected[chosen], **CLOSE)


def test_a_layer_whose_rows_were_replaced_goes_on_with_those():
    layer = GrowingLayer()
    keys = torch.arange(3.0)[:, None, None, None].expand(3, 1, 2, 4)
    layer.update(keys, -keys)
    layer.batch_select_indices(torch.tensor([2, 0]))
    new = torch.full((2, 1, 1, 4), 7.0)
    grown, values = layer.update(new, -new)
    assert grown[:, 0, :, 0].tolist() == [[2.0, 2.0, 7.0], [0.0, 0.0, 7.0]]
    assert torch.equal(values, -grown)
    layer.batch_repeat_interleave(2)
    grown, _ = layer.update(torch.zeros(4, 1, 1, 4), torch.zeros(4, 1, 1, 4))
    assert grown[:, 0, 0, 0].tolist() == [2.0, 2.0, 0.0, 0.0]
    layer.crop(-2)
    assert layer.update(new.repeat(2, 1, 1, 1), new.repeat(2, 1, 1, 1))[0].shape[-2] == 3
