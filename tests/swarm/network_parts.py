"""A swarm in one process: only connections, clock and verifier are not real."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from experiments.memory_transport import Conditions, MemoryNetwork, MemoryTransport
from experiments.virtual_clock import VirtualClock
from protocol.announcement import Announcement, Offer, record_key, shard_of, sign_announcement
from protocol.identity import Identity
from protocol.manifest import EnvSpec, Manifest, sign_manifest, swarm_id
from protocol.rollout import Group
from swarm.admission import Admission
from swarm.collector import CollectorLimits
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.groups import Origin, TaskRef
from swarm.journal import MEMORY, Journal
from swarm.member import Experience, assemble
from swarm.pool import Pool
from swarm.transport.transport import HandlerLimits, Transport
from swarm.verification import GroupVerifier, Scores
from tests.swarm import experience_parts

CREATOR = Identity.from_seed(b"founder of the test swarm".ljust(32))
EPOCH_SECONDS = 60.0
ORIGIN = Origin(3, "tiny", b"\x01" * 32, 1.0, 16)


def manifest(**changes: object) -> Manifest:
    """Return the manifest of a test swarm, with ``changes`` to its fields."""
    return Manifest(
        **{
            "name": "test",
            "founder": CREATOR.author,
            "created": 1_700_000_000.0,
            "catalogue": (EnvSpec("parity", "plugin", "1", ("{}",), "{question}", "text"),),
            "epoch_seconds": EPOCH_SECONDS,
            **changes,
        }
    )


def identity(name: str) -> Identity:
    return Identity.from_seed(name.encode().ljust(32, b"."))


class ParityVerifier(GroupVerifier):
    """Rewards answers of even length; any other claim is false."""

    def verify(self, task: TaskRef, texts: Sequence[str], *, seconds=None) -> Scores:
        rewards = tuple(float(len(text) % 2 == 0) for text in texts)
        return Scores(f"{task.env} {task.seed}", rewards)


def group(epoch: int, index: int, texts: Sequence[str] = ("even", "odd")) -> Group:
    rewards = [float(len(text) % 2 == 0) for text in texts]
    options = {"epoch": epoch, "env": "parity", "texts": texts, "tokens": False}
    return experience_parts.group(index, rewards, **options)


class Node:
    """A member and its parts; ``options`` are those of ``assemble``."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        clock: Clock,
        counters: Counters,
        agreed: Manifest,
        *,
        limits: CollectorLimits = CollectorLimits(),  # noqa: B008 - frozen
        upload_rate: float = 1e7,
        **options: Any,
    ) -> None:
        signed = sign_manifest(agreed, CREATOR)
        self.identity = identity(name)
        self.transport, self.clock, self.counters = transport, clock, counters
        self.journal = Journal(MEMORY, clock)
        self.pool = Pool(self.journal, 1000, 1e6, clock, counters)
        experience = Experience.around(self.pool)
        self.accounts, self.outbox = experience.accounts, experience.outbox
        parts = agreed, swarm_id(signed), ParityVerifier(), self.accounts, self.journal, clock
        self.member = assemble(
            *(transport, self.identity, signed),
            Admission(*parts, counters, threaded=False),
            experience,
            clock=clock,
            counters=counters,
            limits=limits,
            upload_rate=upload_rate,
            secret=name.encode(),
            rng=random.Random(name),
            **options,
        )
        self.directory, self.exchange = self.member.directory, self.member.exchange

    def publish(self, count: int = 1, texts: Sequence[str] = ("even", "odd")) -> None:
        epoch = self.directory.epoch
        limit = self.directory.manifest.max_groups_per_epoch
        samples = self.journal.next_indexes(epoch, count, limit)
        self.outbox.put([group(epoch, sample, texts) for sample in samples], ORIGIN)

    def authors(self) -> set[bytes]:
        return {candidate.key.author for candidate in self.pool.fresh()}

    def count(self, name: str) -> float:
        return self.counters.snapshot().get(name, 0.0)


class SignedRecord(NamedTuple):
    """A signed announcement and its DHT key."""

    key: str
    value: bytes
    announcement: Announcement


def signed_record(node: Node, author: Identity, *offers: Offer, **changes: Any) -> SignedRecord:
    """Sign an author's current announcement in ``node``'s swarm, with ``changes`` to its fields.

    By default it lasts until the end of the next time slot.
    """
    directory = node.directory
    epoch, depth = changes.get("epoch", directory.epoch), changes.get("depth", 0)
    fields = {"epoch": epoch, "depth": depth, "sequence": 1, "policy_step": 1, "nonce": 0}
    fields["shard"] = shard_of(author.author, epoch, depth)
    fields["expiry"] = (epoch + 2) * directory.manifest.epoch_seconds
    made = Announcement(**{**fields, **changes}, offers=offers)
    key = record_key(directory.swarm_id, epoch, depth, made.shard)
    return SignedRecord(key, sign_announcement(made, author, directory.swarm_id), made)


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    """Run members until the block ends, and cancel them."""
    work = [asyncio.ensure_future(node.member.run()) for node in nodes]
    try:
        yield
    finally:
        for task in work:
            task.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in results), results


def answers(node: Node, stream: str, answer: Callable[[], bytes]) -> list[str]:
    """Let a node answer a stream with ``answer``; return the list of its requesters."""
    askers: list[str] = []

    async def handler(asker: str, request: bytes) -> bytes:
        askers.append(asker)
        return answer()

    node.transport.handle(stream, handler, HandlerLimits(64, 8, 8))
    return askers


class MemorySwarm:
    def __init__(self, *, seed: int = 0, conditions: Conditions | None = None, **agreed: object):
        self.clock = VirtualClock()
        self.network = MemoryNetwork(self.clock, seed, conditions)
        self.manifest = manifest(**agreed)
        self.nodes: list[Node] = []

    async def join(self, name: str, clock: Clock | None = None, **options) -> Node:
        counters = Counters()
        transport = MemoryTransport(self.network, identity(name).peer_id, counters)
        node = Node(name, transport, clock or self.clock, counters, self.manifest, **options)
        await transport.start()
        self.nodes.append(node)
        return node

    async def stranger(self, name: str) -> MemoryTransport:
        """Add a bare transport for misbehavior; its validator accepts everything."""
        transport = MemoryTransport(self.network, identity(name).peer_id)
        transport.use_validator(lambda record: True)
        await transport.start()
        return transport

    async def step(self) -> None:
        for node in self.nodes:
            await node.member.step()

    async def turns(self, count: int, seconds: float) -> None:
        """Repeat steps, with a pause after each."""
        for _ in range(count):
            await self.step()
            await self.clock.advance(seconds)
