"""A swarm in one process and one thread: the parts of real nodes on wires and a clock of its own.

A simulated node is the trainer, rounds, pool, outbox, admission and member that ``join`` runs, over
:class:`swarm.memory_transport.MemoryTransport`. Nothing in it draws from the machine's own chance
or time, so a run is a function of its configuration, its base policy and the machine's arithmetic.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache

from node.config import Config
from node.experiment.bases import Base
from node.experiment.recording import Recording, RoundFigures
from node.experiment.settings import (
    EPOCH_SECONDS,
    START,
    Configuration,
    Settings,
    node_config,
    node_identity,
    signed_manifest,
)
from node.experiment.useless import UselessEngine
from node.membership import MIB
from node.outcome import Outcome
from node.policy import Policy, PolicyConfig
from node.rounds import Rules
from node.tasks.curriculum import served_levels
from node.tasks.local_judge import LocalJudge
from node.trainer import Trainer, open_pool
from protocol.frame import open_frame
from protocol.manifest import Manifest, open_manifest
from swarm.accounts import Accounts
from swarm.assembly import assemble
from swarm.clock import VirtualClock
from swarm.collector import CollectorLimits
from swarm.counters import Counters
from swarm.journal import MEMORY, Journal
from swarm.memory_transport import MemoryNetwork, MemoryTransport
from swarm.outbox import Outbox

REMEMBERED_FRAMES = 256
"""Opened once for all nodes: those of some rounds."""
SHARES_ALL = Rules(fill=False, discard=False)
TURNS = 2
"""Of every member after a round: by the second, all have published and pull the rest."""


class Surroundings:
    """What the nodes of one swarm share.

    Args:
        run: which arm, seed and regime.
        models: the base policies that the regime needs, folders or shipped models' names.
    """

    def __init__(self, settings: Settings, run: Configuration, models: Mapping[Base, str]) -> None:
        self.settings = settings
        self.run = run
        self.roles = run.roles(settings)
        self.clock = VirtualClock(START)
        self.network = MemoryNetwork(self.clock, run.seed)
        self.signed = signed_manifest(settings, run)
        self.manifest: Manifest = open_manifest(self.signed)
        self.judge = LocalJudge(self.manifest.catalogue)
        self.open_frame = lru_cache(REMEMBERED_FRAMES)(open_frame)
        self._bases = {
            kind: Policy.load(PolicyConfig(model, device="cpu")) for kind, model in models.items()
        }

    def config(self, number: int) -> Config:
        """Of node ``number``."""
        return node_config(self.settings, self.run, number, self._base(number).name)

    def policy(self, number: int) -> Policy:
        """The base policy of node ``number``, to be trained by it alone."""
        base = self._base(number)
        return Policy(deepcopy(base.model), base.tokenizer, base.name)

    def _base(self, number: int) -> Policy:
        return self._bases[self.roles[number].base]


class SimulatedNode:
    """One node of the swarm.

    Attributes:
        rounds: its loop.
        member: its place in the swarm.
        counters: what happened to it.
    """

    def __init__(self, around: Surroundings, number: int) -> None:
        self.config = config = around.config(number)
        self.counters = Counters()
        identity = node_identity(around.run.seed, number)
        clock, role = around.clock, around.roles[number]
        rules = SHARES_ALL if role.useless else around.run.arm.rules
        self._journal = journal = Journal(MEMORY, clock)
        pool = open_pool(config.mixture, journal, clock, self.counters, identity.author)
        outbox = Outbox(journal, self.counters)
        policy = around.policy(number)
        trainer = Trainer(
            config,
            policy,
            author=identity.author,
            manifest=around.manifest,
            levels=served_levels(around.manifest.catalogue, around.judge.start()),
            verifier=around.judge,
            journal=journal,
            pool=pool,
            clock=clock,
            counters=self.counters,
            secret=identity.author,
            engine=UselessEngine(policy, role.useless, config.node.seed) if role.useless else None,
        )
        self.rounds = trainer.rounds(
            publish=outbox.put,
            save=lambda number: None,
            report=lambda outcome: None,
            rules=rules,
        )
        self._transport = MemoryTransport(around.network, identity.peer_id, self.counters)
        self.member = assemble(
            self._transport,
            identity,
            around.signed,
            judge=around.judge,
            journal=journal,
            pool=pool,
            outbox=outbox,
            accounts=Accounts(journal, clock),
            clock=clock,
            counters=self.counters,
            limits=CollectorLimits(
                config.network.gossip_peers,
                config.network.pulls_per_epoch,
                uninformative=not rules.discard,
            ),
            upload_rate=config.network.upload_mib_per_s * MIB,
            secret=identity.author,
            rng=random.Random(f"member/{around.run.seed}/{number}"),
            threaded=False,
            opener=around.open_frame,
        )

    async def join(self) -> None:
        """Take part in the network."""
        await self._transport.start()

    def step(self) -> Outcome:
        """The next round."""
        return self.rounds.step(last=self.rounds.round + 1 == self.config.schedule.rounds)

    async def leave(self) -> None:
        """Go away for good."""
        await self._transport.close()
        self._journal.close()


class SimulatedSwarm:
    """All nodes, each present in the rounds of its role.

    Attributes:
        nodes: by number; whoever has not come yet is missing, whoever left is not.
    """

    def __init__(self, around: Surroundings) -> None:
        self.nodes: dict[int, SimulatedNode] = {}
        self._around = around
        self._spans = [role.span(around.settings.rounds) for role in around.roles]

    async def step(self, number: int) -> list[Outcome | None]:
        """Round ``number`` of all; whoever has no part in it has no outcome.

        Every present node generates, mixes and learns in turn; then the members publish, pull and
        admit, and the clock moves one epoch on. So what one round publishes, all may take in the
        next.
        """
        for place, span in enumerate(self._spans):
            if span.start == number:
                node = self.nodes[place] = SimulatedNode(self._around, place)
                await node.join()
        present = [place for place, span in enumerate(self._spans) if number in span]
        outcomes = {place: self.nodes[place].step() for place in present}
        for _ in range(TURNS):
            for place in present:
                await self.nodes[place].member.step()
        for place in present:
            if self._spans[place].stop == number + 1:
                await self.nodes[place].leave()
        await self._around.clock.advance(EPOCH_SECONDS)
        return [outcomes.get(place) for place in range(len(self._spans))]

    def check(self) -> None:
        """Look for what should not happen among nodes that keep to the protocol.

        Raises:
            RuntimeError: a group of one of the nodes was refused by another; the experiment would
                measure a defect.
        """
        for number, node in self.nodes.items():
            wrong = {
                name: total
                for name, total in node.counters.snapshot().items()
                if name.startswith(("refused", "pulls_failed", "records_refused", "outbox_dropped"))
            }
            wrong.pop("outbox_dropped{reason=frame_old}", None)
            if any(role.stays == "until the middle" for role in self._around.roles):
                # What those who left had announced is not to be had any more.
                wrong.pop("pulls_failed{reason=unreachable}", None)
            if wrong:
                raise RuntimeError(f"node {number + 1} of an honest swarm counted {wrong}")


async def simulate(
    settings: Settings,
    run: Configuration,
    models: Mapping[Base, str],
    report: Callable[[int], None] = lambda done: None,
) -> Recording:
    """Train a whole swarm to its last round.

    Args:
        models: see :class:`Surroundings`.
        report: told the number of rounds done.

    Raises:
        RuntimeError: see :meth:`SimulatedSwarm.check`.
    """
    around = Surroundings(settings, run, models)
    swarm, judged = SimulatedSwarm(around), run.regime.judged(settings.nodes)
    rows: list[RoundFigures] = []
    seconds: list[float] = []
    for number in range(1, settings.rounds + 1):
        began = time.process_time()
        outcomes = await swarm.step(number)
        seconds.append(time.process_time() - began)
        rows.append(RoundFigures.of(outcomes, judged))
        report(number)
    swarm.check()
    return Recording(run.arm.name, run.seed, tuple(rows), tuple(seconds))


def run_simulation(
    settings: Settings,
    run: Configuration,
    models: Mapping[Base, str],
    report: Callable[[int], None] = lambda done: None,
) -> Recording:
    """:func:`simulate` on a loop of its own."""
    return asyncio.run(simulate(settings, run, models, report))
