"""What is told of the machine, and the parts of a node that ask for its devices."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from on_gpu.machine import copied_bytes, matrix_flops
from on_gpu.models import let_go, random_policy
from on_gpu.section import Row, Settings, SkippedError

PROGRAM = Path(__file__).with_name("two_ranks.py")
RANKS = 2
PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "trl",
    "peft",
    "bitsandbytes",
    "hivemind",
    "reasoning-gym",
)


def machine(settings: Settings) -> Iterator[Row]:
    """The yardsticks: products of large matrices, and large copies."""
    import torch

    for dtype in ("bfloat16", "float16", "float32"):
        best = matrix_flops(settings.device, dtype, smoke=settings.smoke)
        yield {"what": f"product of matrices, {dtype}", "tflops": round(best / 1e12, 3)}
    copied = copied_bytes(settings.device, smoke=settings.smoke)
    yield {"what": "copy, read and written", "gb_per_s": round(copied / 1e9, 1)}
    if settings.on_gpu:
        shown = torch.cuda.get_device_properties(settings.device)
        yield {"what": shown.name, "memory_gb": round(shown.total_memory / 1e9, 1)}
    yield {"what": f"{torch.cuda.device_count()} GPUs", "cuda": str(torch.version.cuda)}


def packages() -> dict[str, str]:
    """Versions of what sections may need; empty where it is not installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def devices(settings: Settings) -> Iterator[Row]:
    """What a node looks for before it starts, and where its engines go."""
    from node.config.config import Config
    from node.doctor.checks import check_device
    from node.engines.registry import devices as of_engines
    from node.policy.device import device_named, gpus
    from node.run.preflight import check_device as check_before

    kind = settings.device.partition(":")[0]
    check_before(settings.device)
    yield {"what": "GPUs that the driver shows", "count": gpus()}
    yield {"what": f"doctor, policy.device = {kind}", "says": check_device(kind).found}
    chosen = device_named("auto").type
    if settings.on_gpu and chosen != "cuda":
        raise AssertionError(f"policy.device = 'auto' takes {chosen!r} on a machine with a GPU")
    yield {"what": "policy.device = auto", "takes": chosen}
    policy = random_policy(settings, settings.sizes[0])
    config = Config.with_overrides({"engine.backend": "vllm"})
    yield {"what": "an engine of its own sees", "says": str(of_engines(config, policy))}
    let_go()


def ranks(settings: Settings) -> Iterator[Row]:
    """The learner over two ranks: GPUs with NCCL, or processes with gloo where there is none."""
    import torch

    if settings.on_gpu and torch.cuda.device_count() < RANKS:
        raise SkippedError("takes two GPUs")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        size = "smoke" if settings.smoke else "whole"
        done = subprocess.run(
            [sys.executable, *launcher, str(PROGRAM), str(out), settings.device, size],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not out.exists():
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        yield from json.loads(out.read_text(encoding="utf-8"))
