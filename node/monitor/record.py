"""The record of one round, its formatting, and the console that shows it."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from node.monitor.output import encodable, printable_lines

# Keys of :attr:`RoundRecord.seconds` in the order of a round; ``total`` is there too. If generation
# never stops, ``wait`` replaces ``generate``: the time until the local groups are complete.
PHASES = (
    *("generate", "wait", "verify", "publish", "mix"),
    *("update", "evaluate", "checkpoint", "idle"),
)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """The figures of one round; None if there was nothing to measure."""

    round: int  # number of the round in this run folder, from 1
    policy_step: int  # optimizer steps so far
    time: float  # unix time at the end of the round, seconds
    reward_local: float | None  # mean reward of local completions, 0 to 1
    reward_external: float | None = None  # mean, verified here, of the peer groups in the update
    reward_eval: float | None = None  # mean reward on held-out tasks, in rounds that evaluate
    informative_local: float | None = None  # fraction of local groups whose rewards differ, 0 to 1
    groups_local: int = 0  # local groups in the update
    groups_external: int = 0  # peer groups in the update
    external_wanted: int = 0  # peer groups that the update had room for
    # Peer groups in the update, and the usefulness of these groups together, as in
    # :attr:`node.learner.update_stats.UpdateStats.useful`, both by author (public key in hex).
    authors: Mapping[str, int] = field(default_factory=dict)
    useful: Mapping[str, float] = field(default_factory=dict)
    # Mean reward of local completions by ``family/level``.
    levels: Mapping[str, float] = field(default_factory=dict)
    author_share: float | None = None  # fraction of the update's groups from the peer with most
    unproven_share: float | None = None  # fraction of the update's groups from unproven authors
    pool_groups: int = 0  # groups in the replay buffer after the round
    tokens_generated: int = 0  # completion tokens sampled
    tokens_trained: int = 0  # tokens trained on: of informative groups, read by the correction
    # Sampled in the generate phase, or in the whole round if generation never stops.
    tokens_per_s: float | None = None
    mean_length: float | None = None  # tokens per completion
    truncated: float | None = None  # fraction of completions truncated by the length cap, 0 to 1
    # Time by phase (:data:`PHASES`), and ``total``.
    seconds: Mapping[str, float] = field(default_factory=dict)
    peer_advantage: float | None = None  # see :class:`swarm.peer_advantage.PeerAdvantage`
    cost_local: float | None = None  # mean seconds per informative local group
    cost_external: float | None = None  # mean seconds per proven author's group in an update
    # Of the update, as in :class:`node.learner.update_stats.UpdateStats`, up to ``learning_rate``;
    # all None without an optimizer step.
    loss: float | None = None
    entropy: float | None = None
    grad_norm: float | None = None
    largest_share: float | None = None
    groups_bounded: float | None = None
    at_bound: float | None = None
    clip_fraction: float | None = None
    masked_fraction: float | None = None
    ratio_low: float | None = None
    ratio_median: float | None = None
    ratio_high: float | None = None
    ratio_max: float | None = None
    logprob_mismatch: float | None = None
    learning_rate: float | None = None
    # Local tokens in the update by policy steps since they were sampled.
    staleness: Mapping[str, int] = field(default_factory=dict)
    peers: int = 0  # other known nodes of this swarm
    foreign_peers: int = 0  # connected nodes of other swarms
    bytes_in: int = 0  # payload bytes since the process started
    bytes_out: int = 0
    # Refused groups by reason, and all other counters, since the process started.
    refused: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    rss_mb: float = 0.0  # resident memory of this process and its children, MB of 10**6 bytes

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        values = ((name, getattr(self, name)) for name in _NAMES)
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RoundRecord:
        """Invert :meth:`to_dict`, without unknown keys and nulls in mappings."""
        kwargs = {name: values[name] for name in _NAMES if name in values}
        for name, value in kwargs.items():
            if isinstance(value, Mapping):
                kwargs[name] = {key: v for key, v in value.items() if v is not None}
        return cls(**kwargs)

    def scalars(self) -> dict[str, float]:
        """Return every measured figure by name.

        Phases are ``seconds_<phase>``, ages are ``staleness_<steps>``.
        """
        items = self.to_dict().items()
        figures = {name: float(value) for name, value in items if isinstance(value, int | float)}
        figures |= {f"seconds_{phase}": float(s) for phase, s in self.seconds.items()}
        return figures | {f"staleness_{steps}": float(n) for steps, n in self.staleness.items()}


_NAMES = tuple(each.name for each in fields(RoundRecord))


class Sink(Protocol):
    """A consumer of one record per round, called from one thread."""

    def write(self, record: RoundRecord) -> None:
        """Process one record."""

    def close(self) -> None:
        """Flush and release; may be called twice."""
        return


class Stopwatch:
    """A sum of wall-clock seconds by part; parts must not nest.

    ``tell`` is called with each part that begins before the first split.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._started = time.perf_counter()
        self._tell = tell

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the time spent inside the block to ``part``."""
        begin = time.perf_counter()
        if self._tell and part not in self._seconds:
            self._tell(part)
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - begin

    def split(self) -> dict[str, float]:
        """Return seconds by part since the last split, with ``idle`` and ``total``."""
        now = time.perf_counter()
        total, self._started = now - self._started, now
        self._tell = None
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return {**seconds, "idle": max(0.0, total - sum(seconds.values())), "total": total}


NONE = "–"


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean, None without values."""
    return sum(values) / len(values) if values else None


def rounded(value: float | None) -> float | None:
    """Round to four decimals; None for NaN and infinity, which JSON lacks."""
    return round(value, 4) if value is not None and math.isfinite(value) else None


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def number(value: float | None, form: str = ".0f") -> str:
    return NONE if value is None else format(value, form)


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def figure_columns(*names: str, no_wrap: bool = True) -> list[Column]:
    """Return the columns of figures, which are aligned to the right."""
    return [Column(name, justify="right", no_wrap=no_wrap) for name in names]


def short_ids(ids: Collection[str], least: int = 14) -> list[str]:
    """Shorten ids to distinct prefixes of one length, at least ``least``."""
    length, longest = least, max(map(len, ids), default=0)
    while length < longest and len({each[:length] for each in ids}) < len(set(ids)):
        length += 1
    return [each if len(each) <= length else f"{each[:length]}…" for each in ids]


def split(seconds: Mapping[str, float]) -> str:
    """Format the fractions of a round's time, largest first, omitting those below 1 %."""
    total = seconds.get("total") or sum(seconds.values()) or 1.0
    pairs = sorted(((seconds.get(phase, 0.0), phase) for phase in PHASES), reverse=True)
    texts = [f"{phase} {spent / total:.0%}" for spent, phase in pairs if spent / total >= 0.01]
    return ", ".join(texts) or NONE


def externals(record: RoundRecord) -> str:
    return f"{record.groups_external} of {record.external_wanted}"


def group_costs(record: RoundRecord) -> str:
    local, peers = number(record.cost_local, ".2g"), number(record.cost_external, ".2g")
    return f"{local} s per informative group, {peers} s per peer group"


def foreign_peers(record: RoundRecord) -> str:
    return f" ({record.foreign_peers} in another swarm)" if record.foreign_peers else ""


def refusals(refused: Mapping[str, int]) -> str:
    """Format refused groups by reason, most frequent first."""
    ordered = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count}" for reason, count in ordered) or "none"


def one_line(record: RoundRecord) -> str:
    parts = [
        f"round {record.round}",
        f"reward {share(record.reward_local)}",
        f"peers' reward {share(record.reward_external)} ({externals(record)})",
        f"informative {percent(record.informative_local)}",
        f"{number(record.tokens_per_s)} tokens/s",
        f"{record.seconds.get('total', 0.0):.2f} s",
        f"peers {record.peers}{foreign_peers(record)}",
        f"in {size(record.bytes_in)}, out {size(record.bytes_out)}",
    ]
    if record.cost_external is not None:
        parts.append(group_costs(record))
    if record.reward_eval is not None:
        parts.insert(2, f"held-out {share(record.reward_eval)}")
    return " | ".join(parts)


BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.:-=+*#"  # for encodings without the others


def bars_for(console: Console) -> str:
    """Return the bar characters that ``console`` can show."""
    try:
        BARS.encode(console.encoding)
    except UnicodeEncodeError:
        return PLAIN_BARS
    return BARS


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """Average ``values`` into at most ``width`` bars, from zero to their maximum."""
    if not values:
        return ""
    size = -(-len(values) // width)
    chunks = [values[i : i + size] for i in range(0, len(values), size)]
    means = [sum(chunk) / len(chunk) for chunk in chunks]
    return bar_row(means, max(means), bars)


def bar_row(values: Sequence[float | None], top: float, bars: str = BARS) -> str:
    """Draw one bar per value, from zero to ``top``; a blank for None."""
    highest = len(bars) - 1
    return "".join(
        " " if value is None else bars[round(max(0.0, value) / (top or 1.0) * highest)]
        for value in values
    )


LARGEST_WIDTH = 10_000
LEAST_WIDTH = 12  # minimum columns of a folded column with longer content


class Terminal(Console):
    """A rich console that shows strings literally: markup such as ``[/]`` would raise."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False)

    def render_str(self, text: str, **options: object) -> Text:
        # Before the widths of columns are measured.
        return super().render_str(encodable(printable_lines(text), self.encoding), **options)  # type: ignore[arg-type]

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable_lines(segment.text)
            yield segment._replace(text=text)

    def print_table(self, table: Table) -> None:
        """Print a table without truncating columns that do not wrap, unlike rich."""
        options = self.options.update(width=LARGEST_WIDTH)
        width = self.measure(table, options=options).maximum
        for column in table.columns:
            if not column.no_wrap:
                full_width = self._whole(column, options)
                column.min_width = min(full_width, LEAST_WIDTH)
                width -= full_width - column.min_width - 1  # rich may round each down by one
        old_width = self.width
        self.width = max(old_width, width)
        try:
            self.print(table)
        finally:
            self.width = old_width

    def _whole(self, column: Column, options: ConsoleOptions) -> int:
        cells = (column.header, *column.cells)
        widest = max(Measurement.get(self, options, cell).maximum for cell in cells)
        return widest if column.max_width is None else min(widest, column.max_width)
