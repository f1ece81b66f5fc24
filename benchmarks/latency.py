"""How long experience takes from one node's outbox into another node's pool, over real p2p daemons.

Starts a bootstrap peer and some members on this machine, each with its own daemon, publishes one
group at a time from each member in turn at random moments, and watches the others' pools. The
verifier is a stub, so only the network side is measured: seal, announce, find, pull, admit.

    python benchmarks/latency.py --nodes 4 --groups 20
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from output import show

from protocol.identity import Identity
from protocol.manifest import EnvSpec, Manifest, open_manifest, sign_manifest, swarm_id
from protocol.rollout import Completion, Finish, Group, Segment, Writer
from swarm.admission import Admission
from swarm.collector import CollectorLimits
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.groups import Origin, TaskRef
from swarm.journal import Journal
from swarm.member import Experience, Member, assemble
from swarm.pool import Pool
from swarm.publisher import Outbox
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.node_transport import NodeTransport
from swarm.transport.records import RecordRule
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.verification import GroupVerifier, Scores

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
WATCH_SECONDS = 0.005
PATIENCE_SECONDS = 30.0


class LengthVerifier(GroupVerifier):
    """Rewards answers of even length."""

    def verify(
        self, task: TaskRef, texts: Sequence[str], *, seconds: float | None = None
    ) -> Scores:
        return Scores("question", tuple(float(len(text) % 2 == 0) for text in texts))


@dataclass(frozen=True, slots=True)
class Node:
    """A member and what the benchmark needs of it."""

    author: bytes
    transport: SubprocessTransport
    member: Member
    journal: Journal
    outbox: Outbox
    pool: Pool

    @classmethod
    async def start(
        cls, folder: Path, signed: bytes, bootstrap: str, over: type[NodeTransport]
    ) -> Node:
        """Join the swarm with everything real but the verifier."""
        clock, counters = SystemClock(), Counters()
        folder.mkdir()
        identity = Identity.create(folder / "identity.key")
        journal = Journal(folder / "journal.db", clock)
        pool = Pool(journal, 1024, 3600.0, clock, counters)
        experience = Experience.around(pool)
        transport = SubprocessTransport(
            folder / "identity.key", listen=LISTEN, peers=(bootstrap,), over=over
        )
        await transport.start()
        member = assemble(
            transport,
            identity,
            signed,
            Admission(
                open_manifest(signed),
                swarm_id(signed),
                LengthVerifier(),
                experience.accounts,
                journal,
                clock,
                counters,
            ),
            experience,
            clock=clock,
            counters=counters,
            limits=CollectorLimits(),
            upload_rate=1e7,
            secret=identity.author,
        )
        return cls(identity.author, transport, member, journal, experience.outbox, pool)

    def publish(self, epoch: int, texts: Sequence[str] = ("even", "odd") * 4) -> None:
        """Put one group into the outbox, informative where lengths are even and odd."""
        (index,) = self.journal.next_indexes(epoch, 1, 1 << 16)
        completions = tuple(
            Completion((Segment(Writer.POLICY, text),), float(len(text) % 2 == 0), Finish.STOP)
            for text in texts
        )
        group = Group("length", 0, epoch, index, completions)
        self.outbox.put([group], Origin(1, "stub", bytes(32), 1.0, 16))

    def count(self, author: bytes) -> int:
        """Groups of an author that have come in."""
        return sum(c.key.author == author for c in self.pool.fresh())


@asynccontextmanager
async def swarm(
    nodes: int,
    epoch_seconds: float,
    folder: Path,
    over: type[NodeTransport] = HivemindTransport,
    **agreed: int,
) -> AsyncIterator[list[Node]]:
    """Members of a swarm that has been running for two epochs, and a seed beside them.

    Args:
        folder: holds what they keep.
        agreed: limits of the manifest.
    """
    creator = Identity.generate()
    manifest = Manifest(
        name="latency",
        founder=creator.author,
        created=time.time(),
        catalogue=(EnvSpec("length", "plugin", "1", ("{}",), "{question}", "text"),),
        epoch_seconds=epoch_seconds,
        max_groups_per_epoch=1 << 16,
        max_age_epochs=1000,
        **agreed,
    )
    signed = sign_manifest(manifest, creator)
    Identity.create(folder / "seed.key")
    seed = SubprocessTransport(folder / "seed.key", listen=LISTEN, over=over)
    seed.use_validator(RecordRule(signed, SystemClock(), Counters()))
    await seed.start()
    members: list[Node] = []
    running: list[asyncio.Task[None]] = []
    try:
        for number in range(nodes):
            (bootstrap,) = seed.addresses()
            node = await Node.start(folder / f"node{number}", signed, bootstrap, over)
            members.append(node)
            running.append(asyncio.create_task(node.member.run()))
        await asyncio.sleep(2 * epoch_seconds)
        yield members
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(seed.close(), *(node.transport.close() for node in members))


async def measure(
    nodes: int,
    groups: int,
    epoch_seconds: float,
    folder: Path,
    over: type[NodeTransport] = HivemindTransport,
    began: Callable[[], None] = lambda: None,
) -> list[float]:
    """Seconds from publication to each other member's pool, one for each pair and group.

    Args:
        began: called once all are there.
    """
    async with swarm(nodes, epoch_seconds, folder, over) as members:
        began()
        return await publish_in_turn(members, groups, epoch_seconds)


async def publish_in_turn(members: list[Node], groups: int, epoch_seconds: float) -> list[float]:
    """Publish from each member in turn, at moments drawn over an epoch."""
    rng = random.Random(0)
    latencies: list[float] = []
    for number in range(groups):
        await asyncio.sleep(rng.uniform(0, epoch_seconds))
        author = members[number % len(members)]
        count = number // len(members) + 1
        author.publish(int(time.time() / epoch_seconds))
        began = time.perf_counter()
        waiting = [node for node in members if node is not author]
        while waiting and time.perf_counter() - began < PATIENCE_SECONDS:
            await asyncio.sleep(WATCH_SECONDS)
            arrived = [node for node in waiting if node.count(author.author) >= count]
            latencies += [time.perf_counter() - began] * len(arrived)
            waiting = [node for node in waiting if node not in arrived]
        latencies += [float("inf")] * len(waiting)
    return latencies


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--groups", type=int, default=20, help="published one after the other")
    parser.add_argument("--epoch", type=float, default=2.0, help="seconds")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        latencies = asyncio.run(
            measure(arguments.nodes, arguments.groups, arguments.epoch, Path(folder))
        )
    result = {
        "nodes": arguments.nodes,
        "epoch_seconds": arguments.epoch,
        "arrivals": len(latencies),
        "median_s": round(statistics.median(latencies), 3),
        "p90_s": round(statistics.quantiles(latencies, n=10)[-1], 3),
        "max_s": round(max(latencies), 3),
    }
    show(result, as_json=arguments.json)


if __name__ == "__main__":
    main()
