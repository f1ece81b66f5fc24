"""``python -m tests.layers`` writes the package table into docs/architecture.md.

A package here is a folder of ``experiments/``, ``node/`` or ``swarm/`` with all its subfolders;
``protocol/`` is one package. Its level is one above the highest level that it imports.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.parsing import parse

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("experiments", "node", "swarm", "protocol")
BEGIN, END = "<!-- packages: written by python -m tests.layers -->", "<!-- end of packages -->"


def modules(packages: tuple[str, ...] = PACKAGES) -> dict[str, Path]:
    paths = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in sorted(paths)}


def package_of(module: str) -> str:
    """Return ``node/engines`` for ``node.engines.x`` and ``swarm`` for ``swarm.pool``."""
    package, *rest = module.split(".")
    return f"{package}/{rest[0]}" if len(rest) > 1 and package != "protocol" else package


def imports(path: Path, known: dict[str, Path], on_load: bool = False) -> set[str]:
    """Return imported project modules; ``on_load`` skips imports in functions."""
    tree, found = parse(path.read_text(encoding="utf-8")), set[str]()
    for item in tree.body if on_load else ast.walk(tree):
        if isinstance(item, ast.ImportFrom) and item.module:
            found |= {item.module, *(f"{item.module}.{alias.name}" for alias in item.names)}
        elif isinstance(item, ast.Import):
            found |= {alias.name for alias in item.names}
    return found & known.keys()


def package_imports() -> dict[str, set[str]]:
    known = modules()
    found: dict[str, set[str]] = {package_of(module): set() for module in known}
    for module, path in known.items():
        found[package_of(module)] |= {package_of(other) for other in imports(path, known)}
    return {package: others - {package} for package, others in found.items()}


def module_imports() -> dict[str, set[str]]:
    """Return the modules that each module imports on load."""
    known = modules()
    return {name: imports(path, known, on_load=True) - {name} for name, path in known.items()}


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return the members of all import cycles."""

    def reached(start: str) -> set[str]:
        seen, todo = set[str](), list(graph[start])
        while todo:
            if (other := todo.pop()) not in seen:
                seen.add(other)
                todo += graph[other]
        return seen

    return sorted(member for member in graph if member in reached(member))


def levels(graph: dict[str, set[str]]) -> dict[int, list[str]]:
    @cache
    def level(package: str) -> int:
        return 1 + max((level(other) for other in graph[package]), default=-1)

    found: defaultdict[int, list[str]] = defaultdict(list)
    for package in sorted(graph):
        found[level(package)].append(package)
    return dict(found)


def purpose(package: str) -> str:
    module = ROOT / package / "__init__.py"
    text = ast.get_docstring(parse(module.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("``", "`")


def table() -> str:
    lines = [BEGIN, "", "| level | package | content |", "|---|---|---|"]
    for number, packages in sorted(levels(package_imports()).items(), reverse=True):
        lines += [f"| {number} | `{package}` | {purpose(package)} |" for package in packages]
    return "\n".join([*lines, "", END])


def written(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + table() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
