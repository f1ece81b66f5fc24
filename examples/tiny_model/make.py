"""Makes the tiny models of node/models: ``python examples/tiny_model/make.py``.

The README beside this file says what they are and how the recipe works.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from node.policy.model_source import SHIPPED
from node.recipe.make import RECIPES, make, save
from node.recipe.measure import measure
from swarm.task_ref import Split

MODELS = Path(__file__).resolve().parents[2] / "node" / "models"
SEED = 2
MEASURED_TASKS = 64


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(RECIPES), help="make this one alone")
    parser.add_argument("--out", type=Path, default=MODELS, help="folder of the models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [options.only] if options.only else SHIPPED:
        say(f"{name}:")
        made = make(name, SEED, say)
        save(made, options.out / name)
        for split in Split:
            success = measure(
                made.model, made.tokenizer, split, MEASURED_TASKS, RECIPES[name].tasks
            )
            say(f"  {split.value}: {success.rate:.1%} right, {success.informative:.0%} informative")


if __name__ == "__main__":
    main()
