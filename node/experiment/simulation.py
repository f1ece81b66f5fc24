"""A swarm in one process and one thread: the parts of real nodes on wires and a clock of its own.

A simulated node is the trainer, rounds, pool, outbox, admission and member that ``join`` runs, over
:class:`swarm.memory_transport.MemoryTransport`. Nothing in it draws from the machine's own chance
or time, so a run is a function of its configuration, its base policy and the machine's arithmetic.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache

from node.config import Config
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
from node.membership import MIB
from node.policy import Policy, PolicyConfig
from node.rounds import Outcome
from node.tasks.curriculum import served_levels
from node.tasks.local_judge import LocalJudge
from node.trainer import Trainer
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
from swarm.pool import Pool

REMEMBERED_FRAMES = 256
"""Opened once for all nodes: those of some rounds."""
TURNS = 2
"""Of every member after a round: by the second, all have published and pull the rest."""


class Surroundings:
    """What the nodes of one swarm share.

    Args:
        run: which arm and seed.
        model: the base policy, a folder or a shipped model's name.
    """

    def __init__(self, settings: Settings, run: Configuration, model: str) -> None:
        self.settings = settings
        self.run = run
        self.clock = VirtualClock(START)
        self.network = MemoryNetwork(self.clock, run.seed)
        self.signed = signed_manifest(settings, run)
        self.manifest: Manifest = open_manifest(self.signed)
        self.judge = LocalJudge(self.manifest.catalogue)
        self.open_frame = lru_cache(REMEMBERED_FRAMES)(open_frame)
        self._model = model
        self._base = Policy.load(PolicyConfig(model, device="cpu"))

    def config(self, number: int) -> Config:
        """Of node ``number``."""
        return node_config(self.settings, self.run, number, self._model)

    def policy(self) -> Policy:
        """The base policy, to be trained by one node."""
        return Policy(deepcopy(self._base.model), self._base.tokenizer, self._model)


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
        clock, rules = around.clock, around.run.arm.rules
        self._journal = journal = Journal(MEMORY, clock)
        pool = Pool(
            journal, config.mixture.pool_groups, config.mixture.max_age, clock, self.counters
        )
        outbox = Outbox(journal, self.counters)
        trainer = Trainer(
            config,
            around.policy(),
            author=identity.author,
            manifest=around.manifest,
            levels=served_levels(around.manifest.catalogue, around.judge.start()),
            verifier=around.judge,
            journal=journal,
            pool=pool,
            clock=clock,
            counters=self.counters,
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

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()


async def simulate(
    settings: Settings,
    run: Configuration,
    model: str,
    report: Callable[[int], None] = lambda done: None,
) -> Recording:
    """Train a whole swarm to its last round.

    In a round every node generates, mixes and learns in turn; then the members publish, pull and
    admit, and the clock moves one epoch on. So what one round publishes, all may take in the next.

    Args:
        model: the base policy of this seed.
        report: told the number of rounds done.

    Raises:
        RuntimeError: a group of one of the nodes was refused by another, which no honest node
            sees; the experiment would measure a defect.
    """
    around = Surroundings(settings, run, model)
    nodes = [SimulatedNode(around, number) for number in range(settings.nodes)]
    for node in nodes:
        await node.join()
    rows: list[RoundFigures] = []
    seconds: list[float] = []
    for number in range(1, settings.rounds + 1):
        began = time.process_time()
        outcomes = [node.step() for node in nodes]
        for _ in range(TURNS):
            for node in nodes:
                await node.member.step()
        await around.clock.advance(EPOCH_SECONDS)
        seconds.append(time.process_time() - began)
        rows.append(RoundFigures.of(outcomes))
        report(number)
    _check(nodes)
    for node in nodes:
        node.close()
    return Recording(run.arm.name, run.seed, tuple(rows), tuple(seconds))


def run_simulation(
    settings: Settings,
    run: Configuration,
    model: str,
    report: Callable[[int], None] = lambda done: None,
) -> Recording:
    """:func:`simulate` on a loop of its own."""
    return asyncio.run(simulate(settings, run, model, report))


def _check(nodes: list[SimulatedNode]) -> None:
    for number, node in enumerate(nodes):
        wrong = {
            name: total
            for name, total in node.counters.snapshot().items()
            if name.startswith(("refused", "pulls_failed", "records_refused", "outbox_dropped"))
        }
        wrong.pop("outbox_dropped{reason=frame_old}", None)
        if wrong:
            raise RuntimeError(f"node {number + 1} of an honest swarm counted {wrong}")
