"""Results of a simulated swarm, and their tables, chart and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.table import Table

from experiments.scale.network import TrafficKind
from experiments.scale.settings import SCENARIOS, Settings
from node.monitor.history import new_figure
from swarm.member import TURNS_PER_EPOCH

WARM_UP = 2  # time slots until the DHT holds the records of two; means are over later ones
PATIENCE = 3.0  # time slots after which a node without a peer group counts as having found none


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One time slot; rates are means over the nodes that took part."""

    epoch: int  # number of the time slot, from 0
    nodes: int  # nodes that took part
    rpcs: tuple[float, ...]  # requests per node, by :class:`experiments.scale.network.TrafficKind`
    bytes: tuple[float, ...]  # bytes of these requests and their answers, by kind
    key_records: int  # maximum records under a key
    key_reads: int  # maximum reads of a key
    busiest: float  # maximum bytes of a node, requested and served, relative to the mean
    found: float  # fraction of nodes whose pool received a peer group
    crossed: float  # fraction of nodes that used a group from the other side of a split network
    authors: float  # authors in a pool before the learner uses it
    depth: float  # estimated depth of announcements
    cpu_ms: float  # CPU time of this process per node


@dataclass(frozen=True, slots=True)
class Waits:
    """Time slots from joining to the first peer group."""

    median: float | None  # over the nodes that received one
    worst: float | None
    never: int  # nodes without one after three time slots

    @classmethod
    def of(cls, waits: Sequence[float], never: int) -> Waits:
        return cls(median(waits) if waits else None, max(waits, default=None), never)


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of one run."""

    scenario: str  # name
    settings: Settings
    epochs: tuple[EpochFigures, ...]
    waits: Waits
    # Fraction of published groups that another node's learner used, without the last four time
    # slots, whose groups are still on offer; None if none is left.
    taken: float | None

    @property
    def counted(self) -> tuple[EpochFigures, ...]:
        """Return the time slots to average: all except the first two, if there are more."""
        return self.epochs[WARM_UP:] or self.epochs

    def rpcs(self, kind: TrafficKind) -> float:
        return fmean(epoch.rpcs[kind] for epoch in self.counted)

    def bytes(self, kind: TrafficKind) -> float:
        return fmean(epoch.bytes[kind] for epoch in self.counted)

    @property
    def key_records(self) -> int:
        return max(epoch.key_records for epoch in self.counted)

    @property
    def key_reads(self) -> int:
        return max(epoch.key_reads for epoch in self.counted)

    @property
    def busiest(self) -> float:
        return max(epoch.busiest for epoch in self.counted)

    @property
    def authors(self) -> float:
        return fmean(epoch.authors for epoch in self.counted)

    @property
    def depth(self) -> float:
        return self.epochs[-1].depth

    @property
    def mended(self) -> int | None:
        """Return the time slots after a heal until half of the nodes used groups of the other side.

        1 is the first one after the heal; None without a split, or if it did not happen.
        """
        parted = SCENARIOS[self.scenario].parted(self.settings)
        after = self.epochs[parted.stop :] if parted else ()
        return next((n for n, epoch in enumerate(after, 1) if epoch.crossed >= 0.5), None)

    @property
    def least_found(self) -> float:
        return min(epoch.found for epoch in self.counted)

    @property
    def cpu_ms(self) -> float:
        nodes = sum(epoch.nodes for epoch in self.counted)
        return sum(epoch.cpu_ms * epoch.nodes for epoch in self.counted) / nodes


NOTHING = "-"
CHANNELS = {TrafficKind.TABLE: "DHT", TrafficKind.GOSSIP: "gossip", TrafficKind.FRAMES: "frames"}


def _decimals(value: float | None, decimals: int = 1) -> str:
    return NOTHING if value is None else f"{value:.{decimals}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f} %"


def _worst(figures: Figures) -> str:
    waits = figures.waits
    worst = _decimals(waits.worst, 2)
    return f"{worst}, {waits.never} never" if waits.never else worst


# Per node and time slot unless the label names another unit.
ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("depth of announcements", lambda f: _decimals(f.depth)),
    *(
        (f"RPCs to {name}", lambda f, k=kind: _decimals(f.rpcs(k)))
        for kind, name in CHANNELS.items()
    ),
    *(
        (f"KB of {name}", lambda f, k=kind: _decimals(f.bytes(k) / 1000))
        for kind, name in CHANNELS.items()
    ),
    ("busiest key: records", lambda f: str(f.key_records)),
    ("busiest key: reads", lambda f: str(f.key_reads)),
    ("busiest node, bytes / mean", lambda f: _decimals(f.busiest, 2)),
    ("first peer group, time slots: median", lambda f: _decimals(f.waits.median, 2)),
    ("first peer group, time slots: maximum", _worst),
    ("nodes with new peer groups, minimum", lambda f: _percent(f.least_found)),
    ("published groups that were used", lambda f: _percent(f.taken)),
    ("authors in a pool", lambda f: _decimals(f.authors)),
    ("CPU time of the simulation, ms", lambda f: _decimals(f.cpu_ms, 2)),
)
MENDED = "time slots from merge to groups across"


def summary(runs: Sequence[Figures]) -> Table:
    scenario = SCENARIOS[runs[0].scenario]
    table = Table(box=None, pad_edge=False)
    table.add_column("per node and time slot")
    for figures in runs:
        table.add_column(f"{figures.settings.nodes:,}", justify="right")
    for label, cell in ROWS:
        table.add_row(label, *map(cell, runs))
    if scenario.cut:
        table.add_row(MENDED, *(NOTHING if f.mended is None else str(f.mended) for f in runs))
    return table


def course(figures: Figures) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("time slot", "nodes", "found groups", "across the split", "KB", "RPCs"):
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
    """Return how the simulation differs from a node with the default configuration."""
    return (
        f"{settings.epochs} time slots of a minute, seed {settings.seed}. A member takes "
        f"{settings.turns} of a real one's {TURNS_PER_EPOCH} turns per time slot, pulls up to "
        f"{settings.pulls} frames of {settings.groups} short group(s), and has "
        f"{settings.connections} connections. Verifier and learner are stubs; the cost of DHT "
        "calls is modeled. Bytes are those of a node's requests and their answers."
    )


TOTALS = (
    *("key_records", "key_reads", "busiest", "authors", "depth", "least_found", "mended", "cpu_ms"),
)


def as_json(figures: Figures) -> dict[str, Any]:
    kinds = {kind.name.lower(): kind for kind in TrafficKind}
    return {
        **asdict(figures),
        "rpcs": {name: figures.rpcs(kind) for name, kind in kinds.items()},
        "bytes": {name: figures.bytes(kind) for name, kind in kinds.items()},
        **{name: getattr(figures, name) for name in TOTALS},
    }


STYLES = {TrafficKind.TABLE: "-", TrafficKind.GOSSIP: "--", TrafficKind.FRAMES: ":"}


def draw(runs: Sequence[Figures], path: Path) -> None:
    """Draw these runs, sorted by scenario; the file ending selects the format."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    for number, (name, group) in enumerate(groupby(runs, lambda run: run.scenario)):
        _spent(left, name, list(group), f"C{number}")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("nodes")
    left.set_title("KB per node and time slot (- DHT, -- gossip, : frames)")
    for run in runs:
        shares = [100 * epoch.found for epoch in run.epochs]
        label = f"{run.scenario}, {run.settings.nodes:,}"
        right.plot(range(1, len(shares) + 1), shares, label=label, linewidth=1.4)
    right.set_xlabel("time slot")
    right.set_ylim(0, 105)
    right.set_title("% of nodes that received peer groups in a time slot")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)


def _spent(axes: Any, name: str, runs: Sequence[Figures], color: str) -> None:
    sizes = [run.settings.nodes for run in runs]
    for kind, style in STYLES.items():
        spent = [run.bytes(kind) / 1000 for run in runs]
        label = name if kind is TrafficKind.TABLE else None
        axes.plot(sizes, spent, style, color=color, marker="o", markersize=3, label=label)
