"""What a swarm run came to: one row a node, and the means over all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from node.monitor.record import RoundRecord, number
from swarm.common.util import counted


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """A node's run. First and last are means over the first and last tenth of its rounds, or None
    where nothing was measured in any."""

    name: str
    peer_id: str
    model: str
    rounds: int
    reward_first: float | None
    reward_last: float | None
    eval_first: float | None
    eval_last: float | None
    groups_own: int
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
        """One JSON object."""
        return json.dumps(asdict(self))


def summarise_node(
    name: str, peer_id: str, model: str, records: Sequence[RoundRecord]
) -> NodeSummary:
    """Fold a node's records; at least one is needed."""
    rewards, evaluations = known(records, "reward_own"), known(records, "reward_eval")
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
        groups_own=sum(r.groups_own for r in records),
        groups_external=sum(r.groups_external for r in records),
        groups_refused=dict(last.refused),
        bytes_in=last.bytes_in,
        bytes_out=last.bytes_out,
        rss_mb=max(r.rss_mb for r in records),
    )


def summarise_swarm(
    swarm_id: str, nodes: Sequence[NodeSummary], wall_s: float, chart: Path
) -> SwarmSummary:
    """Join the nodes' summaries."""
    return SwarmSummary(
        swarm_id=swarm_id,
        nodes=tuple(nodes),
        reward_first=_over(n.reward_first for n in nodes),
        reward_last=_over(n.reward_last for n in nodes),
        eval_first=_over(n.eval_first for n in nodes),
        eval_last=_over(n.eval_last for n in nodes),
        wall_s=round(wall_s, 1),
        chart=str(chart),
    )


def table(summary: SwarmSummary) -> Table:
    """The summary as people read it, within 80 columns."""
    title = f"swarm {summary.swarm_id[:12]}: {_rounds(summary)} in {summary.wall_s:.0f} s"
    out = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    out.add_column("node")
    out.add_column("model")
    for column in ("reward", "held-out", "own", "external"):
        out.add_column(column, justify="right", no_wrap=True)
    out.add_column("refused")
    out.add_column("kB in/out", justify="right", no_wrap=True)
    for node in summary.nodes:
        refused = ", ".join(f"{n} {why}" for why, n in node.groups_refused.items()) or "0"
        out.add_row(
            node.name,
            node.model,
            _change(node.reward_first, node.reward_last),
            _change(node.eval_first, node.eval_last),
            str(node.groups_own),
            str(node.groups_external),
            refused,
            f"{node.bytes_in / 1e3:.0f}/{node.bytes_out / 1e3:.0f}",
        )
    out.add_section()
    out.add_row(
        "mean",
        "",
        _change(summary.reward_first, summary.reward_last),
        _change(summary.eval_first, summary.eval_last),
    )
    return out


def _rounds(summary: SwarmSummary) -> str:
    done = sorted({node.rounds for node in summary.nodes})
    return counted(done[0], "round") if len(done) == 1 else f"{done[0]} to {done[-1]} rounds"


def _change(first: float | None, last: float | None) -> str:
    return f"{number(first, '.2f')} → {number(last, '.2f')}"


def _over(values: Iterable[float | None]) -> float | None:
    return mean([value for value in values if value is not None])


def known(records: Sequence[RoundRecord], figure: str) -> list[float]:
    """What the records say of a figure, those left out that did not measure it."""
    return [value for each in records if (value := getattr(each, figure)) is not None]


def tenth(values: Sequence[float]) -> int:
    """How many values a tenth is, at least one."""
    return max(1, len(values) // 10)


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean; None of nothing."""
    return sum(values) / len(values) if values else None
