"""Fixture that repeats tests with dynamic and static decoding."""

import pytest

from node.engines.transformers.decoding import Decoders
from node.engines.transformers.fused_decoder import has_fused_step
from node.engines.transformers.kv_cache import growing_cache
from node.engines.transformers.static_decoding import StaticDecoding
from node.engines.transformers.static_step import StaticStep


@pytest.fixture(params=["dynamic", "static"])
def each_decoding(request, monkeypatch):
    """Decode as on a CPU, then with the static step of a GPU, without CUDA graphs."""

    def opened(self, policy, sampling, random, *, beside=False):
        if beside or not has_fused_step(policy.model, growing_cache(policy.model.config)):
            return usual(self, policy, sampling, random)
        if self._step is None or not self._step.reads(policy.model):
            self._step = StaticStep(policy.model)
        return StaticDecoding(self._step, policy, sampling, random)

    usual = Decoders.open
    if request.param == "static":
        monkeypatch.setattr(Decoders, "open", opened)
        monkeypatch.setattr(Decoders, "release", lambda self, policy: None)
