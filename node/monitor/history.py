"""The rounds of a run: reading, thinning, tables and charts of their records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from node.errors import NodeError
from node.monitor.output import printable
from node.monitor.record import RoundRecord, bar_row, bars_for, figure_columns
from node.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class GrowingLines:
    """A reader of each whole line once, or all again if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None
        self._offset = 0

    def new(self) -> tuple[Iterator[bytes], bool]:
        """Return the lines added since the last call, and whether all come again.

        Consume the lines before the next call. Raises NodeError if the file cannot be read.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            replaced = self._read is not None
            self._read, self._offset = None, 0
            return iter(()), replaced
        except OSError as error:
            remedy = "Run the command as the user of the node, or as root."
            raise NodeError(f"cannot read ({error.strerror})", self._path, remedy) from error
        state = os.fstat(file.fileno())
        file_id = state.st_dev, state.st_ino
        replaced = file_id != self._read or state.st_size < self._offset
        if replaced:
            self._read, self._offset = file_id, 0
        return self._lines(file), replaced

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        with file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line


def read_history(folder: Path) -> list[RoundRecord]:
    """Read a run's rounds in order, older ones thinned; later records count.

    The node may be running. Raises NodeError if a line is not a record or the file is unreadable.
    """
    history: list[RoundRecord] = []
    for record in read_records(folder):
        while history and history[-1].round >= record.round:
            history.pop()
        history.append(record)
    return history


def read_records(folder: Path) -> list[RoundRecord]:
    """Read all records, also of repeated rounds; raise as :func:`read_history`."""
    run, records = RunFolder(folder), list[RoundRecord]()
    run.check()
    lines, _ = GrowingLines(run.metrics).new()
    for number, line in enumerate(lines, 1):
        try:
            records.append(parsed(line))
        except ValueError as error:
            problem = f"line {number} is not a record of a round"
            remedy = "Delete that line; the other lines do not depend on it."
            raise NodeError(problem, run.metrics, remedy) from error
    return records


def parsed(line: bytes) -> RoundRecord:
    """Parse the record of one line; raise ValueError if it is not a record."""
    try:
        record = RoundRecord.from_dict(json.loads(line, parse_int=_integer))
        return _RECORD.validate_python(record.to_dict())
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a record") from error


_RECORD = TypeAdapter(RoundRecord)


def _integer(digits: str) -> int:
    if len(digits) > 19:
        raise ValueError("a number is too large")
    return int(digits)


SMOOTHED_OVER = 20  # the default smoothing window is all rounds divided by this


@dataclass(frozen=True, slots=True)
class Measure:
    title: str  # name and unit, for people
    of: Callable[[RoundRecord], float | None]  # None if the round did not measure it
    style: str = ".3f"  # as for ``format``


def _peer_share(record: RoundRecord) -> float | None:
    groups = record.groups_local + record.groups_external
    return record.groups_external / groups if groups else None


MEASURES = (
    Measure("reward, local", lambda r: r.reward_local),
    Measure("reward, held-out", lambda r: r.reward_eval),
    Measure("reward, peers", lambda r: r.reward_external),
    Measure("peer share", _peer_share),
    Measure("informative share", lambda r: r.informative_local),
    Measure("entropy, nats", lambda r: r.entropy),
    Measure("tokens/s", lambda r: r.tokens_per_s, ",.0f"),
    Measure("seconds per round", lambda r: r.seconds.get("total"), ",.2f"),
    Measure("tokens per completion", lambda r: r.mean_length, ",.1f"),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure by round: ``values[i]`` belongs to ``rounds[i]``; rounds ascend."""

    rounds: NDArray[np.float64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, points: Sequence[tuple[int, float]]) -> Curve:
        pairs = np.array(points, np.float64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])

    @classmethod
    def measured(cls, measure: Measure, history: Sequence[RoundRecord]) -> Curve:
        points = ((record.round, measure.of(record)) for record in history)
        return cls.of([(number, value) for number, value in points if value is not None])

    def smoothed(self, window: float) -> Curve:
        """Average each value over those within the ``window`` rounds around it."""
        if not len(self.rounds):
            return self
        first = np.searchsorted(self.rounds, self.rounds - window / 2, "right")
        end = np.searchsorted(self.rounds, self.rounds + window / 2, "right")
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        return Curve(self.rounds, (sums[end] - sums[first]) / (end - first))

    def at(self, rounds: NDArray[np.float64]) -> list[float | None]:
        """Interpolate linearly at these rounds; ``None`` outside the measured range."""
        if not len(self.rounds):
            return [None] * len(rounds)
        inside = (self.rounds[0] <= rounds) & (rounds <= self.rounds[-1])
        values = np.interp(rounds, self.rounds, self.values)
        return [float(v) if is_in else None for v, is_in in zip(values, inside, strict=True)]


def window_for(histories: Sequence[Sequence[RoundRecord]]) -> int:
    return max(1, max(history[-1].round for history in histories) // SMOOTHED_OVER)


class Line(NamedTuple):
    """The facts about a record that thinning uses."""

    number: int  # of the line in its file
    round: int
    evaluated: bool  # whether it has a held-out reward, which few rounds have
    size: int  # bytes


def thinned(lines: Sequence[Line], most: int) -> list[Line]:
    """Return the lines to keep, which take at most ``most`` bytes.

    All of the newest rounds stay. Every 2nd round up to twice as old stays, up to four times as
    old every 4th, and so on, preferably evaluated ones. The first round and two lines per doubling
    always stay; repeated rounds do not. Repeated thinning removes nothing that thinning once would
    keep for longer.
    """
    records: list[Line] = []
    for line in lines:
        while records and records[-1].round >= line.round:  # the later line counts
            records.pop()
        records.append(line)
    selected = records
    recent = records[-1].round - records[0].round + 1 if records else 1
    while recent > 1 and sum(line.size for line in selected) > most:
        recent //= 2
        selected = _sample(records, recent)
    return selected


def _sample(records: Sequence[Line], recent: int) -> list[Line]:
    """Choose one line per stretch of rounds; the length doubles when the age doubles."""
    newest = records[-1].round
    stretches: dict[tuple[int, int], Line] = {}
    for line in records:
        level = ((newest - line.round) // recent).bit_length()
        stretch = level, line.round >> level
        if not stretches.setdefault(stretch, line).evaluated and line.evaluated:
            stretches[stretch] = line
    return list(stretches.values())


COLOURS = ("blue", "dark_orange", "green", "red", "magenta", "yellow", "cyan", "white")
WIDEST = 64  # maximum bars in a line
NARROWEST = 12
FIGURES = 48  # columns for names of measures and figures, beside the bars
LONGEST_NAME = 24


def run_table(runs: Mapping[str, Sequence[RoundRecord]], window: int, console: Console) -> Table:
    """Make a table of runs: one line per measure and run, one scale per measure.

    ``window`` is in rounds. ``console`` determines the bars; print the table on it.
    """
    name_width = max(min(cell_len(name), LONGEST_NAME) for name in runs) + 2 if len(runs) > 1 else 0
    begin = min(history[0].round for history in runs.values())
    end = max(history[-1].round for history in runs.values())
    bar_width = max(console.width - FIGURES - name_width, NARROWEST)
    rounds = np.linspace(begin, end, min(bar_width, WIDEST, end - begin + 1))
    window = max(window, round((rounds[-1] - rounds[0]) / len(rounds)))
    columns = [Column("", no_wrap=True)]
    columns += [Column("run", overflow="fold", max_width=LONGEST_NAME)] if name_width else []
    columns += [Column(f"rounds {rounds[0]:.0f} to {rounds[-1]:.0f}", no_wrap=True)]
    columns += figure_columns("first", "last", "highest")
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for measure in MEASURES:
        raw_curves = {name: Curve.measured(measure, history) for name, history in runs.items()}
        curves = {name: curve.smoothed(window) for name, curve in raw_curves.items()}
        peak = max((float(c.values.max()) for c in curves.values() if len(c.values)), default=0.0)
        for index, (name, curve) in enumerate(curves.items()):
            style = COLOURS[index % len(COLOURS)] if name_width else ""
            label = Text(measure.title if index == 0 else "")
            cells = [label, *([Text(name, style)] if name_width else [])]
            bars = Text(bar_row(curve.at(rounds), peak, bars_for(console)), style)
            table.add_row(*cells, bars, *_figures(measure, curve))
        if name_width:
            table.add_section()
    return table


def _figures(measure: Measure, curve: Curve) -> list[str]:
    values = curve.values
    figures = [values[0], values[-1], values.max()] if len(values) else []
    return [format(float(figure), measure.style) for figure in figures]


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure, in inches, outside matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


ENDINGS = (".png", ".svg", ".pdf")  # file formats of a chart
COLUMNS = 3
CYCLE = 10  # colors that are easy to distinguish
FEW = 24  # up to this many points are marked, because few points make a faint line


def draw_runs(
    runs: Mapping[str, Sequence[RoundRecord]],
    window: int,
    path: Path,
    measures: Sequence[Measure] = MEASURES,
) -> None:
    """Write a chart of runs to ``path``, which ends in one of :data:`ENDINGS`.

    ``window`` is in rounds. Raises OSError if the file cannot be written.
    """
    curves = {
        measure: {name: Curve.measured(measure, history) for name, history in runs.items()}
        for measure in measures
    }
    measures = [m for m in measures if any(len(c.rounds) for c in curves[m].values())]
    columns = max(1, min(COLUMNS, len(measures)))
    rows = max(1, -(-len(measures) // columns))
    figure = new_figure(4.2 * columns, 2.6 * rows + 0.6)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flat
    lines: list[Any] = []
    for axes, measure in zip(panels, measures, strict=False):
        lines = _panel(axes, curves[measure], window)
        axes.set_title(measure.title)
        axes.xaxis.set_tick_params(labelbottom=True)
    for axes in panels[len(measures) :]:
        axes.set_axis_off()
    figure.supxlabel(f"round (curves: mean of {window} rounds)" if window > 1 else "round")
    names = [_plain(name) for name in runs]
    figure.legend(lines, names, loc="outside upper center", ncols=min(len(runs), 6), frameon=False)
    figure.savefig(path, dpi=130)


def _panel(axes: Any, curves: Mapping[str, Curve], window: int) -> list[Any]:
    """Draw one measure, with one line per run; a run without values has an empty line."""
    from matplotlib import colormaps

    lines, count = [], len(curves)
    for index, curve in enumerate(curves.values()):
        colour = f"C{index}" if count <= CYCLE else colormaps["turbo"](index / (count - 1))
        smooth = curve.smoothed(window)
        if count == 1 and window > 1:
            axes.plot(curve.rounds, curve.values, color=colour, linewidth=0.7, alpha=0.3)
        mark = "." if len(curve.rounds) <= FEW else None
        lines += axes.plot(smooth.rounds, smooth.values, color=colour, marker=mark, linewidth=1.5)
    axes.grid(alpha=0.25)
    axes.set_ylim(bottom=0)
    return lines


def _plain(name: str) -> str:
    """Escape ``$`` (a formula in matplotlib) and a leading underscore (hidden)."""
    escaped = printable(name).replace("$", r"\$")
    return f"./{escaped}" if escaped.startswith("_") else escaped
