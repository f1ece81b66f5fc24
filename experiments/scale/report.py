"""Figures of simulated swarms for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from experiments.scale.figures import Figures
from experiments.scale.scenario import SCENARIOS
from experiments.scale.settings import Settings
from experiments.scale.tally import Kind
from swarm.member import TURNS_PER_EPOCH

NOTHING = "-"
WHERE = {Kind.TABLE: "hash table", Kind.GOSSIP: "gossip", Kind.FRAMES: "frames"}


def _decimals(value: float | None, decimals: int = 1) -> str:
    return NOTHING if value is None else f"{value:.{decimals}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f} %"


def _worst(figures: Figures) -> str:
    waits = figures.waits
    worst = _decimals(waits.worst, 2)
    return f"{worst}, {waits.never} never" if waits.never else worst


ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("depth of announcements", lambda f: _decimals(f.depth)),
    *((f"RPCs to {name}", lambda f, k=kind: _decimals(f.rpcs(k))) for kind, name in WHERE.items()),
    *(
        (f"KB of {name}", lambda f, k=kind: _decimals(f.bytes(k) / 1000))
        for kind, name in WHERE.items()
    ),
    ("busiest key: records", lambda f: str(f.key_records)),
    ("busiest key: reads", lambda f: str(f.key_reads)),
    ("busiest node, bytes by the mean", lambda f: _decimals(f.busiest, 2)),
    ("first outside group, epochs: median", lambda f: _decimals(f.waits.median, 2)),
    ("first outside group, epochs: worst", _worst),
    ("nodes with new outside groups, least", lambda f: _percent(f.least_found)),
    ("published groups that somebody used", lambda f: _percent(f.taken)),
    ("authors in a pool", lambda f: _decimals(f.authors)),
    ("CPU of the simulation, ms", lambda f: _decimals(f.cpu_ms, 2)),
)
"""Of a node and an epoch where nothing else is said."""
MENDED = "epochs from heal to groups across"


def summary(runs: Sequence[Figures]) -> Table:
    """The sizes of one scenario side by side."""
    scenario = SCENARIOS[runs[0].scenario]
    table = Table(box=None, pad_edge=False)
    table.add_column("a node and epoch")
    for figures in runs:
        table.add_column(f"{figures.settings.nodes:,}", justify="right")
    for label, cell in ROWS:
        table.add_row(label, *map(cell, runs))
    if scenario.cut:
        table.add_row(MENDED, *(NOTHING if f.mended is None else str(f.mended) for f in runs))
    return table


def course(figures: Figures) -> Table:
    """One run epoch by epoch."""
    table = Table(box=None, pad_edge=False)
    for name in ("epoch", "nodes", "found groups", "across the cut", "KB", "RPCs"):
        table.add_column(name, justify="right")
    for each in figures.epochs:
        table.add_row(
            str(each.epoch + 1),
            f"{each.nodes:,}",
            _percent(each.found),
            _percent(each.crossed),
            _decimals(sum(each.bytes) / 1000),
            _decimals(sum(each.rpcs)),
        )
    return table


def conditions(settings: Settings) -> str:
    """What was simulated otherwise than a node with the defaults of its configuration has it."""
    return (
        f"{settings.epochs} epochs of a minute, seed {settings.seed}. A member takes "
        f"{settings.turns} of a real one's {TURNS_PER_EPOCH} turns an epoch, pulls up to "
        f"{settings.pulls} frames of {settings.groups} short group(s), and is connected with "
        f"{settings.connections} peers. Judge and learner are stand-ins; the hash table's cost is "
        "modelled. Bytes are those of a node's own requests and their answers."
    )


def as_json(figures: Figures) -> dict[str, Any]:
    """Everything that there is to know of a run."""
    kinds = {kind.name.lower(): kind for kind in Kind}
    return {
        **asdict(figures),
        "rpcs": {name: figures.rpcs(kind) for name, kind in kinds.items()},
        "bytes": {name: figures.bytes(kind) for name, kind in kinds.items()},
        "key_records": figures.key_records,
        "key_reads": figures.key_reads,
        "busiest": figures.busiest,
        "authors": figures.authors,
        "depth": figures.depth,
        "least_found": figures.least_found,
        "mended": figures.mended,
        "cpu_ms": figures.cpu_ms,
    }
