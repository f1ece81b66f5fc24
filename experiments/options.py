"""What the experiments are asked in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each run.")]
Rounds = Annotated[int, typer.Option("--rounds", min=2, help="Rounds of each node.")]
Long = Annotated[
    str,
    typer.Option(
        "--answers",
        metavar="short|long",
        help="How long answers are: of a few tokens, or with their working, of some dozens.",
    ),
]
What = Annotated[
    str,
    typer.Option(
        "--answers",
        metavar="short|long|games",
        help="What is answered: questions, in a few tokens or with their working, in some dozens; "
        "or games, in turns.",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="'KEY=VALUE ...'",
        help="Run the default beside the rest with some keys of the configuration set otherwise, "
        "such as 'mixture.local=8 mixture.target_groups=40'; may be repeated.",
        show_default=False,
    ),
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Processes side by side; 0: one a core.")
]
Folder = Annotated[
    Path,
    typer.Option("--run-dir", help="Folder of the experiment; one that was broken off goes on."),
]
