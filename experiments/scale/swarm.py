"""A simulated swarm: who takes part in each epoch, and whose turn it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from experiments.scale.clock import SteppedClock
from experiments.scale.figures import PATIENCE, EpochFigures, Figures, Waits
from experiments.scale.ledger import Ledger
from experiments.scale.network import SimulatedNetwork
from experiments.scale.node import SimulatedNode
from experiments.scale.scenario import Scenario
from experiments.scale.settings import EPOCH_SECONDS, START, Settings, agreed
from experiments.scale.shared_memory import Openings, no_collection
from experiments.scale.tally import Kind
from protocol.announcement import epoch_of
from swarm.groups import GroupKey

REMEMBERED_EPOCHS = 4
"""For which opened records and frames are remembered: longer than anybody may take them."""

FIRST_EPOCH = epoch_of(START, EPOCH_SECONDS)
REPORTED = 100
"""Turns between two reports."""

Report = Callable[[int, float], None]
"""(epoch, part of it that is over): how far a simulation is."""


class SimulatedSwarm:
    """All nodes on one clock and one network.

    Args:
        openings: what all nodes remember together.
    """

    def __init__(self, settings: Settings, scenario: Scenario, openings: Openings) -> None:
        self._settings = settings
        self._scenario = scenario
        self._openings = openings
        self._agreed = agreed(settings.nodes)
        self._clock = SteppedClock(START)
        self._network = SimulatedNetwork(
            self._clock, settings.seed, settings.connections, scenario.loss
        )
        self._draw = random.Random(f"swarm/{settings.seed}")
        self._nodes: list[SimulatedNode] = []
        self._number = 0
        self._waits: list[float] = []
        self._never = 0
        self._ledger = Ledger()
        self._halves: dict[bytes, int] = {}

    async def step(self, epoch: int, report: Report) -> EpochFigures:
        """One epoch, the first being 0."""
        began = time.process_time()
        self._network.begin(START + epoch * EPOCH_SECONDS)
        await self._move(epoch)
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
        """Let everybody leave.

        Returns:
            What came of it, without the epochs.
        """
        for node in self._nodes:
            await self._leave(node)
        self._nodes.clear()
        waits = Waits.of(self._waits, self._never)
        name = self._scenario.name
        return Figures(name, self._settings, (), waits, self._ledger.taken())

    def _due(self, epoch: int, turn: int, node: SimulatedNode) -> float:
        """Unix time of a node's turn."""
        return START + EPOCH_SECONDS * (epoch + (turn + node.phase) / self._settings.turns)

    async def _move(self, epoch: int) -> None:
        """Have nodes leave and come, and the network cut and healed, as the scenario has it."""
        leaving = min(self._scenario.leaving(self._settings, epoch), len(self._nodes) - 1)
        for node in self._draw.sample(self._nodes, max(0, leaving)):
            self._nodes.remove(node)
            await self._leave(node)
        for _ in range(self._scenario.size(self._settings, epoch) - len(self._nodes)):
            await self._come(epoch)
        self._nodes.sort(key=lambda node: node.phase)
        parted = self._scenario.parted(self._settings)
        if parted and epoch == parted.start:
            second = self._draw.sample(self._nodes, len(self._nodes) // 2)
            self._network.cut(node.transport for node in second)
            self._halves = {node.author: node.transport.side for node in self._nodes}
        elif parted and epoch == parted.stop:
            self._network.heal()

    async def _come(self, epoch: int) -> None:
        node = SimulatedNode(
            self._network, self._agreed, self._openings, self._settings, self._number
        )
        node.joined = self._due(epoch, 0, node)
        self._number += 1
        self._nodes.append(node)
        await node.join()

    async def _leave(self, node: SimulatedNode) -> None:
        await node.leave()
        if node.first is not None:
            self._waits.append((node.first - node.joined) / EPOCH_SECONDS)
        elif self._clock.time() - node.joined >= PATIENCE * EPOCH_SECONDS:
            self._never += 1

    def _crosses(self, author: bytes, used: Iterable[GroupKey]) -> bool:
        """Whether any of what an author used was from the other half of a cut."""
        own = self._halves.get(author)
        return any(self._halves.get(key.author, own) != own for key in used)

    def _figures(
        self, epoch: int, found: int, used: Mapping[bytes, Sequence[GroupKey]], cpu_ms: float
    ) -> EpochFigures:
        for keys in used.values():
            self._ledger.use(keys)
        nodes, count = [node.transport for node in self._nodes], len(self._nodes)
        tallies = [node.tally for node in nodes]
        routing = [self._network.routing[side] / max(1, self._on(side)) for side in (0, 1)]
        loads = [node.tally.bytes + routing[node.side] for node in nodes]
        records, reads = self._network.busiest_key()
        return EpochFigures(
            epoch,
            count,
            tuple(sum(tally.rpcs[kind] for tally in tallies) / count for kind in Kind),
            tuple(sum(tally.asked[kind] for tally in tallies) / count for kind in Kind),
            records,
            reads,
            max(loads) / fmean(loads),
            found / count,
            sum(self._crosses(author, keys) for author, keys in used.items()) / count,
            fmean(len({key.author for key in keys}) for keys in used.values()),
            fmean(node.depth for node in self._nodes),
            cpu_ms / count,
        )

    def _on(self, side: int) -> int:
        return sum(node.transport.side == side for node in self._nodes)


async def simulate(settings: Settings, scenario: Scenario, report: Report) -> Figures:
    """Everything that befalls a swarm, from its first epoch to its last.

    But for CPU time the figures are a function of the arguments.

    Args:
        report: told how far it is.
    """
    remembered = REMEMBERED_EPOCHS * settings.nodes
    with no_collection():
        swarm = SimulatedSwarm(settings, scenario, Openings.remembering(remembered))
        epochs = [await swarm.step(epoch, report) for epoch in range(settings.epochs)]
        return replace(await swarm.finish(), epochs=tuple(epochs))


def run(
    settings: Settings, scenario: Scenario, report: Report = lambda epoch, part: None
) -> Figures:
    """:func:`simulate` on a loop of its own."""
    return asyncio.run(simulate(settings, scenario, report))
