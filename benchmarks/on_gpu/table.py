"""Results as markdown."""

from __future__ import annotations

from on_gpu.running import Result
from on_gpu.section import Row


def markdown(title: str, result: Result) -> str:
    """A section's rows under its title, and what became of it where it is not done."""
    lines = [f"## {title} (`{result.name}`, {result.seconds} s)", ""]
    if result.rows:
        lines += [*_table(result.rows), ""]
    if result.state != "done":
        lines += [f"{result.state}: {result.why}", ""]
    return "\n".join(lines)


def _table(rows: list[Row]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    return [_line(names), _line(["---"] * len(names)), *map(_line, cells)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/")
