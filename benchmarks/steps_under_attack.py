"""How much slower a node learns while strangers attack it.

A node of the demo's trains on one half of this machine's cores, its daemon included; the attackers
have the other half. They are let loose and stopped in turn, and what a round takes then and
meanwhile is compared. ``--apart`` gives its network's processes to the other half, as where there
are cores to spare. Run it in the root:

    python benchmarks/steps_under_attack.py [--apart] [--only eight] [--pairs 7] [--json]
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from output import show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from under_attack import ATTACKS

from node.demo.node_process import NodeProcess
from node.demo.run import DemoSettings, swarm_of
from node.monitor.history import read_records
from node.monitor.record import Terminal
from node.threads import cores
from tests.hostile.flooders import attacking

IDLE = ("evaluate", "checkpoint", "total")
FIRST_ROUNDS = 40
SETTLE_SECONDS = 5.0
"""In which what the network has saved up of its allowance is spent."""
LONGEST = 3600


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def pin(pid: int, numbers: Sequence[int]) -> None:
    """Keep processes and their threads to some cores."""
    for process in family(pid):
        for thread in process.threads():
            psutil.Process(thread.id).cpu_affinity(list(numbers))


def is_network(process: psutil.Process) -> bool:
    """Whether it is a daemon or the process that serves it."""
    return process.name() == "p2pd" or "swarm.transport.subprocess.child" in process.cmdline()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The attackers stand still."""
    for process in family(pid):
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in family(pid):
            process.send_signal(signal.SIGCONT)


def steps(node: NodeProcess, seconds: float) -> float:
    """Median seconds of a round, evaluations left out, over so many seconds from now."""
    time.sleep(SETTLE_SECONDS)
    begin = time.time()
    time.sleep(seconds)
    taken = [
        sum(value for phase, value in record.seconds.items() if phase not in IDLE)
        for record in read_records(node.folder)
        if record.time - record.seconds["total"] > begin
    ]
    return statistics.median(taken)


def measure(kind: str, attack: dict[str, float], options: argparse.Namespace) -> str:
    """The median ratio of rounds under attack to rounds in peace, pair by pair."""
    half = cores() // 2
    with tempfile.TemporaryDirectory() as folder:
        settings = DemoSettings(nodes=1, rounds=10**6)
        with swarm_of(settings, Path(folder), half, Terminal(stderr=True)) as (_, nodes):
            (node,) = nodes.values()
            address = node.wait_for_address(60)
            while len(read_records(node.folder)) < FIRST_ROUNDS:
                time.sleep(1)
            pin(node.pid, range(half))
            for child in family(node.pid):
                if options.apart and is_network(child):
                    pin(child.pid, range(half, 2 * half))
            with attacking(kind, address, **attack, seconds=LONGEST) as attackers:
                pin(attackers.pid, range(half, 2 * half))
                ratios, peace = [], []
                for _ in range(options.pairs):
                    with stopped(attackers.pid):
                        peace.append(steps(node, options.seconds))
                    ratios.append(steps(node, options.seconds) / peace[-1])
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return f"{statistics.median(ratios):.3f} ({spread}), {statistics.median(peace):.3f} s in peace"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    parser.add_argument("--apart", action="store_true", help="its network has other cores")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each half of a pair")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {
        name: measure(kind, attack, options)
        for name, (kind, attack) in ATTACKS.items()
        if options.only in name
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
