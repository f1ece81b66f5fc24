"""Which checkpoint a command is about."""

from __future__ import annotations

from typing import Annotated

import typer

from node.errors import UsageError

StepOption = Annotated[
    int | None,
    typer.Option(
        "--step",
        help="The checkpoint after so many policy steps. Left out: the newest.",
        show_default=False,
    ),
]
BestOption = Annotated[
    bool, typer.Option("--best", help="The checkpoint of the best held-out reward.")
]


def check_choice(step: int | None, best: bool, model: str | None = None) -> None:
    """Refuse to choose twice.

    Raises:
        UsageError: more than one of --model, --step and --best is given.
    """
    given = {"--model": model, "--step": step}
    named = [f"{option} {value}" for option, value in given.items() if value is not None]
    named += ["--best"] if best else []
    if len(named) > 1:
        raise UsageError("one choice too many", " and ".join(named), "Leave all but one out.")
