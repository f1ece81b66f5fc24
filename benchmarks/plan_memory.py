"""What ``swarm-node plan`` says a node's process takes, against what it took at its largest.

Each configuration runs in a process of its own, which loads a randomly initialised model, lets the
real engine write, the real learner update twice with groups of its own and of others, and writes
what a checkpoint holds; its peak is that of resident memory (``VmHWM``). Run it as
``python benchmarks/plan_memory.py [--small] [--only NAME] [--json]``, on Linux.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from large_models import resident, tokenizer_of

MIB = 1 << 20
SIZES: dict[str, dict[str, int]] = {
    "30M": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 10},
    "110M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12},
}
WORDS = 32_000
LENGTHS = {
    "engine.group_size": 8,
    "engine.max_new_tokens": 96,
    "mixture.local": 2,
    "mixture.external": 2,
    "mixture.target_groups": 4,
    "schedule.eval_tasks": 16,
    "learner.micro_batch_tokens": 2048,
    "policy.device": "cpu",
}
PROMPT = 32
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "bfloat16": {"policy.dtype": "bfloat16"},
    "lora": {"policy.lora_rank": 16},
    "lora bfloat16": {"policy.lora_rank": 16, "policy.dtype": "bfloat16"},
    "8 bit": {"learner.optimizer": "adamw8bit"},
    "offload": {"learner.offload": True},
    "checkpointing": {"learner.gradient_checkpointing": True},
}


def run_one(overrides: dict[str, Any]) -> dict[str, int]:
    """Everything that a node's process does with its model; bytes before and at the most."""
    import torch
    from layouts import training_groups

    from node.config.config import Config
    from node.engines.engine import Sampling
    from node.policy.policy import Policy
    from node.run.update_groups import TrainedPolicy
    from swarm.common.counters import Counters

    torch.set_num_threads(1)
    config = Config.with_overrides(overrides)
    before = resident("VmRSS")
    policy = Policy.load(config.policy)
    policy.stop_ids = (-1,)
    trained, random = TrainedPolicy(config, policy, Counters()), Random(0)
    source: Any = SimpleNamespace(beside=lambda update: update(), newest=list)
    size, new = config.engine.group_size, config.engine.max_new_tokens
    local = [True] * config.mixture.local + [False] * config.mixture.external
    for _ in range(2):
        prompts = [[random.randrange(96) for _ in range(PROMPT)] for _ in local]
        samples = trained.engine.generate(prompts, size, Sampling(max_new_tokens=new))
        trained.learn(training_groups(prompts, samples, local), source)
    with tempfile.TemporaryDirectory() as name:
        (policy.save_adapter if policy.adapter else policy.save)(Path(name))
        torch.save(trained.learner.state_dict(), Path(name) / "learner.pt")
    return {"before": before, "peak": resident("VmHWM")}


def model(folder: Path, size: str) -> Path:
    """A randomly initialised Qwen2 with a tokenizer of as many words."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads = SIZES[size]["hidden_size"] // 64
    config = Qwen2Config(
        **SIZES[size],
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 3),
        vocab_size=WORDS,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
    )
    path = folder / size
    Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer_of(WORDS).save_pretrained(path)
    return path


def rows(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One row for each configuration, with what was estimated and measured in MiB."""
    from node.plan.machine import emulated

    found = []
    for size in list(SIZES)[: 1 if options.small else None]:
        path = model(folder, size)
        for kind, chosen in KINDS.items():
            name = f"{size} {kind}"
            if options.only and options.only not in name:
                continue
            if reason := emulated(chosen.get("policy.dtype", "float32")):
                print(f"{name}: not run: {reason}", file=sys.stderr)
                continue
            overrides = {**LENGTHS, **chosen, "policy.model": str(path)}
            told = [sys.executable, __file__, "--one", json.dumps(overrides)]
            run = subprocess.run(told, capture_output=True, text=True, check=False)
            if run.returncode:
                raise SystemExit(f"{name}: {run.stderr.strip().splitlines()[-1]}")
            measured = json.loads(run.stdout.splitlines()[-1])
            found.append(compared(name, overrides, path, measured))
    return found


def compared(
    name: str, overrides: dict[str, Any], path: Path, measured: dict[str, int]
) -> dict[str, Any]:
    """A row: estimate and peak, MiB, and the first in the second."""
    from node.config.config import Config
    from node.plan.memory import OTHERS, estimate
    from node.plan.model_shape import shape_of

    config = Config.with_overrides(overrides)
    told = estimate(shape_of(path, name), config, device="cpu", prompt=PROMPT)
    expected = told.peak("memory") - OTHERS
    return {
        "configuration": name,
        "before": measured["before"] // MIB,
        "measured": measured["peak"] // MIB,
        "estimate": expected // MIB,
        "estimate / measured": round(expected / measured["peak"], 3),
    }


def main() -> None:
    """Run all configurations, or the one that a parent asks for."""
    from output import show

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="the smaller model alone")
    parser.add_argument("--only", default="", help="configurations whose name has this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(json.loads(options.one))))
        return
    with tempfile.TemporaryDirectory() as folder:
        show({"rows": rows(options, Path(folder))}, as_json=options.json)


if __name__ == "__main__":
    main()
