"""Compare two ranks under torchrun with a single process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from node.config.config import Config
from node.distributed.sharded_learner import dealt, open_learner
from node.distributed.torchrun import Launch, forget
from node.errors import ConfigError
from node.learner.batches import Row, TrainingCompletion
from tests.library_privates import flattened
from tests.node.distributed.ranks_work import CASES
from tests.node.learner.parts import CONFIG, HONEST, MIXED, behaving, weights
from tests.support import random_policy

ROOT = Path(__file__).parents[3]
ROUNDED = 1e-5
"""Fraction of the weights whose gradient may be only rounding error."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results that rank 0 of :mod:`tests.node.distributed.ranks_work` writes."""
    folder = tmp_path_factory.mktemp("ranks")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = [sys.executable, *launcher, "-m", "tests.node.distributed.ranks_work", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert (folder / "found.pt").exists(), run.stderr
    return dict(torch.load(folder / "found.pt", weights_only=True))


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"bfloat16"}))
def test_two_ranks_match_the_results_of_one(found, name):
    alone, ranks = found[name]["alone"], found[name]["ranks"]
    assert alone["version"] == ranks["version"]
    assert len(alone["stats"]) == len(ranks["stats"]) == CASES[name].updates
    for one, two in zip(alone["stats"], ranks["stats"], strict=True):
        for figure, value in one.items():
            if isinstance(value, float | tuple):
                value = pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True)
            assert two[figure] == value, figure
    # Adam also divides gradients that are rounding errors, and these depend on the processor.
    close = torch.isclose(ranks["weights"], alone["weights"], atol=5e-5, rtol=1e-4, equal_nan=True)
    assert (~close).sum() <= ROUNDED * close.numel()
    assert_close(ranks["weights"], alone["weights"], atol=1e-4, rtol=1e-4, equal_nan=True)


def test_cases_cover_their_intended_paths(found):
    stats = {name: found[name]["ranks"]["stats"][0] for name in CASES}
    for name in CASES.keys() - {"refused", "no signal"}:
        assert (found[name]["ranks"]["weights"] - found[name]["start"]).norm() > 1e-2, name
    assert stats["clipped"]["grad_norm"] > 1
    assert stats["epochs in small pieces"]["clip_fraction"] > 0
    assert stats["stale, recomputed"]["staleness"]
    compared = found["an engine compared beside"]["ranks"]["stats"]
    gaps = [each["logprob_mismatch"] for each in compared]
    assert gaps == [pytest.approx(0.2, abs=1e-4), None], "the second starts at another version"
    assert found["parts"].count(7) > 20, "the logits are computed in parts"
    passes = found["peers' groups"]["ranks"]["passes"]
    assert passes[0] > 4 and sum(passes) <= 2 * len(HONEST), "whole groups, each on one rank"
    assert stats["some of them bounded, epochs"]["groups_bounded"] == 3
    assert stats["refused"]["refused"] == 1 and stats["no signal"]["skipped"]


def test_two_bfloat16_ranks_match_one_up_to_rounding(found):
    """Micro-batches contain other rows, so bfloat16 rounds differently."""
    alone, ranks = found["bfloat16"]["alone"], found["bfloat16"]["ranks"]
    for one, two in zip(alone["stats"], ranks["stats"], strict=True):
        for figure in ("loss", "grad_norm", "entropy"):
            assert two[figure] == pytest.approx(one[figure], rel=0.02), figure
    steps = [way["weights"] - found["bfloat16"]["start"] for way in (alone, ranks)]
    assert torch.cosine_similarity(*steps, dim=0) > 0.98


@pytest.mark.parametrize("name", ["one pass", "bfloat16"])
@pytest.mark.parametrize("ways", [(1, 2), (2, 1), (2, 2)])
def test_checkpoint_resumes_with_another_rank_count(found, name, ways):
    through, alone = found[name, *ways], found[name, 1, 1]
    (saved, layout), (restored, again) = map(flattened, (through["saved"], through["restored"]))
    assert layout == again == flattened(alone["saved"])[1]
    for before, after in zip(saved, restored, strict=True):
        if torch.is_tensor(before):
            assert before.dtype == after.dtype == torch.float32 and torch.equal(before, after)
        else:
            assert before == after
    assert through["version"] == alone["version"]
    if name == "one pass":
        assert_close(through["weights"], alone["weights"], atol=5e-5, rtol=1e-4)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 5))
def test_rows_are_dealt_once_and_evenly_across_ranks(lengths, ranks):
    done = TrainingCompletion((5,), (True,))
    rows = [Row((7,) * n, (done,), (1.0,), True, first=i) for i, n in enumerate(lengths)]
    hands = dealt(rows, ranks)
    assert sorted(row.first for hand in hands for row in hand) == list(range(len(rows)))
    tokens = [sum(row.length for row in hand) for hand in hands]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


def test_future_tokens_fail_and_one_rank_out_of_memory_stops_all(found):
    told, version = found["tokens to come"]
    assert "tokens of version 1 of the policy, which is at 0" in told and version == 1
    for told in found["end of memory"]:
        assert "rank 1: memory ran out" in told and "learner.micro_batch_tokens" in told
    assert ["(update)" in told for told in found["end of memory"]] == [True, False]


def test_single_rank_learner_uses_correction_options():
    def learned(**options):
        policy = random_policy()
        learner = open_learner(policy, CONFIG, None, correction="tis", correction_options=options)
        learner.update(behaving(MIXED, 3.0))
        return weights(policy)

    assert not torch.equal(learned(cap=1e-3), learned())


def test_launch_rejects_unsupported_settings_by_key():
    launch = Launch(rank=0, local_rank=0, world=2)
    launch.check(Config())
    devices = ("policy.device", "cuda:1"), ("policy.device", "mps")
    learning = ("learner.optimizer", "adamw8bit"), ("learner.offload", True)
    for key, value in (("policy.lora_rank", 8), *learning, *devices):
        with pytest.raises(ConfigError, match="without torchrun") as refused:
            launch.check(Config.with_overrides({key: value}))
        assert refused.value.key == key


def test_single_process_is_not_a_torchrun_rank(monkeypatch):
    told = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert Launch.read() is None
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert Launch.read() == Launch(rank=3, local_rank=1, world=4)
    forget()
    assert not told.keys() & os.environ.keys()
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert Launch.read() is None
    assert "TORCHELASTIC_USE_AGENT_STORE" not in os.environ, "child processes would act as ranks"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE: '2'.*unset WORLD_SIZE"):
        Launch.read()
