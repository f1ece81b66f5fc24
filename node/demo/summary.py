"""The demo swarm's summary and live view."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from node.monitor.record import (
    RoundRecord,
    bars_for,
    figure_columns,
    mean,
    number,
    percent,
    share,
    sparkline,
)
from swarm.common.util import counted, plain_json


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """A node's run; first and last are means over that tenth of rounds, or None."""

    name: str
    peer_id: str
    model: str
    rounds: int
    reward_first: float | None
    reward_last: float | None
    eval_first: float | None
    eval_last: float | None
    groups_local: int
    groups_external: int
    groups_refused: dict[str, int]
    bytes_in: int
    bytes_out: int
    rss_mb: float


@dataclass(frozen=True, slots=True)
class SwarmSummary:
    """The whole run; rewards are means over the nodes, seconds are wall clock."""

    swarm_id: str
    nodes: tuple[NodeSummary, ...]
    reward_first: float | None
    reward_last: float | None
    eval_first: float | None
    eval_last: float | None
    wall_s: float
    chart: str

    def as_json(self) -> str:
        return plain_json(asdict(self))


def summarise_node(
    name: str, peer_id: str, model: str, records: Sequence[RoundRecord]
) -> NodeSummary:
    """Summarize a node's records, at least one."""
    rewards, evaluations = known(records, "reward_local"), known(records, "reward_eval")
    last = records[-1]
    return NodeSummary(
        name=name,
        peer_id=peer_id,
        model=model,
        rounds=last.round,
        reward_first=mean(rewards[: tenth(rewards)]),
        reward_last=mean(rewards[-tenth(rewards) :]),
        eval_first=mean(evaluations[: tenth(evaluations)]),
        eval_last=mean(evaluations[-tenth(evaluations) :]),
        groups_local=sum(r.groups_local for r in records),
        groups_external=sum(r.groups_external for r in records),
        groups_refused=dict(last.refused),
        bytes_in=last.bytes_in,
        bytes_out=last.bytes_out,
        rss_mb=max(r.rss_mb for r in records),
    )


def summarise_swarm(
    swarm_id: str, nodes: Sequence[NodeSummary], wall_s: float, chart: Path
) -> SwarmSummary:
    def over(name: str) -> float | None:
        return mean([value for node in nodes if (value := getattr(node, name)) is not None])

    rewards = over("reward_first"), over("reward_last")
    evaluations = over("eval_first"), over("eval_last")
    wall_s = round(wall_s, 1)
    return SwarmSummary(swarm_id, tuple(nodes), *rewards, *evaluations, wall_s, str(chart))


def table(summary: SwarmSummary) -> Table:
    done = sorted({node.rounds for node in summary.nodes})
    rounds = counted(done[0], "round") if len(done) == 1 else f"{done[0]} to {done[-1]} rounds"
    title = f"swarm {summary.swarm_id[:12]}: {rounds} in {summary.wall_s:.0f} s"
    groups = figure_columns("reward", "held-out", "local\ngroups", "peer\ngroups")
    columns: list[Column | str] = ["node", "model", *groups, "refused"]
    columns += figure_columns("kB in/out")
    result = Table(*columns, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for node in summary.nodes:
        refusals = ", ".join(f"{n} {reason}" for reason, n in node.groups_refused.items()) or "0"
        result.add_row(
            node.name,
            node.model,
            _change(node.reward_first, node.reward_last),
            _change(node.eval_first, node.eval_last),
            str(node.groups_local),
            str(node.groups_external),
            refusals,
            f"{node.bytes_in / 1e3:.0f}/{node.bytes_out / 1e3:.0f}",
        )
    result.add_section()
    rewards = _change(summary.reward_first, summary.reward_last)
    result.add_row("mean", "", rewards, _change(summary.eval_first, summary.eval_last))
    return result


def _change(first: float | None, last: float | None) -> str:
    return f"{number(first, '.2f')} → {number(last, '.2f')}"


def known(records: Sequence[RoundRecord], figure: str) -> list[float]:
    return [value for each in records if (value := getattr(each, figure)) is not None]


def tenth(values: Sequence[float]) -> int:
    return max(1, len(values) // 10)


POINTS = 16
RECENT = 10  # rounds that a figure averages
AROUND = 12  # terminal lines without a node: how to join and look, the table's head, progress
HEADINGS = "round", "reward", "peers'\nreward", "held-out", "informa-\ntive", "peer\ngroups"
LINE_SECONDS = 5.0  # minimum between two lines without a terminal

Records = Mapping[str, Sequence[RoundRecord]]  # latest rounds by node name


class SwarmView:
    """A view of the nodes' records; ``rounds`` is 0 without end."""

    def __init__(self, rounds: int, nodes: int, console: Console) -> None:
        self._rounds = rounds
        self._console = console
        self._progress = Progress(
            TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("rounds", total=rounds * nodes or None)
        self._printed, self._looked = "", float("-inf")

    @contextmanager
    def shown(self) -> Iterator[Callable[[Records], None]]:
        """Yield a function that shows records: a live table, or now and then a new line."""
        if not self._console.is_terminal:
            yield self._print_new
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            yield lambda records: live.update(self.render(records), refresh=True)

    def _print_new(self, records: Records) -> None:
        if time.monotonic() - self._looked < LINE_SECONDS:
            return
        self._looked = time.monotonic()
        if (line := self.line(records)) != self._printed:
            self._printed = line
            self._console.print(line, soft_wrap=True)

    def render(self, records: Records) -> RenderableType:
        """Return the table of as many nodes as fit below the earlier output."""
        self._progress.update(self._task, completed=sum(r[-1].round for r in records.values() if r))
        columns = [*figure_columns(*HEADINGS), Column("reward by round", no_wrap=True)]
        table = Table("node", *columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        limit = max(1, self._console.height - AROUND)
        for name, rows in list(records.items())[:limit]:
            table.add_row(name, *(self._cells(rows) if rows else ["starting"]))
        if len(records) > limit:
            table.add_row(f"{len(records) - limit} more")
        return Group(table, self._progress)

    def line(self, records: Records) -> str:
        histories = [rows for rows in records.values() if rows]
        running = f"{len(histories)} of {len(records)} running"
        if not histories:
            return f"starting | {running}"
        rounds = sorted(rows[-1].round for rows in histories)
        total = f" of {self._rounds}" if self._rounds else ""
        recent = [record for rows in histories for record in rows[-RECENT:]]
        evaluated = [record for rows in histories if (record := _last_evaluated(rows))]
        return " | ".join(
            [
                f"rounds {rounds[0]} to {rounds[-1]}{total}",
                f"reward {share(mean(known(recent, 'reward_local')))}",
                f"peers' reward {share(mean(known(recent, 'reward_external')))} ({_taken(recent)})",
                f"held-out {share(mean(known(evaluated, 'reward_eval')))}",
                running,
            ]
        )

    def _cells(self, rows: Sequence[RoundRecord]) -> list[str]:
        recent, evaluated = rows[-RECENT:], _last_evaluated(rows)
        return [
            str(rows[-1].round),
            share(mean(known(recent, "reward_local"))),
            share(mean(known(recent, "reward_external"))),
            share(evaluated.reward_eval if evaluated else None),
            percent(mean(known(recent, "informative_local"))),
            _taken(recent),
            sparkline(known(rows, "reward_local"), POINTS, bars_for(self._console)),
        ]


def _last_evaluated(rows: Sequence[RoundRecord]) -> RoundRecord | None:
    return next((record for record in reversed(rows) if record.reward_eval is not None), None)


def _taken(recent: Sequence[RoundRecord]) -> str:
    average = fmean(record.groups_external for record in recent)
    return f"{average:.1f} of {fmean(record.external_wanted for record in recent):.0f}"
