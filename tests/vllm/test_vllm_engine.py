"""Compare vLLM with ``transformers``, and run commands that sample with vLLM."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel, Qwen3Config, Qwen3ForCausalLM

from node.config.config import Config
from node.config.learning import LearnerSection
from node.engines.engine import RolloutEngine, Sampling, SamplingRequest
from node.engines.registry import open_streaming_engine
from node.errors import NodeError
from node.learner.learner import Learner
from node.policy.policy import Policy
from protocol.rollout import Finish
from swarm.common.counters import Counters
from tests.node.engines import test_engine_process
from tests.node.learner.parts import MIXED
from tests.support import assert_drawn_from, character_tokenizer, generated, loaded

pytestmark = pytest.mark.vllm

CONFIG = Config.with_overrides({"engine.backend": "vllm", "engine.sleep_mode": True})
"""Sleep mode has no effect until the engine sleeps."""
CONTEXT = 512
PROMPTS = [(5, 6, 7), tuple(range(40)), (1, 2), (9,) * 150]
COUNTERS = Counters()
PATIENCE = 600.0
finished = partial(test_engine_process.finished, seconds=PATIENCE)
assert_drawn = partial(assert_drawn_from, temperature=0.7, atol=1e-3)


def policy_of(version: int, *, tied: bool, spread: float = 0.3) -> Policy:
    """Return random weights of this version, which never stop by themselves."""
    tokenizer = character_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        initializer_range=spread,
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(version)
    policy = Policy(Qwen3ForCausalLM(config), tokenizer, f"version {version}")
    policy.version = version
    policy.stop_ids = ()
    return policy


def adapted(folder: Path, *, tied: bool) -> Policy:
    policy_of(0, tied=tied, spread=0.1).save(folder)
    policy = loaded(folder, lora_rank=4)
    policy.stop_ids = ()
    return policy


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def tied(request) -> bool:
    return request.param


@pytest.fixture(scope="module")
def engine(tied: bool) -> Iterator[RolloutEngine]:
    engine = open_streaming_engine(CONFIG, policy_of(0, tied=tied), COUNTERS)
    yield engine
    engine.close()


def greedy_completion(engine: RolloutEngine, policy: Policy, version: int, count: int = 1):
    """Check that greedy completions equal those of transformers; return the first."""
    samples = engine.generate(PROMPTS, count, Sampling(max_new_tokens=32, greedy=True))
    for prompt, group in zip(PROMPTS, samples, strict=True):
        for sample in group:
            assert sample.tokens.ids == generated(policy, prompt, 32)
            assert set(sample.tokens.versions) == {version}
    return samples[0][0].tokens.ids


def test_greedy_completions_equal_transformers_after_every_update(engine, tied):
    completions = set()
    for version in range(4):
        policy = policy_of(version, tied=tied)
        engine.update(policy)
        completions.add(greedy_completion(engine, policy, version, count=2))
    assert len(completions) == 4


def test_vllm_samples_from_merged_adapters_after_every_update(engine, tied, tmp_path):
    policy = adapted(tmp_path, tied=tied)
    learner = Learner(policy, LearnerSection(lr=3e-2))
    completions = set()
    for version in range(4):
        engine.update(policy)
        completions.add(greedy_completion(engine, policy.merged(), version))
        assert not learner.update(MIXED).skipped
    assert len(completions) == 4


def test_update_keeps_requests_and_labels_tokens_with_versions(engine, tied):
    policies = [policy_of(version, tied=tied, spread=0.1) for version in range(4, 7)]
    sampling = Sampling(0.7, max_new_tokens=300)
    engine.update(policies[0])
    engine.submit([SamplingRequest(99, (1, 2))], Sampling(0.7, max_new_tokens=40))
    engine.submit([SamplingRequest(key, PROMPTS[key % 4]) for key in range(12)], sampling)
    finished(engine, 1)
    engine.update(policies[1])
    engine.submit([SamplingRequest(98, (1, 2))], Sampling(0.7, max_new_tokens=40))
    finished(engine, 1)
    engine.update(policies[2])
    samples = finished(engine, 12)
    assert sorted(samples) == list(range(12))
    assert any(set(sample.tokens.versions) == {4, 5, 6} for sample in samples.values())
    for key, sample in samples.items():
        tokens = sample.tokens
        lengths = {len(each) for each in (tokens.ids, tokens.logprobs, tokens.versions)}
        assert lengths == {300}
        assert_drawn(tokens, PROMPTS[key % 4], *policies)


def test_paused_completions_resume_with_new_weights_after_sleep(engine, tied):
    policies = [policy_of(version, tied=tied, spread=0.1) for version in (7, 8)]
    sampling = Sampling(0.7, max_new_tokens=300)
    engine.update(policies[0])
    engine.submit([SamplingRequest(99, (1, 2))], Sampling(0.7, max_new_tokens=40))
    engine.submit([SamplingRequest(key, PROMPTS[key]) for key in range(4)], sampling)
    finished(engine, 1)
    pending = engine.pause()
    assert [key for key, _ in pending] == [0, 1, 2, 3]
    assert all(0 < len(begun.ids) < 300 for _, begun in pending)
    engine.sleep()
    engine.update(policies[1])
    resumed = [SamplingRequest(key, PROMPTS[key], begun) for key, begun in pending]
    engine.submit(resumed, sampling)
    for key, sample in finished(engine, 4).items():
        begun = resumed[key].tokens
        assert sample.tokens.ids[: len(begun.ids)] == begun.ids
        assert sample.tokens.versions == (7,) * len(begun.ids) + (8,) * (300 - len(begun.ids))
        assert_drawn(sample.tokens, PROMPTS[key], *policies)


def test_multi_turn_logprobs_equal_those_of_a_full_forward_pass(engine, tied):
    policy = policy_of(9, tied=tied, spread=0.1)
    engine.update(policy)
    sampling = Sampling(0.7, max_new_tokens=40)
    ids = {key: [*prompt] for key, prompt in enumerate(PROMPTS)}
    for turn in range(3):
        requests = [SamplingRequest(key, tuple(each), lasts=True) for key, each in ids.items()]
        engine.submit(requests, sampling)
        for key, sample in finished(engine, len(ids)).items():
            assert_drawn(sample.tokens, ids[key], policy)
            ids[key] += [*sample.tokens.ids, 1 + key, 2 + turn]
    engine.abort(list(ids))


def test_completion_ends_at_the_context_limit(engine, tied):
    policy = policy_of(9, tied=tied, spread=0.1)
    engine.update(policy)
    ((sample,),) = engine.generate([(1,) * (CONTEXT - 5)], 1, Sampling(max_new_tokens=64))
    assert len(sample.tokens.ids) == 5
    assert sample.finish is Finish.LENGTH


def test_vllm_wakes_from_sleep_with_the_newest_weights(engine, tied):
    engine.update(policy_of(10, tied=tied))
    for newest, versions in ((10, ()), (11, (11,)), (13, (12, 13))):
        engine.sleep()
        for version in versions:
            engine.update(policy_of(version, tied=tied))
        greedy_completion(engine, policy_of(newest, tied=tied), newest)


def test_killed_vllm_restarts_with_adapters_and_keeps_all_requests(tmp_path):
    policy = adapted(tmp_path, tied=True)
    assert not Learner(policy, LearnerSection(lr=3e-2)).update(MIXED).skipped
    policy.stop_ids = tuple(range(8))
    counters = Counters()
    engine = open_streaming_engine(CONFIG, policy, counters)
    sampling = Sampling(0.7, max_new_tokens=400)
    engine.submit([SamplingRequest(99, (10,) * (CONTEXT - 1))], sampling)
    engine.submit([SamplingRequest(key, (10, 11, key)) for key in range(64)], sampling)
    samples = finished(engine, 1)
    os.kill(engine.pid, signal.SIGKILL)
    samples |= finished(engine, 65 - len(samples))
    assert sorted(samples) == [*range(64), 99]
    assert counters.snapshot() == {"engine_restarts": 1}
    for key in range(64):
        sample = samples[key]
        assert (sample.tokens.ids[-1] in policy.stop_ids) == (sample.finish is Finish.STOP)
        assert not set(sample.tokens.ids[:-1]) & set(policy.stop_ids)
        assert_drawn_from(sample, (10, 11, key), [policy])
    engine.close()


def test_too_large_kv_cache_fails_the_start_with_its_size(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "900000")
    engine = open_streaming_engine(CONFIG, policy_of(0, tied=True), Counters())
    with pytest.raises(NodeError, match=r"does not start.*900000\.0.* GiB"):
        engine.generate([(1, 2)], 1, Sampling())
    engine.close()


def test_unsupported_vllm_model_is_named():
    config = OpenAIGPTConfig(vocab_size=98, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    policy = Policy(OpenAIGPTLMHeadModel(config), character_tokenizer(), "old")
    engine = open_streaming_engine(CONFIG, policy, Counters())
    with pytest.raises(NodeError, match=r"\['OpenAIGPTLMHeadModel'\] .* for now\. Choose"):
        engine.generate([(1, 2)], 1, Sampling())
    engine.close()


SETTINGS = (
    *("engine.backend=vllm", "engine.max_new_tokens=16", "engine.sleep_mode=true"),
    *("policy.lora_rank=8", "schedule.mode=async", "schedule.eval_tasks=8", "monitor.live=false"),
    *("node.threads=1", "learner.lr=0.003", "mixture.external=0", "mixture.local=8"),
)


def execute(folder: Path, *arguments: str) -> str:
    """Run a command that must succeed; return its output."""
    command = [sys.executable, "-m", "node.cli.main", *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def last_record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def test_demo_node_learns_from_vllm_samples(tmp_path: Path) -> None:
    command = ["demo", "--engine", "vllm", "--nodes", "1", "--mix", "8/0", "--json"]
    output = execute(tmp_path, *command, "--rounds", "12", "--run-dir", str(tmp_path / "demo"))
    (node,) = json.loads(output)["nodes"]
    assert node["rounds"] == 12
    last = last_record(tmp_path / "demo" / "node-1")
    assert last["policy_step"] > 0
    assert "engine_restarts" not in json.dumps(last)


def test_node_trains_adapters_on_vllm_samples(tmp_path: Path) -> None:
    execute(tmp_path, "join", "--rounds", "16", *(f"--set={each}" for each in SETTINGS))
    last = last_record(tmp_path / "swarm-run")
    assert last["policy_step"] > 0
    assert "engine_restarts" not in last["counters"]
    assert "logprob_mismatches" not in last["counters"], "vLLM samples from the adapters"
