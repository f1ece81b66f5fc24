"""``python -m tests.fuzz``: bytes from peers may raise only named errors.

Each target runs in its own process, with a limit on memory and on the time per input. Coverage
guides the inputs if atheris is installed; otherwise hypothesis mutates the corpus.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import MODULES

INPUTS = 1_000_000
FINDINGS = Path("fuzz-findings")
_RUNS = re.compile(r"stat::number_of_executed_units:\s+(\d+)|tried (\d+)")


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    tried: int
    seconds: float
    failed: bool
    output: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz the chosen targets; return 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=INPUTS, help="in all, shared by the targets")
    parser.add_argument("--target", action="append", choices=MODULES, help="this one; repeatable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 31) + 1)
    options = parser.parse_args(arguments)
    names = options.target or list(MODULES)
    each = -(-options.inputs // len(names))
    FINDINGS.mkdir(exist_ok=True)
    how = "guided by coverage" if importlib.util.find_spec("atheris") else "NOT GUIDED: no atheris"
    print(f"{len(names)} targets, {each} inputs each, seed {options.seed}, {how}", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        reports = list(pool.map(lambda name: _fuzz(name, each, options.seed), names))
    for report in reports:
        if report.failed:
            print(f"\n{report.name}:\n{report.output[-6000:]}")
    failed = [report.name for report in reports if report.failed]
    print(f"\n{sum(report.tried for report in reports)} inputs tried")
    if failed:
        print(f"found something in {', '.join(failed)}; the inputs are in {FINDINGS}/")
    return 1 if failed else 0


def _fuzz(name: str, inputs: int, seed: int) -> Report:
    started = time.monotonic()
    child = [sys.executable, "-m", "tests.fuzz.child", f"{MODULES[name]}:{name}"]
    child += [str(inputs), str(seed), str(FINDINGS)]
    run = subprocess.run(
        child, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    tried = sum(int(a or b) for a, b in _RUNS.findall(run.stdout))
    took = time.monotonic() - started
    failed = run.returncode != 0 or tried < inputs
    print(f"{took:7.1f} s  {name:<14} {tried:>9}  {'FOUND' if failed else 'clean'}", flush=True)
    return Report(name, tried, took, failed, run.stdout)


if __name__ == "__main__":
    sys.exit(main())
