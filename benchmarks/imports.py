"""How long the two lower floors take to import, in fresh interpreters, torch nowhere in sight.

Run it as ``python benchmarks/imports.py [--json]``; each figure is the median of the turns, less
a bare interpreter's start in the same turn.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from output import show

ROOT = Path(__file__).resolve().parents[1]
TURNS = 7


def modules(package: str) -> list[str]:
    """Every module of a package."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in paths]


def seconds(names: list[str]) -> float:
    """Start an interpreter that imports ``names`` and holds that torch stayed out."""
    code = f"import sys\nfor n in {names!r}: __import__(n)\nassert 'torch' not in sys.modules"
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    packages = {name: modules(name) for name in ("protocol", "swarm")}
    turns = [
        (seconds([]), {name: seconds(names) for name, names in packages.items()})
        for _ in range(TURNS)
    ]
    result = {
        f"import_{name}_s": round(median(t[name] - bare for bare, t in turns), 3)
        for name in packages
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
