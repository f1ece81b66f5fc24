"""How much of a training step is work that cannot be avoided, for a node and for TRL.

Efficiency is (bare generate + bare forward, backward and optimizer on the same tensors) divided
by the whole step. The node's bare generate is its own engine, so a fast engine does not flatter
it; TRL's is ``transformers.generate``. The node's bare training reads a prompt once where its
learner does; TRL's has a padded row for every completion, prompt included. ``by_generate`` puts
TRL's yardsticks in the place of the node's. Both train the same model on as many completions of as
many tokens, in turns. ``shared_prompts_over_padded_rows`` is the time of the node's bare training
over that of TRL's: 1 where completions are so long that sharing prompts does not pay. Run it as
``python benchmarks/step.py [--model tiny] [--tokens 4] [--json]``.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from options import arguments
from output import show

from node import threads

WARM_UP = 2


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Seconds of every part, one row a turn. A node's turn runs between two steps of TRL's."""
    from node_step import NodeStep
    from policies import endless_policy
    from transformers import TrainerCallback

    policy = endless_policy(options.model)
    model = copy.deepcopy(policy.model)
    node = NodeStep(policy, folder, options.prompts, options.completions, options.tokens)
    turns: list[dict[str, float]] = []

    class Turn(TrainerCallback):
        begin = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.append(
                {
                    "trl": time.perf_counter() - self.begin,
                    "node": node.whole(),
                    "sampling": node.bare_sampling(),
                    "generate": node.bare_generate(),
                    "training": node.bare_training(),
                    "padded": node.bare_padded_training(),
                }
            )

    trainer = trl_trainer(options, model, policy.tokenizer, folder)
    trainer.add_callback(Turn())
    with node:
        trainer.train()
    return turns[WARM_UP:]


def trl_trainer(
    options: argparse.Namespace, model: Any, tokenizer: Any, folder: Path, *, on_gpu: bool = False
) -> Any:
    """TRL's trainer on the same work, never stopping by itself either."""
    from datasets import Dataset
    from node_step import PROMPTS
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    rows = options.prompts * options.completions
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [float(i % 2) for i in range(len(completions))],
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=not on_gpu,
            bf16=on_gpu,
            beta=0.0,
            loss_type="dapo",
            gradient_checkpointing=False,
            per_device_train_batch_size=rows,
            num_generations=options.completions,
            max_completion_length=options.tokens,
            max_steps=options.turns + WARM_UP,
            generation_kwargs={"eos_token_id": model.config.vocab_size},
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    trainer.eos_token_ids = [model.config.vocab_size]
    trainer.remove_callback(PrinterCallback)
    return trainer


def summary(turns: list[dict[str, float]]) -> dict[str, float]:
    """Medians over the turns; every ratio is taken within its turn."""
    bare = [t["generate"] + t["padded"] for t in turns]
    own = [t["sampling"] + t["training"] for t in turns]
    ratios = {
        "node_efficiency": [b / t["node"] for b, t in zip(own, turns, strict=True)],
        "node_by_generate": [b / t["node"] for b, t in zip(bare, turns, strict=True)],
        "trl_efficiency": [b / t["trl"] for b, t in zip(bare, turns, strict=True)],
        "trl_step_over_node_step": [t["trl"] / t["node"] for t in turns],
        "shared_prompts_over_padded_rows": [t["training"] / t["padded"] for t in turns],
    }
    medians = {f"{name}_s": median(t[name] for t in turns) for name in turns[0]}
    return {name: round(value, 4) for name, value in medians.items()} | {
        name: round(median(values), 2) for name, values in ratios.items()
    }


def main() -> None:
    options = arguments(__doc__)
    threads.choose(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        result = summary(measure(options, Path(folder)))
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
