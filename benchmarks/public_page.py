"""What serving the swarm's page costs: readers that poll all of its data, of many authors.

Run it as ``python benchmarks/public_page.py [--authors 500] [--readers 100] [--seconds 60]
[--json]``. A process of its own serves a page that is made anew every ten seconds from a census
that changes, as a seed does; every reader asks for the three files of data every ten seconds on a
connection that it keeps while it is answered, and tells what it knows already.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import psutil
from output import show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from node.dashboard.access import listen
from node.dashboard.public_server import PageServer, data, documents, unchanging
from swarm.common.counters import Counters
from tests.node.dashboard.test_public_server import seen
from tests.swarm.census.census_parts import Watched, group, offer, peer

EVERY = 10.0
FILES = ("swarm", "history", "authors")


def serve(authors: int, pipe: Connection) -> None:
    """Show a swarm of so many until told to stop; the port, and the bytes of its data, are sent."""
    watched, names = Watched(), [f"author {number}" for number in range(authors)]
    for day in range(31):
        peers = [peer(name, [offer(day * authors + n)]) for n, name in enumerate(names)]
        watched.look(*peers, arrived=[group(name, day) for name in names])
        watched.wait(86_400)
    place = listen("127.0.0.1:0", "monitor.public")
    server, unchanged = PageServer(place, Counters()), unchanging()
    pages = 0
    while True:
        watched.look(*peers, arrived=[group(name, pages) for name in names[:16]])
        made = data(documents(watched.census, seen(watched)))
        server.show(unchanged | made)
        if not pages:
            pipe.send((place.port, sum(map(len, made.values()))))
        pages += 1
        if pipe.poll(EVERY):
            server.close()
            return


async def reader(port: int, end: float, delay: float, took: list[float]) -> None:
    """Poll until the end."""
    known = dict.fromkeys(FILES, "none")
    await asyncio.sleep(delay)
    while time.monotonic() < end:
        begin = time.monotonic()
        incoming, outgoing = await asyncio.open_connection("127.0.0.1", port)
        for name in FILES:
            asked = time.monotonic()
            request = f"GET /data/{name}.json HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n"
            outgoing.write(f"{request}If-None-Match: {known[name]}\r\n\r\n".encode())
            head = (await incoming.readuntil(b"\r\n\r\n")).decode().lower()
            fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
            known[name] = fields["etag"].replace("w/", "W/")
            await incoming.readexactly(int(fields.get("content-length", 0)))
            took.append(time.monotonic() - asked)
        outgoing.close()
        await asyncio.sleep(max(0.0, EVERY - (time.monotonic() - begin)))


async def read(port: int, readers: int, seconds: float) -> list[float]:
    """All readers beside each other; how long each answer took, seconds."""
    took: list[float] = []
    end = time.monotonic() + seconds
    await asyncio.gather(
        *(reader(port, end, random.uniform(0, EVERY), took) for _ in range(readers))
    )
    return took


def measure(authors: int, readers: int, seconds: float) -> dict[str, float]:
    """Figures by name."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(authors, theirs))
    server.start()
    try:
        port, size = ours.recv()
        process = psutil.Process(server.pid)
        asyncio.run(read(port, 1, 1.0))
        before, begun = process.cpu_times(), time.monotonic()
        rest = process.memory_info().rss
        took = asyncio.run(read(port, readers, seconds))
        after, wall = process.cpu_times(), time.monotonic() - begun
        spent = after.user + after.system - before.user - before.system
        return {
            "authors": authors,
            "readers": readers,
            "data of a page, kB": round(size / 1000),
            "answers": len(took),
            "share of a core, %": round(100 * spent / wall, 1),
            "answer, median, ms": round(1000 * median(took), 1),
            "resident, MiB": round(process.memory_info().rss / 2**20),
            "grown by, MiB": round((process.memory_info().rss - rest) / 2**20),
        }
    finally:
        ours.send("stop")
        server.join(10)
        server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--authors", type=int, default=500)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    show(measure(given.authors, given.readers, given.seconds), as_json=given.json)


if __name__ == "__main__":
    main()
