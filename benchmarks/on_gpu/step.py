"""Whole steps: a node's round without the network, and TRL's, on the same model and lengths."""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from on_gpu.machine import forget_peak, peak_gb, wait
from on_gpu.models import FULL_BYTES, SHAPES, check_room, let_go, random_policy
from on_gpu.section import Row, Settings

WARM_UP = 1


def node(settings: Settings) -> Iterator[Row]:
    """A node's step, and the share of it that is generating and training and nothing else."""
    from node_step import NodeStep

    options = _options(settings)
    for size in settings.sizes[:2]:
        check_room(settings, SHAPES[size], 2 * FULL_BYTES)
        policy = random_policy(settings, size)
        forget_peak(settings.device)
        with tempfile.TemporaryDirectory() as folder:
            sides = options.prompts, options.completions, options.tokens
            keys = {"learner.micro_batch_tokens": 1 << 14}  # as `init` writes for a large GPU
            with NodeStep(policy, Path(folder), *sides, keys) as step:
                for _ in range(2):
                    step.whole()
                peak = peak_gb(settings.device)  # the bare work has a model of its own
                parts = [
                    (step.whole(), step.bare_sampling(), step.bare_generate(), step.bare_training())
                    for _ in range(WARM_UP + options.turns)
                ][WARM_UP:]
        means = (sum(each) / len(parts) for each in zip(*parts, strict=True))
        whole, sampling, generate, training = means
        yield {
            "what": f"{size} billion",
            "step_s": round(whole, 3),
            "efficiency": round((sampling + training) / whole, 2),
            "efficiency_by_generate": round((generate + training) / whole, 2),
            "peak_gb": peak,
        }
        del policy, step
        let_go()


def trl(settings: Settings) -> Iterator[Row]:
    """The step of TRL's ``GRPOTrainer`` on as many completions of as many tokens."""
    import step

    options = _options(settings)
    for size in settings.sizes[:2]:
        check_room(settings, SHAPES[size], 2 * FULL_BYTES)
        policy = random_policy(settings, size)
        took: list[float] = []
        forget_peak(settings.device)
        with tempfile.TemporaryDirectory() as folder:
            model = copy.deepcopy(policy.model)
            trainer = step.trl_trainer(
                options, model, policy.tokenizer, Path(folder), on_gpu=settings.on_gpu
            )

            trainer.add_callback(_timing(settings.device, took))
            trainer.train()
        timed = took[step.WARM_UP :]
        yield {
            "what": f"{size} billion",
            "step_s": round(sum(timed) / len(timed), 3),
            "peak_gb": peak_gb(settings.device),
        }
        del policy, model, trainer
        let_go()


def _timing(device: str, took: list[float]) -> Any:
    """Adds the seconds of every step of a trainer to ``took``."""
    from transformers import TrainerCallback

    class Timed(TrainerCallback):
        begin = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            wait(device)
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait(device)
            took.append(time.perf_counter() - self.begin)

    return Timed()


def _options(settings: Settings) -> argparse.Namespace:
    if settings.smoke:
        return argparse.Namespace(prompts=2, completions=2, tokens=8, turns=1)
    return argparse.Namespace(prompts=8, completions=8, tokens=128, turns=3)
