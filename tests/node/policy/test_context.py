from __future__ import annotations

import logging

import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Phi3Config

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import Policy, context_length
from tests.support import SHAPE, character_tokenizer, lone_logprobs, random_policy

TOLD = {**SHAPE, "initializer_range": 0.3, "eos_token_id": 97, "pad_token_id": 96}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 32,
}
ORIGINAL = LONGROPE["original_max_position_embeddings"]


def test_a_model_with_longrope_is_used_up_to_its_original_length_and_that_is_told(caplog):
    torch.manual_seed(0)
    config = Phi3Config(**TOLD, rope_parameters=LONGROPE, original_max_position_embeddings=ORIGINAL)
    with caplog.at_level(logging.WARNING):
        model = AutoModelForCausalLM.from_config(config)
        tokenizer = character_tokenizer()
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        policy = Policy(model, tokenizer, "phi-long")
    assert policy.context_length == ORIGINAL
    assert "phi-long: the context of 256 tokens is cut to 32" in caplog.text
    policy.stop_ids = ()
    prompt = [5] * 10
    (samples,) = TransformersEngine(policy, seed=0).generate([prompt], 4, Sampling())
    for sample in samples:
        assert len(sample.tokens.ids) == 22
        with torch.no_grad():
            expected = lone_logprobs(policy, prompt, sample.tokens.ids)
        torch.testing.assert_close(
            torch.tensor(sample.tokens.logprobs), expected, atol=1e-4, rtol=0
        )


def test_longrope_in_one_kind_of_layer_is_found_and_other_models_keep_their_length(caplog):
    each = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    rotations = {**each, "full_attention": {**LONGROPE, "rope_theta": 1e6}}
    mixed = Gemma3TextConfig(**TOLD, layer_types=["sliding_attention", "full_attention"])
    mixed.rope_parameters = rotations
    assert context_length(mixed, "mixed") == ORIGINAL
    caplog.clear()
    assert context_length(random_policy().model.config, "plain") == 512
    assert not caplog.records
