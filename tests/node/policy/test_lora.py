from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from node.config.learning import LearnerSection, PolicySection
from node.config.sections import ScheduleSection
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.fused_decoder import FusedDecoder
from node.engines.weight_snapshot import Snapshot, load_into
from node.errors import ConfigError
from node.learner.learner import Learner
from node.policy.policy import Policy
from node.run.resume import RunState
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from tests.node.conftest import Terminal
from tests.node.learner.parts import MIXED
from tests.support import changed, random_policy, saved_policy

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs swarm-node[lora]")

GREEDY = Sampling(1.0, 16, greedy=True)
CONFIG = LearnerSection(lr=3e-2)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return saved_policy(tmp_path / "base", spread=0.1)


def adapted(base: Path, *, dtype: str = "float32", **settings) -> Policy:
    return Policy.load(
        PolicySection(model=str(base), dtype=dtype, device="cpu", lora_rank=4, **settings)
    )


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in policy.model.state_dict().items()}


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(input_ids=torch.arange(20)[None]).logits


def greedy(policy: Policy, prompt: list[int]) -> list[int]:
    """Tokens that the model writes through its adapters, read from the beginning each time."""
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + 16 and ids[-1] not in policy.stop_ids:
            ids.append(int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_only_adapters_are_trained_and_what_was_loaded_stays(base):
    policy = adapted(base)
    start = logits(policy)
    torch.testing.assert_close(
        start, logits(Policy.load(PolicySection(model=str(base), device="cpu")))
    )
    before = weights(policy)
    learner = Learner(policy, CONFIG)
    for _ in range(3):
        assert not learner.update(MIXED).skipped
    changed = {n for n, t in policy.model.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == {n for n in before if ".lora_" in n}
    assert not torch.allclose(logits(policy), start, atol=1e-2)
    moments = learner.state_dict()["optimizer"]["adam"]["state"]
    assert len(moments) == len(changed)


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_the_engine_samples_from_what_the_adapters_make_after_every_update(
    base, targets, monkeypatch
):
    fused = []
    step = FusedDecoder.step
    monkeypatch.setattr(FusedDecoder, "step", lambda *a: fused.append(1) or step(*a))
    policy = adapted(base, lora_targets=targets)
    engine, learner = TransformersEngine(policy, seed=0), Learner(policy, CONFIG)
    prompts = [policy.encode_prompt(text) for text in ("1+1=", "what is a b c?")]
    written = set()
    for _ in range(4):
        before = weights(policy)
        samples = engine.generate(prompts, 1, GREEDY)
        for prompt, (sample,) in zip(prompts, samples, strict=True):
            assert list(sample.tokens.ids) == greedy(policy, prompt)
            written.add(sample.tokens.ids)
        assert all(torch.equal(t, before[n]) for n, t in policy.model.state_dict().items())
        learner.update(MIXED)
        engine.update(policy)
    assert len(written) > len(prompts), "updates change what is written"
    assert fused, "merged weights are plain ones"


def test_a_snapshot_holds_merged_weights_under_the_base_models_names(base, tmp_path):
    policy, other = adapted(base), random_policy(seed=9)
    snapshot = Snapshot(policy, as_checkpoint=False, place=tmp_path)
    learner = Learner(policy, CONFIG)
    for version in range(1, 4):
        learner.update(MIXED)
        snapshot.write(policy)
        assert load_into(other.model, snapshot.folder) == version
        torch.testing.assert_close(logits(other), logits(policy), atol=1e-4, rtol=1e-4)


def test_merging_again_and_again_gives_the_same_weights_and_rounds_once(base):
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
    policy, full = adapted(base, dtype=dtype), adapted(base)
    for each in (policy, full):
        Learner(each, CONFIG).update(MIXED)
    found, expected = (
        torch.cat([p.flatten() for p in each.model.parameters() if p.requires_grad])
        for each in (policy, full)
    )
    assert found.dtype == torch.float32
    assert torch.cosine_similarity(found, expected, dim=0) > 0.9


def test_the_saved_model_is_the_merged_one_and_the_saved_adapter_goes_on(base, tmp_path):
    policy = adapted(base)
    learner = Learner(policy, CONFIG)
    learner.update(MIXED)
    policy.save(tmp_path / "model")
    policy.save_adapter(tmp_path / "adapter")
    plain = Policy.load(PolicySection(model=str(tmp_path / "model"), device="cpu"))
    torch.testing.assert_close(logits(plain), logits(policy), atol=1e-4, rtol=1e-4)
    assert set(load_file(tmp_path / "model" / "model.safetensors")) == set(
        load_file(base / "model.safetensors")
    )
    config = PolicySection(model=str(base), device="cpu", lora_rank=4)
    other = Policy.load(config, tmp_path / "adapter")
    restored = Learner(other, CONFIG)
    restored.load_state_dict(learner.state_dict())
    for each in (learner, restored):
        each.update(MIXED)
    assert torch.equal(logits(other), logits(policy))
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 4


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nothing", "not found"),
        ("embed_tokens", "is not a linear layer"),
        ("lm_head", "shares its weight with the embeddings"),
    ],
)
def test_layers_that_can_have_no_adapter_are_refused_by_name(base, target, reason):
    with pytest.raises(ConfigError, match=rf"policy.lora_targets: .*{target}.*{reason}.*q_proj"):
        adapted(base, lora_targets=(target,))


def test_without_peft_it_is_said_what_to_install(base, monkeypatch):
    monkeypatch.delitem(sys.modules, "node.policy.lora", raising=False)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"policy.lora_rank: 4.*swarm-node\[lora\]"):
        adapted(base)


@pytest.fixture
def begun(base: Path, node: RunFolder) -> Policy:
    """A policy whose checkpoint lies in the node's run folder, beside a config that fits."""
    text = node.config.read_text()
    for line, other in (
        ('model = "tiny"', f'model = "{base}"'),
        ("lora_rank = 0", "lora_rank = 4"),
        ('device = "auto"', 'device = "cpu"'),
    ):
        assert line in text
        text = text.replace(line, other)
    node.config.write_text(text)
    policy = adapted(base)
    Learner(policy, CONFIG).update(MIXED)
    about = {
        "round": 1,
        "policy_step": 1,
        "model": str(base),
        "dtype": "float32",
        **policy.adapter.settings,
    }
    Checkpoints(node.checkpoints).save(1, policy.save_adapter, about)
    return policy


def test_export_writes_the_merged_model_or_the_adapter(
    terminal: Terminal, node: RunFolder, begun: Policy
):
    from peft import PeftModel

    assert terminal("export", "--config", "node", "--out", "model") == 0, terminal.err
    plain = Policy.load(PolicySection(model="./model", device="cpu"))
    torch.testing.assert_close(logits(plain), logits(begun), atol=1e-4, rtol=1e-4)
    assert terminal("export", "--config", "node", "--out", "adapter", "--adapter") == 0
    base = Policy.load(PolicySection(model=begun.name, device="cpu"))
    PeftModel.from_pretrained(base.model, "adapter")
    torch.testing.assert_close(logits(base), logits(begun))


@pytest.mark.parametrize(
    ("key", "value"),
    [("lora_rank", 0), ("lora_rank", 8), ("lora_alpha", 8), ("lora_targets", ("q_proj",))],
)
def test_a_run_goes_on_with_the_adapter_that_it_was_begun_with_and_no_other(
    node: RunFolder, begun: Policy, key: str, value: object
):
    config = PolicySection(model=begun.name, device="cpu", lora_rank=4)
    progress = RunState(node, None, ScheduleSection(), "")
    assert torch.equal(logits(progress.policy(config)), logits(begun))
    with pytest.raises(ConfigError, match=rf"policy.{key}: .*go back to"):
        progress.policy(changed(config, **{key: value}))


def test_a_run_of_all_weights_does_not_go_on_with_an_adapter(base: Path, node: RunFolder):
    about = {"round": 1, "policy_step": 1, "model": str(base), "dtype": "float32"}
    Checkpoints(node.checkpoints).save(1, random_policy().save, about)
    progress = RunState(node, None, ScheduleSection(), "")
    with pytest.raises(ConfigError, match=r"policy.lora_rank: 4.*go back to 0"):
        progress.policy(PolicySection(model=str(base), device="cpu", lora_rank=4))
