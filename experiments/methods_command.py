"""``python -m experiments methods``: what published methods are worth in a swarm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.options import Folder, Seeds, Vary, Workers
from experiments.outcome import tell
from node.cli.options import DebugOption, JsonOption

MOST_SEED = 1_000_000_000
"""Numbers of more than 32 bits are no seeds to what draws with them."""


def methods(
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="A method to run, see docs/experience.md; may be repeated. Left out: all, or "
            "what --vary says alone.",
            show_default=False,
        ),
    ] = None,
    vary: Vary = None,
    answers: Annotated[
        str | None,
        typer.Option(
            "--answers",
            metavar="short|long",
            help="How long answers are: of a few tokens, or with their working, of some dozens. "
            "Left out: both.",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = 5,
    first_seed: Annotated[
        int,
        typer.Option(
            "--first-seed", min=0, max=MOST_SEED, help="The first of the seeds, as for fresh ones."
        ),
    ] = 0,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help="Rounds of each node. Left out: 150, or 80 with long answers.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = 0,
    run_dir: Folder = Path("experiment-run/methods"),
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare published methods with how nodes train by default.

    Each sets some keys of the configuration of all eight nodes, which are equal otherwise; at equal
    rounds, generated tokens and CPU time.
    """
    from experiments.answers import ANSWERS, answers_of
    from experiments.method_report import possible, run_methods, table
    from experiments.methods import ROUNDS, methods_of
    from experiments.settings import Settings
    from node.monitor.record import Terminal

    chosen = methods_of(names, vary)
    screen = Terminal(stderr=True)
    if not names and not vary:
        chosen = possible(chosen, screen)
    lengths = (answers_of(answers, ROUNDS),) if answers else tuple(ROUNDS)
    settings = {
        length: Settings(
            rounds=rounds or ROUNDS[length],
            model=ANSWERS[length].recipe,
            bury=ANSWERS[length].buried,
            answers=length,
        )
        for length in lengths
    }
    which = range(first_seed, first_seed + seeds)
    worths = run_methods(settings, chosen, which, workers, run_dir, screen)
    tell(run_dir, table(settings, chosen, worths), json)
