"""What a run came to: a table for people, and figures without dates for the record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.chaos.checks import Result
from tests.chaos.evidence import Evidence

SHOWN = 12
"""Violations printed of each kind."""


def summary(
    evidence: Evidence, results: Sequence[Result], settings: dict[str, Any]
) -> dict[str, Any]:
    """Events by kind and outcome, invariants with counts, heal times."""
    events: dict[str, Counter[str]] = {}
    for kind, outcome in evidence.rows("SELECT kind, outcome FROM events"):
        events.setdefault(kind, Counter())[outcome] += 1
    heals = [row[0] for row in evidence.rows("SELECT seconds FROM heals")]
    ends = Counter(row[0] for row in evidence.rows("SELECT how FROM lives"))
    return {
        **settings,
        "events": {kind: dict(sorted(n.items())) for kind, n in sorted(events.items())},
        "ends": dict(sorted(ends.items())),
        "heal_seconds": [None if s is None else round(s, 1) for s in heals],
        "not_seen": unseen(events, results),
        "invariants": {r.name: [r.checked, len(r.violations)] for r in results},
        "violations": sum(len(r.violations) for r in results),
    }


def unseen(events: Mapping[str, Mapping[str, int]], results: Sequence[Result]) -> list[str]:
    """What this run says nothing about: kinds of events none of which befell a node, with the
    reason, and invariants that nothing was there to check by."""
    missed = [
        f"{kind} ({', '.join(sorted(outcomes))})"
        for kind, outcomes in sorted(events.items())
        if not outcomes.get("done")
    ]
    return [*missed, *(result.name for result in results if not result.checked)]


def show(told: dict[str, Any], results: Sequence[Result], console: Console) -> None:
    """Print the table, and of each violated invariant the first violations."""
    events = Table("event", "outcome", "times", box=SIMPLE_HEAD)
    for kind, outcomes in told["events"].items():
        for outcome, times in outcomes.items():
            events.add_row(kind, outcome, str(times))
    console.print(events)
    invariants = Table("invariant", "checked", "violations", box=SIMPLE_HEAD)
    for result in results:
        colour = "red" if result.violations else ""
        invariants.add_row(
            result.name, str(result.checked), str(len(result.violations)), style=colour
        )
    console.print(invariants)
    for result in results:
        for line in result.violations[:SHOWN]:
            console.print(f"VIOLATED  {result.name}: {line}", soft_wrap=True, markup=False)
    for line in told["not_seen"]:
        console.print(f"NOT SEEN  {line}", style="bold yellow", soft_wrap=True, markup=False)


def keep(told: dict[str, Any], path: Path) -> None:
    """Replace the last result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n")
