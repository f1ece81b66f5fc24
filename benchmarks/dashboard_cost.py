"""What a dashboard costs the node that serves it: time of a round, and memory.

Run it as ``python benchmarks/dashboard_cost.py [--turns 7] [--seconds 8] [--json]``.

Time: one real node works alone, in turns with and without three viewers, a process of their own
that opens the page, listens to the events and asks what three views ask. Of each turn the seconds
of a round are taken, and those of the processor that the node's process spent on one; a round has 8
groups of 8 answers of up to 32 tokens. Told is the median of the ratios of neighbouring turns. The
clock's says the more the less the viewers themselves keep the cores from the node, so that the part
of a core is told as well that the page of that node takes where a process of its own serves it: no
round can lose more.

Memory: resident bytes of a process that has loaded all that a node loads, before and after it
serves 10,000 rounds and has answered what a page asks, and with 32 streams of events open.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from output import show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# what loads the dashboard is imported late: its modules are a part of the memory that it takes
from tests.end_to_end.commands import QUICK, Command
from tests.node.monitor.test_monitor import free_port

STREAMS = 32
ROUND = ("--set=mixture.local=8", "--set=engine.max_new_tokens=32")
PATHS = ("levels", "updates", "authors", "health", "peers", "groups", "rounds", "status")
VIEWERS = (
    {"levels": 5.0, "updates": 4.0},
    {"updates": 4.0, "authors": 4.0},
    {"health": 5.0, "log": 2.0},
)
"""What the views Learning, Lineage and Health ask for, and every how many seconds."""
BEFORE = 2.0
"""Seconds in which the pages are opened, which no turn counts."""


def view(port: int, asked: Mapping[str, float], over: Event) -> None:
    """Be one page: open, listen, and ask for a view again as pages do."""
    from node.storage.run_folder import RunFolder
    from swarm.common.counters import Counters
    from tests.node.dashboard.browser import Site

    site = Site(RunFolder(Path()), Counters(), [f"http://127.0.0.1:{port}/"])
    stream = site.stream()
    threading.Thread(target=_listen, args=(stream, over), daemon=True).start()
    for path in ("status", "rounds"):
        site.get(f"/api/v1/{path}")
    due = dict.fromkeys(asked, 0.0)
    while not over.wait(0.1):
        for path, pause in asked.items():
            if time.monotonic() >= due[path]:
                due[path] = time.monotonic() + pause
                site.get(f"/api/v1/{path}")


def _listen(stream: Any, over: Event) -> None:
    while not over.is_set():
        stream.next()


def _viewers(port: int, over: Event) -> None:
    pages = [threading.Thread(target=view, args=(port, asked, over)) for asked in VIEWERS]
    for page in pages:
        page.start()
    for page in pages:
        page.join()


def _turn(node: Command, seconds: float) -> tuple[float, float]:
    """Seconds of a round, and of the processor for one."""
    process = psutil.Process(node.process.pid)
    before, spent = node.records()[-1].round, sum(process.cpu_times()[:2])
    began = time.perf_counter()
    time.sleep(seconds)
    while (rounds := node.records()[-1].round - before) == 0:
        time.sleep(0.1)
    took = time.perf_counter() - began
    return took / rounds, (sum(process.cpu_times()[:2]) - spent) / rounds


@contextmanager
def watched(port: int) -> Iterator[None]:
    """Three viewers look at what is served there."""
    over = multiprocessing.Event()
    viewers = multiprocessing.Process(target=_viewers, args=(port, over))
    viewers.start()
    time.sleep(BEFORE)
    yield
    over.set()
    viewers.join(BEFORE)
    viewers.terminate()


def time_of_rounds(turns: int, seconds: float) -> dict[str, Any]:
    """Ratios with viewers / without, and the part of a core that serving them takes."""
    port, beside = free_port(), free_port()
    with tempfile.TemporaryDirectory() as place:
        served_at = f'--set=monitor.dashboard="127.0.0.1:{port}"'
        with closing(Command(Path(place), "join", *QUICK, *ROUND, served_at)) as node:
            node.until(lambda: bool(node.records()))
            time.sleep(seconds)
            found = []
            for turn in range(2 * turns + 1):
                with watched(port) if turn % 2 else nullcontext():
                    found.append(_turn(node, seconds))
            with closing(
                Command(Path(place), "dashboard", f"--address=127.0.0.1:{beside}")
            ) as page:
                page.until(lambda: bool(page.out))
                parts = _parts(psutil.Process(page.process.pid), beside, turns, seconds)
    return {**_compared(found), **parts}


def _parts(page: psutil.Process, port: int, turns: int, seconds: float) -> dict[str, Any]:
    """What the same page takes of a core in a process of its own, looked at and not."""

    def part() -> float:
        before, began = sum(page.cpu_times()[:2]), time.perf_counter()
        time.sleep(seconds)
        return (sum(page.cpu_times()[:2]) - before) / (time.perf_counter() - began)

    alone = part()
    with watched(port):
        looked_at = [part() for _ in range(turns)]
    return {
        "serving alone, of a core": round(alone, 4),
        "with 3 viewers, of a core": round(median(looked_at), 4),
        "least and most of them": (round(min(looked_at), 4), round(max(looked_at), 4)),
    }


def _compared(found: list[tuple[float, float]]) -> dict[str, Any]:
    clock, processor = [], []
    for at, ((a, cpu_a), (b, cpu_b)) in enumerate(pairwise(found)):
        clock.append(a / b if at % 2 else b / a)
        processor.append(cpu_a / cpu_b if at % 2 else cpu_b / cpu_a)
    clock.sort()
    return {
        "seconds of a round, alone": round(median(a for a, _ in found[::2]), 3),
        "a round with 3 viewers / without": round(median(clock), 3),
        "least and most": (round(clock[0], 3), round(clock[-1], 3)),
        "processor for a round, with / without": round(median(processor), 3),
    }


def memory() -> dict[str, Any]:
    """Growth of the resident memory, in MB of a million bytes."""
    from tests.dashboard.made_run import fill

    with tempfile.TemporaryDirectory() as place:
        fill(Path(place) / "run", rounds=10_000)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_grown, (place,))


def _grown(place: str) -> dict[str, Any]:
    importlib.import_module("node.run.node")  # all that a node has loaded before it serves a page
    process = psutil.Process()
    before = process.memory_info().rss
    from tests.node.dashboard.browser import served

    with served(Path(place) / "run") as site:
        for path in (*PATHS, *PATHS):
            site.get(f"/api/v1/{path}")
        answered = process.memory_info().rss
        streams = [site.stream() for _ in range(STREAMS)]
        for stream in streams:
            stream.next()
        time.sleep(2.0)
        listening = process.memory_info().rss
        for stream in streams:
            stream.close()
    return {
        "memory of the dashboard, 10,000 rounds, MB": round((answered - before) / 1e6, 1),
        "with 32 streams open, MB": round((listening - before) / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {**memory(), **time_of_rounds(options.turns, options.seconds)}
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
