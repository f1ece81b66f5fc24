"""``python -m experiments make-models``: the tiny models of ``node/models``.

examples/tiny_model/README.md says what they are and how the recipe works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import DebugOption
from node.errors import UsageError
from node.monitor.output import say

MODELS = Path(__file__).resolve().parents[1] / "node" / "models"
SEED = 2
MEASURED_TASKS = 64


def make_models(
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAME", help="Make this one. Left out: all that ship."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the models.", show_default="node/models")
    ] = MODELS,
    debug: DebugOption = False,
) -> None:
    """Make the tiny models that ship, and measure them: ten minutes."""
    import torch

    from experiments.recipe.make import RECIPES, make, save
    from experiments.recipe.measure import measure
    from node.policy.model_source import SHIPPED
    from swarm.groups import Split

    if only is not None and only not in RECIPES:
        raise UsageError("--only", only, f"Name one of {', '.join(sorted(RECIPES))}.")
    torch.set_num_threads(1)
    for name in [only] if only else SHIPPED:
        say(f"{name}:")
        made = make(name, SEED, say)
        save(made, out / name)
        for split in Split:
            success = measure(
                made.model, made.tokenizer, split, MEASURED_TASKS, RECIPES[name].tasks
            )
            say(f"  {split.value}: {success.rate:.1%} right, {success.informative:.0%} informative")
