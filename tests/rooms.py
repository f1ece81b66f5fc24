"""``python -m tests.rooms`` draws the rooms of the house into docs/architecture.md, from the
imports.

A room is a folder of ``experiments/``, ``node/`` or ``swarm/``, with what is in the folders below
it; ``protocol/`` is one room, and the modules that lie beside folders are one more of their
package.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.parsing import parse

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("experiments", "node", "swarm", "protocol")
BEGIN, END = "<!-- rooms: drawn by python -m tests.rooms -->", "<!-- end of rooms -->"


def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in sorted(paths)}


def room_of(module: str) -> str:
    """``node.engines.vllm_backend`` stands in ``node/engines``, ``swarm.pool`` in ``swarm``."""
    package, *rest = module.split(".")
    return f"{package}/{rest[0]}" if len(rest) > 1 and package != "protocol" else package


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The project's modules that a file imports, wherever in it."""
    found: set[str] = set()
    for item in ast.walk(parse(path.read_text(encoding="utf-8"))):
        if isinstance(item, ast.ImportFrom) and item.module:
            found |= {item.module, *(f"{item.module}.{alias.name}" for alias in item.names)}
        elif isinstance(item, ast.Import):
            found |= {alias.name for alias in item.names}
    return found & known.keys()


def arrows() -> dict[str, set[str]]:
    """Which rooms each room imports."""
    known = modules()
    found: dict[str, set[str]] = {room_of(module): set() for module in known}
    for module, path in known.items():
        found[room_of(module)] |= {room_of(other) for other in imports(path, known)}
    return {room: others - {room} for room, others in found.items()}


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Rooms that import one another, however far around."""

    def reached(room: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph[room])
        while todo:
            if (other := todo.pop()) not in seen:
                seen.add(other)
                todo += graph[other]
        return seen

    return sorted(room for room in graph if room in reached(room))


def floors(graph: dict[str, set[str]]) -> dict[int, list[str]]:
    """Rooms by floor: each stands above all that it imports. No circle may be left."""

    @cache
    def floor(room: str) -> int:
        return 1 + max((floor(other) for other in graph[room]), default=-1)

    found: defaultdict[int, list[str]] = defaultdict(list)
    for room in sorted(graph):
        found[floor(room)].append(room)
    return dict(found)


def purpose(room: str) -> str:
    """What a room is for, in the words of its package."""
    module = ROOT / room / "__init__.py"
    text = ast.get_docstring(parse(module.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("``", "`")


def picture() -> str:
    """The floors from the top, and what each room is for."""
    graph = arrows()
    lines = [BEGIN, "", "| floor | room | what is in it |", "|---|---|---|"]
    for number, rooms in sorted(floors(graph).items(), reverse=True):
        lines += [f"| {number} | `{room}` | {purpose(room)} |" for room in rooms]
    arrows_in_all = sum(len(others) for others in graph.values())
    lines += ["", f"{len(graph)} rooms, {arrows_in_all} arrows, none of which runs up.", END]
    return "\n".join(lines)


def drawn(page: str) -> str:
    """``page`` with the picture as it is now."""
    before, _, rest = page.partition(BEGIN)
    return before + picture() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
