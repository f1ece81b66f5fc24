"""Run every benchmark once, one after the other, and print what each of them prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = (
    ["imports.py"],
    ["engine.py"],
    ["engine.py", "--model", "tiny-wide"],
    ["step.py"],
    ["learner.py"],
    ["learner.py", "--tokens", "4"],
    ["overlap.py"],
    ["partial.py", "--prompts", "2", "--completions", "4", "--staleness", "4"],
    ["latency.py"],
    ["isolation.py"],
)


def main() -> None:
    for script, *options in BENCHMARKS:
        print(f"\n{' '.join([script, *options])}", flush=True)
        subprocess.run([sys.executable, str(HERE / script), *options], check=True)


if __name__ == "__main__":
    main()
