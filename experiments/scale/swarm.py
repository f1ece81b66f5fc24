"""Simulated swarm: members of each time slot, and the order of their turns."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from experiments.scale.figures import PATIENCE, EpochFigures, Figures, Waits
from experiments.scale.network import ScaleNetwork, SteppedClock, TrafficKind
from experiments.scale.node import ScaleNode, SharedOpeners, gc_disabled
from experiments.scale.settings import EPOCH_SECONDS, START, Scenario, Settings, swarm_manifest
from protocol.announcement import epoch_of
from protocol.codec import MAX_OFFERS
from swarm.groups import GroupKey

YOUNG = MAX_OFFERS  # time slots whose groups are still on offer at the end


class Ledger:
    """Published groups and their use by other nodes, by time slot of the task samples."""

    def __init__(self) -> None:
        self._published: defaultdict[int, int] = defaultdict(int)
        self._used: defaultdict[int, set[GroupKey]] = defaultdict(set)

    def publish(self, epoch: int, groups: int) -> None:
        self._published[epoch] += groups

    def use(self, keys: Iterable[GroupKey]) -> None:
        for key in keys:
            self._used[key.epoch].add(key)

    def taken(self) -> float | None:
        """Return the used fraction of published groups; None if all are young."""
        old = sorted(self._published)[:-YOUNG]
        published = sum(self._published[epoch] for epoch in old)
        used = sum(len(self._used[epoch]) for epoch in old)
        return used / published if published else None


REMEMBERED_EPOCHS = 4  # opened messages are cached for longer than they are valid
FIRST_EPOCH = epoch_of(START, EPOCH_SECONDS)
REPORTED = 100  # turns between two reports

Report = Callable[[int, float], None]  # called with the time slot and the completed part of it


class ScaleSwarm:
    """All nodes on one clock and one network.

    Args:
        openers: cached openers shared by all nodes.
    """

    def __init__(self, settings: Settings, scenario: Scenario, openers: SharedOpeners) -> None:
        self._settings = settings
        self._scenario = scenario
        self._openers = openers
        self._manifest = swarm_manifest(settings.nodes)
        self._clock = SteppedClock(START)
        self._network = ScaleNetwork(
            self._clock, settings.seed, settings.connections, scenario.loss
        )
        self._draw = random.Random(f"swarm/{settings.seed}")
        self._nodes: list[ScaleNode] = []
        self._number = 0
        self._waits: list[float] = []
        self._never = 0
        self._ledger = Ledger()
        self._halves: dict[bytes, int] = {}

    async def step(self, epoch: int, report: Report) -> EpochFigures:
        """Run one time slot, counted from 0."""
        began = time.process_time()
        self._network.begin(START + epoch * EPOCH_SECONDS)
        await self._apply_scenario(epoch)
        for node in self._nodes:
            self._ledger.publish(FIRST_EPOCH + epoch, node.write(FIRST_EPOCH + epoch))
        found: set[bytes] = set()
        for turn in range(self._settings.turns):
            for done, node in enumerate(self._nodes, 1):
                self._clock.move_to(self._due(epoch, turn, node))
                if await node.turn():
                    found.add(node.author)
                if done % REPORTED == 0:
                    report(epoch, (turn + done / len(self._nodes)) / self._settings.turns)
        used = {node.author: node.learn() for node in self._nodes}
        cpu_ms = 1000 * (time.process_time() - began)
        report(epoch, 1.0)
        return self._figures(epoch, len(found), used, cpu_ms)

    async def finish(self) -> Figures:
        """Remove all nodes and return the results, without the time slots."""
        for node in self._nodes:
            await self._remove_node(node)
        self._nodes.clear()
        waits = Waits.of(self._waits, self._never)
        name = self._scenario.name
        return Figures(name, self._settings, (), waits, self._ledger.taken())

    def _due(self, epoch: int, turn: int, node: ScaleNode) -> float:
        return START + EPOCH_SECONDS * (epoch + (turn + node.phase) / self._settings.turns)

    async def _apply_scenario(self, epoch: int) -> None:
        """Let nodes leave and join, and split or merge the network, as the scenario requires."""
        leaving = min(self._scenario.leaving(self._settings, epoch), len(self._nodes) - 1)
        for node in self._draw.sample(self._nodes, max(0, leaving)):
            self._nodes.remove(node)
            await self._remove_node(node)
        for _ in range(self._scenario.size(self._settings, epoch) - len(self._nodes)):
            await self._add_node(epoch)
        self._nodes.sort(key=lambda node: node.phase)
        parted = self._scenario.parted(self._settings)
        if parted and epoch == parted.start:
            second = self._draw.sample(self._nodes, len(self._nodes) // 2)
            self._network.cut(node.transport for node in second)
            self._halves = {node.author: node.transport.side for node in self._nodes}
        elif parted and epoch == parted.stop:
            self._network.heal()

    async def _add_node(self, epoch: int) -> None:
        node = ScaleNode(self._network, self._manifest, self._openers, self._settings, self._number)
        node.joined = self._due(epoch, 0, node)
        self._number += 1
        self._nodes.append(node)
        await node.join()

    async def _remove_node(self, node: ScaleNode) -> None:
        await node.leave()
        if node.first is not None:
            self._waits.append((node.first - node.joined) / EPOCH_SECONDS)
        elif self._clock.time() - node.joined >= PATIENCE * EPOCH_SECONDS:
            self._never += 1

    def _crosses(self, author: bytes, used: Iterable[GroupKey]) -> bool:
        """Report whether an author used a group from the other side of a split network."""
        own = self._halves.get(author)
        return any(self._halves.get(key.author, own) != own for key in used)

    def _figures(
        self, epoch: int, found: int, used: Mapping[bytes, Sequence[GroupKey]], cpu_ms: float
    ) -> EpochFigures:
        for keys in used.values():
            self._ledger.use(keys)
        nodes, count = [node.transport for node in self._nodes], len(self._nodes)
        traffics = [node.traffic for node in nodes]
        routing = [self._network.routing[side] / max(1, self._count_on(side)) for side in (0, 1)]
        loads = [node.traffic.bytes + routing[node.side] for node in nodes]
        records, reads = self._network.busiest_key()
        return EpochFigures(
            epoch,
            count,
            tuple(sum(traffic.rpcs[kind] for traffic in traffics) / count for kind in TrafficKind),
            tuple(
                sum(traffic.request_bytes[kind] for traffic in traffics) / count
                for kind in TrafficKind
            ),
            records,
            reads,
            max(loads) / fmean(loads),
            found / count,
            sum(self._crosses(author, keys) for author, keys in used.items()) / count,
            fmean(len({key.author for key in keys}) for keys in used.values()),
            fmean(node.depth for node in self._nodes),
            cpu_ms / count,
        )

    def _count_on(self, side: int) -> int:
        return sum(node.transport.side == side for node in self._nodes)


def run(
    settings: Settings, scenario: Scenario, report: Report = lambda epoch, part: None
) -> Figures:
    """Simulate a swarm from its first time slot to its last.

    All figures except CPU time are a function of the settings and the scenario.
    """

    async def simulate() -> Figures:
        openers = SharedOpeners.with_cache(REMEMBERED_EPOCHS * settings.nodes)
        swarm = ScaleSwarm(settings, scenario, openers)
        epochs = [await swarm.step(epoch, report) for epoch in range(settings.epochs)]
        return replace(await swarm.finish(), epochs=tuple(epochs))

    with gc_disabled():
        return asyncio.run(simulate())
