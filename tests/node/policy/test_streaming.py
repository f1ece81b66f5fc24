"""What a person reads along is what an engine would write."""

from __future__ import annotations

import pytest

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import stream
from tests.support import random_policy


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 1.5), ("no_repeat_ngram_size", 1), ("suppress_tokens", [*range(48)])],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_most_probable_tokens_are_written_whatever_settings_came_with_the_model(name, value):
    policy = random_policy()
    setattr(policy.model.generation_config, name, value)
    ids = policy.encode_prompt("What is 6 * 7?")
    engine = TransformersEngine(policy, seed=0)
    ((sample,),) = engine.generate([ids], 1, Sampling(greedy=True, max_new_tokens=16))
    assert "".join(stream(policy, ids, max_new_tokens=16)) == sample.text
    assert getattr(policy.model.generation_config, name) == value
