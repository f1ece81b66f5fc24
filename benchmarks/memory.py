"""Memory of one node of ``swarm-node demo``, by process (Linux).

Run it as ``python benchmarks/memory.py [--nodes 4] [--rounds 60] [--json]``. It starts the demo,
waits until every node has finished that many rounds, and reads ``/proc/PID/smaps_rollup`` of the
first node's processes. ``pss`` counts a page that n processes share as 1/n in each; its sum is the
node's memory, ``rss_mb`` in its records. ``rss`` counts such a page in full in each process.
``private`` pages belong to one process alone. The unit is MB of 10**6 bytes.

The demo's nodes share pages of libraries with each other. The ``pss`` of a node that is alone on
its machine is larger.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from output import show

ROLES = {
    "node.cli.main": "main",
    "swarm.transport.subprocess.child": "network",
    "node.tasks.verifier.fork_server": "verifier",
    "node.tasks.verifier.worker": "verifier",
}
"""Modules of a node's processes; others are programs, by their file's name."""
DEMO_SECONDS = 600.0
STOP_SECONDS = 60.0
UNIT = 1e6 / 1024  # kB that the kernel reports, to MB


@contextmanager
def demo(folder: Path, nodes: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a demo without end, and stop it as its user would."""
    command = [sys.executable, "-m", "node.cli.main", "demo", "--rounds", "0", "--json"]
    command += ["--nodes", str(nodes), "--run-dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STOP_SECONDS)


def records(folder: Path) -> list[dict[str, float]]:
    """Records of a node, of whole lines only."""
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def role(process: psutil.Process) -> str:
    command = process.cmdline()
    return next((ROLES[part] for part in command if part in ROLES), Path(command[0]).name)


def memory(process: psutil.Process) -> dict[str, float]:
    """RSS, PSS and private memory of one process, MB."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size.split()[0]) for name, size in (line.split(":") for line in lines)}
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return {
        n: kb / UNIT
        for n, kb in (("rss", sizes["Rss"]), ("pss", sizes["Pss"]), ("private", private))
    }


def by_role(node: psutil.Process) -> dict[str, str]:
    """Return a line for each role, and one for the whole node."""
    found: dict[str, list[dict[str, float]]] = {}
    for process in [node, *node.children(recursive=True)]:
        found.setdefault(role(process), []).append(memory(process))
    found["node"] = [each for sizes in found.values() for each in sizes]
    return {name: summed(sizes) for name, sizes in found.items()}


def summed(sizes: list[dict[str, float]]) -> str:
    sums = (f"{name} {sum(each[name] for each in sizes):.0f}" for name in sizes[0])
    return f"{', '.join(sums)} (processes: {len(sizes)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch, "demo")
        folders = [run / f"node-{number + 1}" for number in range(options.nodes)]
        with demo(run, options.nodes) as process:
            deadline = time.monotonic() + DEMO_SECONDS
            while any(len(records(folder)) < options.rounds for folder in folders):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("The demo has ended or takes too long. Run: swarm-node demo")
                time.sleep(0.5)
            pid = json.loads((folders[0] / "status.json").read_text(encoding="utf-8"))["pid"]
            result = by_role(psutil.Process(pid))
            totals = [max(each["rss_mb"] for each in records(folder)) for folder in folders]
    result["rss_mb, largest of each node's records"] = ", ".join(f"{each:.0f}" for each in totals)
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
