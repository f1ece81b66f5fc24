import json
import sys
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, MixtralConfig

from node.config.config import set_keys
from node.config.learning import LearnerSection, PolicySection
from node.config.sections import ScheduleSection
from node.engines.engine import Sampling
from node.engines.transformers.decoding import Decoders
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.fused_decoder import FusedDecoder
from node.engines.transformers.static_step import StaticStep
from node.engines.weight_snapshot import Snapshot, load_into
from node.errors import ConfigError, NodeError
from node.learner.learner import Learner
from node.policy.lora import Adapter
from node.run.resume import ENTRIES, RunState
from node.storage.checkpoints import Checkpoints
from tests.node.learner.parts import MIXED
from tests.support import changed, loaded, random_policy, saved_policy

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs swarm-node[lora]")

GREEDY = Sampling(1.0, 16, greedy=True)
CONFIG = LearnerSection(lr=3e-2)


@pytest.fixture
def base(tmp_path):
    return saved_policy(tmp_path / "base", spread=0.1)


def adapted(base, **settings):
    return loaded(base, **{"dtype": "float32", "lora_rank": 4, **settings})


def weights(policy):
    return {name: t.clone() for name, t in policy.model.state_dict().items()}


@torch.no_grad()
def logits(policy):
    return policy.model(input_ids=torch.arange(20)[None]).logits


@torch.no_grad()
def greedy(policy, prompt):
    """Return the adapted model's greedy tokens, computed without a cache."""
    ids = list(prompt)
    while len(ids) < len(prompt) + 16 and ids[-1] not in policy.stop_ids:
        ids.append(int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_learner_trains_only_the_adapters(base):
    policy = adapted(base)
    start, before, learner = logits(policy), weights(policy), Learner(policy, CONFIG)
    assert_close(start, logits(loaded(base)))
    for _ in range(3):
        assert not learner.update(MIXED).skipped
    changed = {n for n, t in policy.model.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == {n for n in before if ".lora_" in n}
    assert not torch.allclose(logits(policy), start, atol=1e-2)
    assert len(learner.state_dict()["optimizer"]["adam"]["state"]) == len(changed)


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_engine_samples_from_adapters_after_every_update(base, targets, monkeypatch):
    fused = []
    step = FusedDecoder.step
    monkeypatch.setattr(FusedDecoder, "step", lambda *a: fused.append(1) or step(*a))
    policy = adapted(base, lora_targets=targets)
    engine, learner = TransformersEngine(policy, seed=0), Learner(policy, CONFIG)
    prompts = [policy.encode_prompt(text) for text in ("1+1=", "what is a b c?")]
    outputs = set()
    for _ in range(4):
        before = weights(policy)
        for prompt, (sample,) in zip(prompts, engine.generate(prompts, 1, GREEDY), strict=True):
            assert list(sample.tokens.ids) == greedy(policy, prompt)
            outputs.add(sample.tokens.ids)
        assert all(torch.equal(t, before[n]) for n, t in policy.model.state_dict().items())
        learner.update(MIXED)
        engine.update(policy)
    assert len(outputs) > len(prompts), "updates change the samples"
    assert fused, "merged weights support the fused step"


def test_merged_weights_stay_in_place_for_a_recorded_step(base):
    policy, decoders = adapted(base), Decoders()
    step = StaticStep(decoders.merged(policy).model)
    learner = Learner(policy, CONFIG)
    for _ in range(3):
        learner.update(MIXED)
        merged, fresh = decoders.merged(policy), policy.merged()
        assert step.reads(merged.model) and merged.version == policy.version
        assert_close(weights(merged), weights(fresh), atol=0, rtol=0)
    assert not step.reads(decoders.merged(adapted(base)).model), "another adapter gets another copy"
    kept = decoders.merged(policy).model
    decoders.release(policy)
    assert decoders.merged(policy).model is not kept, "a copy without a recorded step is freed"


def test_snapshot_has_merged_weights_with_base_model_names(base, tmp_path):
    policy, other = adapted(base), random_policy(seed=9)
    snapshot = Snapshot(policy, as_checkpoint=False, place=tmp_path)
    learner = Learner(policy, CONFIG)
    for version in range(1, 4):
        learner.update(MIXED)
        snapshot.write(policy)
        assert load_into(other.model, snapshot.folder) == version
        assert_close(logits(other), logits(policy), atol=1e-4, rtol=1e-4)


def test_repeated_merges_give_equal_weights_and_round_once(base):
    policy = adapted(base, dtype="bfloat16")
    Learner(policy, CONFIG).update(MIXED)
    before = weights(policy)
    first, *_, last = (policy.merged().model.state_dict() for _ in range(5))
    assert all(torch.equal(first[name], tensor) for name, tensor in last.items())
    assert all(torch.equal(before[n], t) for n, t in policy.model.state_dict().items())
    name = "model.layers.0.mlp.up_proj"
    a, b = (before[f"{name}.lora_{x}.default.weight"] for x in "AB")
    assert a.dtype == b.dtype == torch.float32
    exact = before[f"{name}.base_layer.weight"].float() + 32 / 4 * b @ a
    assert torch.equal(first[f"{name}.weight"], exact.bfloat16())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_adapters_of_half_precision_weights_are_trained_in_full_precision(base, dtype):
    trained = []
    for policy in (adapted(base, dtype=dtype), adapted(base)):
        Learner(policy, CONFIG).update(MIXED)
        parameters = [p.flatten() for p in policy.model.parameters() if p.requires_grad]
        trained.append(torch.cat(parameters))
    assert trained[0].dtype == torch.float32
    assert torch.cosine_similarity(*trained, dim=0) > 0.9


def test_saved_model_is_merged_and_saved_adapter_resumes(base, tmp_path):
    policy = adapted(base)
    learner = Learner(policy, CONFIG)
    learner.update(MIXED)
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    policy.save(model)
    policy.save_adapter(adapter)
    assert_close(logits(loaded(model)), logits(policy), atol=1e-4, rtol=1e-4)
    first, second = (set(load_file(each / "model.safetensors")) for each in (model, base))
    assert first == second
    other = loaded(base, adapter, lora_rank=4)
    restored = Learner(other, CONFIG)
    restored.load_state_dict(learner.state_dict())
    for each in (learner, restored):
        each.update(MIXED)
    assert torch.equal(logits(other), logits(policy))
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 4


def test_lora_rejects_unsupported_target_layers(base):
    reasons = {"nothing": "not found", "embed_tokens": "is not a linear layer"}
    reasons["lm_head"] = "shares its weight with the embeddings"
    for target, reason in reasons.items():
        pattern = rf"policy.lora_targets: .*{target}.*{reason}.*q_proj"
        with pytest.raises(ConfigError, match=pattern):
            adapted(base, lora_targets=(target,))


def test_lora_rejects_expert_router_with_advice_and_no_warning(recwarn):
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = MixtralConfig(**sizes, intermediate_size=32, num_hidden_layers=1, vocab_size=98)
    with pytest.raises(ConfigError, match=r"is not a linear layer.* such as 'q_proj'") as refused:
        Adapter(AutoModelForCausalLM.from_config(config), rank=4, alpha=8)
    assert "leave it empty" not in str(refused.value)
    assert not [each for each in recwarn if "peft" in each.filename]


def test_missing_peft_error_names_the_package(base, monkeypatch):
    monkeypatch.delitem(sys.modules, "node.policy.lora", raising=False)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"policy.lora_rank: 4.*'\.\[lora\]'"):
        adapted(base)


@pytest.fixture
def begun(base, node):
    """Save a policy's checkpoint in the node's run folder, with a matching config."""
    keys = {"policy.model": str(base), "policy.lora_rank": 4, "policy.device": "cpu"}
    set_keys(node.config, keys)
    policy = adapted(base)
    Learner(policy, CONFIG).update(MIXED)
    state = about(base) | policy.adapter.settings
    Checkpoints(node.checkpoints).save(1, policy.save_adapter, state)
    return policy


def about(base):
    return dict.fromkeys(ENTRIES, 1) | {"model": str(base), "dtype": "float32"}


def test_export_writes_the_merged_model_or_the_adapter(terminal, node, begun):
    from peft import PeftModel

    terminal.ok("export", "--config", "node", "--out", "model")
    assert_close(logits(loaded("./model")), logits(begun), atol=1e-4, rtol=1e-4)
    terminal.ok("export", "--config", "node", "--out", "adapter", "--adapter")
    base = loaded(begun.name)
    PeftModel.from_pretrained(base.model, "adapter")
    assert_close(logits(base), logits(begun))


@pytest.mark.parametrize(
    ("key", "value"),
    [("lora_rank", 0), ("lora_rank", 8), ("lora_alpha", 8), ("lora_targets", ("q_proj",))],
)
def test_run_resumes_only_with_unchanged_adapter_settings(node, begun, key, value):
    config = PolicySection(model=begun.name, device="cpu", lora_rank=4)
    progress = RunState(node, None, ScheduleSection(), "")
    resumed = progress.policy(config)
    assert torch.equal(logits(resumed), logits(begun))
    assert resumed.version == begun.version == 1
    with pytest.raises(ConfigError, match=rf"policy.{key}: .*start from"):
        progress.policy(changed(config, **{key: value}))


def test_full_weight_run_does_not_resume_with_an_adapter(base, node):
    Checkpoints(node.checkpoints).save(1, random_policy().save, about(base))
    config = PolicySection(model=str(base), device="cpu", lora_rank=4)
    with pytest.raises(ConfigError, match=r"policy.lora_rank: 4.*start from 0"):
        RunState(node, None, ScheduleSection(), "").policy(config)


def test_merge_out_of_memory_error_suggests_a_change(base, tmp_path):
    policy = loaded(tmp_path / "base", lora_rank=4)

    def cramped(into):
        raise torch.OutOfMemoryError("all taken")

    policy.adapter.merged = cramped
    for work in (policy.merged, lambda: Snapshot(policy, as_checkpoint=False)):
        with pytest.raises(NodeError, match=r"merged.*Decrease"):
            work()
