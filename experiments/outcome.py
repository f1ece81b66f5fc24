"""What came out of an experiment, on the terminal."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.options import print_json

if TYPE_CHECKING:
    from rich.table import Table


def tell(root: Path, table: Table, json: bool) -> None:
    """Print what came out of an experiment."""
    from node.monitor.record import Terminal

    if json:
        print_json(loads((root / "results.json").read_text()))
        return
    console = Terminal()
    console.print(table)
    console.print(f"the tables are in {root / 'table.md'}, the chart is {root / 'chart.png'}")
