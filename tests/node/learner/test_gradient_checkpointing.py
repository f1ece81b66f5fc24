from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.errors import ConfigError
from node.learner.learner import GradientCheckpointing, Learner
from node.policy.policy import Policy
from tests.node.learner.test_learner import CONFIG, MIXED, gradient_of, weights
from tests.support import changed, random_policy

RECOMPUTED = changed(CONFIG, gradient_checkpointing=True)


def test_the_gradient_is_the_same_when_layers_are_computed_again():
    torch.testing.assert_close(
        gradient_of(MIXED, RECOMPUTED), gradient_of(MIXED), atol=1e-6, rtol=1e-4
    )


def test_layers_that_drop_out_by_themselves_while_they_train_do_not():
    """OPT's do, and ask their own training mode."""
    settings = {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokenizer = random_policy().tokenizer
    config = OPTConfig(vocab_size=len(tokenizer), word_embed_proj_dim=16, dropout=0.5, **settings)
    stepped = []
    for learning in (CONFIG, RECOMPUTED):
        torch.manual_seed(0)
        policy = Policy(OPTForCausalLM(config).eval(), tokenizer, "opt")
        assert not Learner(policy, learning).update(MIXED).skipped
        stepped.append(weights(policy))
    torch.testing.assert_close(*stepped, atol=1e-6, rtol=1e-4)


def test_every_layer_is_computed_once_more_for_the_backward_pass_and_only_there():
    policy = random_policy()
    learner = Learner(policy, RECOMPUTED)
    runs = []
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    batches = len(learner.batches(learner.rows(MIXED)))
    learner.update(MIXED)
    assert len(runs) == 2 * batches


def test_sampling_keeps_its_cache_after_an_update():
    plain, recomputing = random_policy(), random_policy()
    Learner(plain, CONFIG).update(MIXED)
    Learner(recomputing, RECOMPUTED).update(MIXED)
    greedy = Sampling(1.0, 12, greedy=True)
    prompt = plain.encode_prompt("1+1=")
    expected, found = (
        TransformersEngine(p, seed=0).generate([prompt], 2, greedy) for p in (plain, recomputing)
    )
    assert [s.tokens.ids for s in found[0]] == [s.tokens.ids for s in expected[0]]
    assert not any(module.training for module in recomputing.model.modules())


def test_a_model_whose_layers_cannot_be_computed_again_is_refused_by_name():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9))
    model.supports_gradient_checkpointing = False
    with pytest.raises(ConfigError, match=r"learner.gradient_checkpointing.*GPT2LMHeadModel"):
        GradientCheckpointing(model)
