"""How soon every payload is at every peer: this project's exchange beside genrl's, in turns.

All peers send at once, each a payload of its own, on this machine over real p2p daemons, and the
time is taken until it has arrived, as the mean over payloads and their readers. What has not come
whole within ten seconds is a failure and has no time; genrl is given twenty. Bytes are those of the
loopback device, so run it where nobody else uses that (``unshare -Urn sh -c 'ip link set lo up;
…'``). Payloads are random printable text, of which zstd saves a fifth. A member of this project
hears at once of what the hash table gives it to hold, which beyond five peers is not all of it,
and looks four times an epoch for the rest. genrl wants an environment of its own:

    make genrl
    python benchmarks/peers.py --peers 2 4 8 --bytes 2000 5000 20000 100000 500000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b85encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from latency import WATCH_SECONDS, Node, swarm

HERE = Path(__file__).resolve().parent
PEER = HERE / "genrl_peer.py"
GENRL = HERE.parent / ".venv-genrl" / "bin" / "python"
PATIENCE_SECONDS = 10
COMPLETIONS = 8
LINGER_SECONDS = 0.5
"""After the last arrival, for bytes that are still under way."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange among all peers.

    Attributes:
        seconds: from sending to arrival, one for each payload and reader that it came to whole.
        failed: of the others, how many.
        carried: bytes over the loopback device meanwhile.
    """

    seconds: tuple[float, ...]
    failed: int
    carried: int


def loopback() -> int:
    """Bytes that the loopback device has carried."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (line,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


class Genrl:
    """Peers of genrl, a process each, started anew where one of them hangs."""

    def __init__(self, python: Path, peers: int) -> None:
        self._python = python
        self._count = peers
        self._peers: list[subprocess.Popen[str]] = []
        self._start()

    def exchange(self, size: int) -> Turn:
        """Let every peer send ``size`` bytes."""
        before = loopback()
        for peer in self._peers:
            assert peer.stdin
            peer.stdin.write(json.dumps({"bytes": size}) + "\n")
            peer.stdin.flush()
        until = time.monotonic() + 2 * PATIENCE_SECONDS
        told = [self._told(peer, until - time.monotonic()) for peer in self._peers]
        time.sleep(LINGER_SECONDS)
        carried = loopback() - before
        seconds = [each["seconds"] for each in told if each for _ in range(each["whole"])]
        if None in told:
            self.close()
            self._start()
        return Turn(tuple(seconds), self._count * (self._count - 1) - len(seconds), carried)

    def close(self) -> None:
        """End them, with the processes that they started."""
        for peer in self._peers:
            os.killpg(peer.pid, signal.SIGKILL)
            peer.wait()
        self._peers.clear()

    def _start(self) -> None:
        addresses: list[str] = []
        for _ in range(self._count):
            peer = subprocess.Popen(
                [*map(str, (self._python, PEER, PATIENCE_SECONDS)), *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | {"HIVEMIND_WORLD_SIZE": str(self._count), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            self._peers.append(peer)
            told = self._told(peer, 2 * PATIENCE_SECONDS)
            if told is None:
                raise SystemExit("a peer of genrl does not start; try benchmarks/genrl_peer.py")
            addresses = addresses or told["addresses"]

    @staticmethod
    def _told(peer: subprocess.Popen[str], seconds: float) -> dict | None:
        """What a peer prints next; None where it hangs or has ended."""
        assert peer.stdout
        ready, _, _ = select.select([peer.stdout], [], [], max(0.0, seconds))
        line = peer.stdout.readline() if ready else ""
        return json.loads(line) if line else None


@contextmanager
def genrl(python: Path, peers: int) -> Iterator[Genrl]:
    """So many peers, gone in the end."""
    swarm = Genrl(python, peers)
    try:
        yield swarm
    finally:
        swarm.close()


async def exchange(
    members: Sequence[Node], size: int, epoch_seconds: float, rng: random.Random
) -> Turn:
    """Let every member publish ``size`` bytes at a moment of the epoch that nobody chose."""
    await asyncio.sleep(rng.uniform(0, epoch_seconds))
    before, epoch, began = loopback(), int(time.time() / epoch_seconds), time.perf_counter()
    had = {
        (reader.author, author.author): reader.count(author.author)
        for reader in members
        for author in members
        if reader is not author
    }
    for member in members:
        member.publish(epoch, payload(size))
    waiting, seconds = dict(had), []
    nodes = {member.author: member for member in members}
    while waiting and time.perf_counter() - began < PATIENCE_SECONDS:
        await asyncio.sleep(WATCH_SECONDS)
        arrived = [pair for pair, count in waiting.items() if nodes[pair[0]].count(pair[1]) > count]
        seconds += [time.perf_counter() - began] * len(arrived)
        for pair in arrived:
            del waiting[pair]
    await asyncio.sleep(LINGER_SECONDS)
    return Turn(tuple(seconds), len(waiting), loopback() - before)


def payload(size: int) -> list[str]:
    """Texts of a group, ``size`` bytes together, of even and odd lengths."""
    each = size // COMPLETIONS
    lengths = [each + number % 2 for number in range(COMPLETIONS)]
    return [b85encode(os.urandom(length)).decode()[:length] for length in lengths]


async def compare(
    peers: int, sizes: Sequence[int], turns: int, epoch_seconds: float, python: Path
) -> list[dict]:
    """A row for each size, both exchanges in turns within it."""
    rng, rows = random.Random(peers), []
    with tempfile.TemporaryDirectory() as folder, genrl(python, peers) as theirs:
        limits = {"max_frame_bytes": 1 << 20}
        async with swarm(peers, epoch_seconds, Path(folder), **limits) as members:
            for size in sizes:
                taken: dict[str, list[Turn]] = {"swarm-node": [], "genrl": []}
                for _ in range(turns):
                    taken["swarm-node"].append(await exchange(members, size, epoch_seconds, rng))
                    taken["genrl"].append(await asyncio.to_thread(theirs.exchange, size))
                rows += [row(name, peers, size, each) for name, each in taken.items()]
                for told in rows[-2:]:
                    print(line(told), flush=True)
    return rows


def row(name: str, peers: int, size: int, turns: Sequence[Turn]) -> dict:
    """What is told of an exchange: the median over turns of their mean times."""
    means = [statistics.mean(turn.seconds) for turn in turns if turn.seconds]
    wanted = peers * (peers - 1)
    return {
        "exchange": name,
        "peers": peers,
        "bytes": size,
        "seconds": statistics.median(means) if means else None,
        "failed": sum(turn.failed for turn in turns),
        "of": wanted * len(turns),
        "carried": statistics.median(turn.carried for turn in turns) / (wanted * size),
    }


def line(told: dict) -> str:
    """One row for people."""
    seconds = "never" if told["seconds"] is None else f"{told['seconds']:.2f} s"
    return (
        f"{told['exchange']:<10} {told['peers']} peers  {told['bytes']:>7} bytes  {seconds:>8}  "
        f"failed {told['failed']} of {told['of']}  carried {told['carried']:.2f} x what was wanted"
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--bytes", type=int, nargs="+", default=[2000, 5000, 20000, 100000, 500000])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--epoch", type=float, default=2.0, help="seconds")
    parser.add_argument("--genrl", type=Path, default=GENRL, help="Python with gensyn-genrl in it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.genrl.exists():
        sys.exit(f"genrl is not installed at {arguments.genrl}: run 'make genrl'")
    rows = []
    for peers in arguments.peers:
        rows += asyncio.run(
            compare(peers, arguments.bytes, arguments.turns, arguments.epoch, arguments.genrl)
        )
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
