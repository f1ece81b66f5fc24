"""Rollouts as people read them, in full or a line each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from node.monitor.printable import printable, printable_lines
from node.monitor.rollouts import ShownRollout, shortened
from node.monitor.words import share

AUTHOR_CHARACTERS = 16
"""Of a peer id, whose first eight are the same in all."""
LINES = 4
"""That one rollout takes in a panel."""


def heading(rollout: ShownRollout) -> str:
    """What is known of a rollout beside its texts, in one line."""
    author = f"external by {rollout.author[:AUTHOR_CHARACTERS]}…" if rollout.author else "own"
    cut = ", cut" if rollout.cut else ""
    task = f"{rollout.env} level {rollout.level}"
    return printable(
        f"round {rollout.round}, {author}, {task}, reward {share(rollout.reward)}{cut}"
    )


def in_full(rollouts: Sequence[ShownRollout]) -> RenderableType:
    """All of their texts. Every line of them is set in, so that none passes for a heading."""
    parts: list[RenderableType] = []
    for rollout in rollouts:
        texts = Table.grid(padding=(0, 2))
        texts.add_column(style="dim", no_wrap=True)
        texts.add_column(overflow="fold")
        texts.add_row("  prompt", Text(printable_lines(rollout.prompt)))
        texts.add_row("  completion", Text(printable_lines(rollout.completion)))
        parts += [Text(heading(rollout), "bold"), texts]
    return Group(*parts)


def in_lines(rollouts: Sequence[ShownRollout], width: int, height: int) -> RenderableType:
    """As many as fit into so many columns and lines, the newest first, each text in one line."""
    if not rollouts:
        return Text("no round is done yet")
    room = width - len("completion") - 2
    newest = list(reversed(rollouts))[: max(1, height // LINES)]
    parts: list[RenderableType] = []
    for rollout in newest:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        for name, text in (("prompt", rollout.prompt), ("completion", rollout.completion)):
            rows.add_row(name, Text(shortened(printable(text), room)))
        title = Text(heading(rollout), "bold", no_wrap=True, overflow="ellipsis")
        parts += [title, rows, Text()]
    return Group(*parts[:-1])
