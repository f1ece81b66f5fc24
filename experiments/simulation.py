"""A swarm in one process and one thread: the parts of real nodes on wires and a clock of its own.

A simulated node is the trainer, rounds, pool, outbox, admission and member that ``join`` runs, over
:class:`swarm.transport.memory.MemoryTransport`. Nothing in it draws from the machine's own
chance or time, so a run is a function of its configuration, its base policy and the machine's
arithmetic.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping

from experiments.bases import Base
from experiments.hostile import HostileNode, poisoner
from experiments.imagined import Imagination, PartlyImagined, imagination
from experiments.influence import LOOKED_AFTER, Influx, Watch
from experiments.recording import Recording, RoundFigures
from experiments.settings import EPOCH_SECONDS, Configuration, Settings, node_identity
from experiments.surroundings import Surroundings
from experiments.useless import UselessEngine
from node.engines.engine import Sampling
from node.network.membership import MIB
from node.run.training_loop import Trainer, TrainingLoop, open_experience
from node.run.update_groups import Outcome
from node.tasks.curriculum import served_levels
from protocol.manifest import swarm_id
from swarm.admission import Admission
from swarm.collector import CollectorLimits
from swarm.common.counters import Counters
from swarm.groups import PooledGroup
from swarm.journal import MEMORY, Journal
from swarm.member import Member, assemble
from swarm.transport.memory import MemoryTransport
from swarm.verification import STALE_EPOCH

TURNS = 2
"""Of every member after a round: by the second, all have published and pull the rest."""


class SimulatedNode:
    """One node of the swarm.

    Args:
        imagination: writes what it shares in place of its own groups, if its role says so.

    Attributes:
        rounds: its loop.
        member: its place in the swarm.
        policy: what it trains.
        counters: what happened to it.
        accounts: what it knows of the others, while it takes part.
    """

    def __init__(
        self, around: Surroundings, number: int, imagination: Imagination | None = None
    ) -> None:
        self.config = config = around.config(number)
        self.counters = Counters()
        self.policy = around.policy(number)
        self._identity = node_identity(around.run.seed, number)
        author, clock = self._identity.author, around.clock
        journal = Journal(MEMORY, clock)
        experience = open_experience(config.mixture, journal, clock, self.counters, author)
        self._experience, self.accounts = experience, experience.accounts
        self._refused: dict[bytes, Mapping[str, int]] | None = None
        put = experience.outbox.put
        self._publish = PartlyImagined(imagination, around, number, put) if imagination else put
        self.rounds = self._rounds(around, number)
        self._transport = MemoryTransport(around.network, self._identity.peer_id, self.counters)
        self.member = self._member(around, number)

    def _rounds(self, around: Surroundings, number: int) -> TrainingLoop:
        config, useless = self.config, around.roles[number].useless
        trainer = Trainer(
            config,
            self.policy,
            author=self._identity.author,
            manifest=around.manifest,
            levels=served_levels(around.manifest.catalogue, around.judge.start()),
            verifier=around.judge,
            experience=self._experience,
            clock=around.clock,
            counters=self.counters,
            rules=around.rules(number),
            secret=self._identity.author,
            engine=UselessEngine(self.policy, useless, config.node.seed) if useless else None,
        )
        return trainer.rounds(
            publish=self._publish,
            save=lambda number: None,
            rate=lambda number, reward: False,
            report=lambda outcome: None,
        )

    def _member(self, around: Surroundings, number: int) -> Member:
        network, clock = self.config.network, around.clock
        return assemble(
            self._transport,
            self._identity,
            around.signed,
            Admission(
                around.manifest,
                swarm_id(around.signed),
                around.judge,
                self.accounts,
                self._experience.journal,
                clock,
                self.counters,
                threaded=False,
                opener=around.open_frame,
            ),
            self._experience,
            clock=clock,
            counters=self.counters,
            limits=CollectorLimits(
                network.gossip_peers,
                network.pulls_per_epoch,
                uninformative=not around.rules(number).discard,
            ),
            upload_rate=network.upload_mib_per_s * MIB,
            secret=self._identity.author,
            rng=random.Random(f"member/{around.run.seed}/{number}"),
        )

    async def join(self) -> None:
        """Take part in the network."""
        await self._transport.start()

    def step(self) -> Outcome:
        """The next round."""
        return self.rounds.step(last=self.rounds.round + 1 == self.config.schedule.rounds)

    @property
    def refused(self) -> dict[bytes, Mapping[str, int]]:
        """Refusals by author and reason, up to now or to when it left."""
        if self._refused is not None:
            return self._refused
        return {a.author: a.refused for a in self.accounts.snapshot() if a.refused}

    async def leave(self) -> None:
        """Go away for good."""
        await self._transport.close()
        self._refused = self.refused
        self._experience.journal.close()


class SimulatedSwarm:
    """All nodes, each present in the rounds of its role.

    Attributes:
        nodes: that train, by number; whoever has not come yet is missing, whoever left is not.
        hostile: those that only give, with higher numbers.
        imagination: writes the imagined groups; None where nobody shares any.
    """

    def __init__(self, around: Surroundings) -> None:
        self.nodes: dict[int, SimulatedNode] = {}
        self._around = around
        honest = [role for role in around.roles if role.attack is None]
        self._spans = [role.span(around.settings.rounds) for role in honest]
        self.hostile = tuple(_hostile(around))
        self.imagination = imagination(around)

    async def step(self, number: int) -> list[Outcome | None]:
        """Round ``number`` of all that train; whoever has no part in it has no outcome.

        Every present node generates, mixes and learns in turn; then the members publish, hostile
        ones first, pull and admit, and the clock moves one epoch on. So what one round publishes,
        all may take in the next.
        """
        if number == 1:
            for stranger in self.hostile:
                await stranger.join()
        for place, span in enumerate(self._spans):
            if span.start == number:
                node = self.nodes[place] = SimulatedNode(self._around, place, self.imagination)
                await node.join()
        present = [place for place, span in enumerate(self._spans) if number in span]
        outcomes = {place: self.nodes[place].step() for place in present}
        for stranger in self.hostile:
            await stranger.step(number)
        for _ in range(TURNS):
            for place in present:
                await self.nodes[place].member.step()
        for place in present:
            if self._spans[place].stop == number + 1:
                await self.nodes[place].leave()
        await self._around.clock.advance(EPOCH_SECONDS)
        return [outcomes.get(place) for place in range(len(self._spans))]

    def harmful(self, group: PooledGroup) -> bool:
        """Whether a group is a hostile author's or imagined."""
        imagined = self.imagination is not None and group.key in self.imagination.written
        return imagined or group.author in {stranger.author for stranger in self.hostile}

    def check(self) -> None:
        """Look for what should not happen among nodes that keep to the protocol.

        Hostile authors may be refused whatever they share, and may fail to serve it. Where they
        crowd honest frames out, those are pulled late, and some groups in them are too old.

        Raises:
            RuntimeError: a group of one of the honest nodes was refused by another; the experiment
                would measure a defect.
        """
        hostile = {stranger.author for stranger in self.hostile}
        for number, node in self.nodes.items():
            honest = {
                f"{who.hex()} {why}": total
                for who, reasons in node.refused.items()
                for why, total in reasons.items()
                if who not in hostile and not (hostile and why == STALE_EPOCH)
            }
            wrong = honest or self._miscounted(node)
            if wrong:
                raise RuntimeError(f"node {number + 1} of an honest swarm counted {wrong}")

    def _miscounted(self, node: SimulatedNode) -> Mapping[str, object]:
        """What a node counted without an author, and should not have."""
        names: tuple[str, ...] = ("records_refused", "outbox_dropped")
        if not self.hostile:
            names += "refused", "pulls_failed"
        counted = node.counters.snapshot()
        wrong = {name: total for name, total in counted.items() if name.startswith(names)}
        wrong.pop("outbox_dropped{reason=frame_old}", None)
        if any(role.stays == "until the middle" for role in self._around.roles):
            # What those who left had announced is not to be had any more.
            wrong.pop("pulls_failed{reason=unreachable}", None)
        return wrong


def _hostile(around: Surroundings) -> Iterator[HostileNode]:
    """Every hostile node of the swarm; what they share comes from one source."""
    attacks = [(n, role.attack) for n, role in enumerate(around.roles) if role.attack]
    if attacks:
        source = poisoner(around)
        yield from (HostileNode(around, number, attack, source) for number, attack in attacks)


def _watch(around: Surroundings, swarm: SimulatedSwarm) -> Watch | None:
    regime, engine = around.run.regime, around.config(0).engine
    if regime.watched is None:
        return None
    return Watch(
        around.judge,
        served_levels(around.manifest.catalogue, around.judge.start()),
        Sampling(engine.temperature, engine.max_new_tokens),
        hostile=swarm.harmful,
        looks=(*LOOKED_AFTER, around.settings.rounds) if regime.watched == "trigger" else (),
    )


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
    if watch := _watch(around, swarm):
        watch.look(0, {number: around.policy(number) for number in judged})
    rows: list[RoundFigures] = []
    seconds: list[float] = []
    for number in range(1, settings.rounds + 1):
        began = time.process_time()
        outcomes = await swarm.step(number)
        seconds.append(time.process_time() - began)
        rows.append(RoundFigures.of(outcomes, judged))
        if watch:
            watch.count([outcome for n in judged if (outcome := outcomes[n])])
            watch.look(number, {n: swarm.nodes[n].policy for n in judged})
        report(number)
    swarm.check()
    influx = Influx(tuple(watch.shares), tuple(watch.looks)) if watch else None
    return Recording(run.arm.name, run.seed, tuple(rows), tuple(seconds), influx)


def run_simulation(
    settings: Settings,
    run: Configuration,
    models: Mapping[Base, str],
    report: Callable[[int], None] = lambda done: None,
) -> Recording:
    """:func:`simulate` on a loop of its own."""
    return asyncio.run(simulate(settings, run, models, report))
