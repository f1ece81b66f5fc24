"""Simulated swarm in one process and one thread, with the code of real nodes.

A simulated node has the trainer, training loop, pool, outbox, admission and member of ``join``, on
:mod:`experiments.memory_transport`. All random draws and the clock are its own, so a run is a
function of its configuration, its base policy and the machine's arithmetic.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from experiments.hostile import HostileNode, UselessEngine
from experiments.memory_transport import MemoryTransport
from experiments.poison import poisoners
from experiments.recording import LOOK_ROUNDS, InfluenceMonitor, Influx, Recording, RoundFigures
from experiments.run_state import RunState
from experiments.settings import EPOCH_SECONDS, Configuration, Settings, SwarmContext, node_identity
from experiments.setups import Base
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.evaluation.evaluator import Evaluator, heldout_tasks
from node.network.membership import MIB
from node.run.training_loop import Trainer, TrainingLoop, open_experience
from node.run.update_groups import Outcome
from node.tasks.curriculum import served_levels
from node.trajectories.trajectory import TurnLimits
from protocol.manifest import swarm_id
from swarm.admission import Admission
from swarm.collector import CollectorLimits
from swarm.common.counters import Counters
from swarm.groups import PooledGroup
from swarm.journal import MEMORY, Journal
from swarm.member import Member, assemble
from swarm.verification import STALE_EPOCH

TURNS = 2  # turns of every member after a round: in the second, all have published


class SimulatedNode:
    """One node of the swarm.

    Attributes:
        accounts: reputation of other authors.
    """

    def __init__(self, context: SwarmContext, number: int) -> None:
        self.config = config = context.config(number)
        self.counters = Counters()
        self.policy = context.policy(number)
        self._identity = node_identity(context.run.seed, number)
        author, clock = self._identity.author, context.clock
        journal = Journal(MEMORY, clock)
        experience = open_experience(config.mixture, journal, clock, self.counters, author)
        self._experience, self.accounts = experience, experience.accounts
        self._refused: dict[bytes, Mapping[str, int]] | None = None
        self.rounds = self._rounds(context, number)
        self._transport = MemoryTransport(context.network, self._identity.peer_id, self.counters)
        self.member = self._member(context, number)

    def _rounds(self, context: SwarmContext, number: int) -> TrainingLoop:
        config, useless = self.config, context.roles[number].useless
        trainer = Trainer(
            config,
            self.policy,
            author=self._identity.author,
            manifest=context.manifest,
            levels=served_levels(context.manifest.catalogue, context.verifier.start()),
            verifier=context.verifier,
            experience=self._experience,
            clock=context.clock,
            counters=self.counters,
            rules=replace(context.rules(number), costs=False),
            reference=context.reference(number),
            secret=self._identity.author,
            engine=UselessEngine(self.policy, useless, config.node.seed) if useless else None,
        )
        return trainer.rounds(
            publish=self._experience.outbox.put,
            save=lambda number: None,
            rate=lambda number, reward: False,
            report=lambda outcome: None,
        )

    def _member(self, context: SwarmContext, number: int) -> Member:
        network, clock = self.config.network, context.clock
        return assemble(
            self._transport,
            self._identity,
            context.signed,
            Admission(
                context.manifest,
                swarm_id(context.signed),
                context.verifier,
                self.accounts,
                self._experience.journal,
                clock,
                self.counters,
                threaded=False,
                opener=context.open_frame,
            ),
            self._experience,
            clock=clock,
            counters=self.counters,
            limits=CollectorLimits(
                network.gossip_peers,
                network.pulls_per_epoch,
                uninformative=not context.rules(number).discard,
            ),
            upload_rate=network.upload_mib_per_s * MIB,
            secret=self._identity.author,
            rng=random.Random(f"member/{context.run.seed}/{number}"),
        )

    async def join(self) -> None:
        await self._transport.start()

    def step(self) -> Outcome:
        return self.rounds.step(last=self.rounds.round + 1 == self.config.schedule.rounds)

    @property
    def refused(self) -> dict[bytes, Mapping[str, int]]:
        """Return refusals by author and reason, until now or until the node left."""
        if self._refused is not None:
            return self._refused
        return {a.author: a.refused for a in self.accounts.snapshot() if a.refused}

    async def leave(self) -> None:
        await self._transport.close()
        self._refused = self.refused
        self._experience.journal.close()


class SimulatedSwarm:
    """All nodes, each present in the rounds of its role.

    Attributes:
        nodes: training nodes that have joined, by number, also after they left.
        hostile: hostile nodes; their numbers follow those of the training nodes.
    """

    def __init__(self, context: SwarmContext) -> None:
        self.nodes: dict[int, SimulatedNode] = {}
        self._context = context
        honest = [role for role in context.roles if role.attack is None]
        self._spans = [role.span(context.settings.rounds) for role in honest]
        self.hostile = tuple(_hostile(context))

    async def step(self, number: int) -> list[Outcome | None]:
        """Run round ``number`` and return the outcome of each training node; None for absent ones.

        Every present node generates and learns in turn. Then the members publish, hostile ones
        first, pull and admit, and the clock advances by one time slot. Groups of one round are
        usable in the next.
        """
        if number == 1:
            for attacker in self.hostile:
                await attacker.join()
        for place, span in enumerate(self._spans):
            if span.start == number:
                node = self.nodes[place] = SimulatedNode(self._context, place)
                await node.join()
        present = [place for place, span in enumerate(self._spans) if number in span]
        outcomes = {place: self.nodes[place].step() for place in present}
        for attacker in self.hostile:
            await attacker.step(number)
        for _ in range(TURNS):
            for place in present:
                await self.nodes[place].member.step()
        for place in present:
            if self._spans[place].stop == number + 1:
                await self.nodes[place].leave()
        await self._context.clock.advance(EPOCH_SECONDS)
        return [outcomes.get(place) for place in range(len(self._spans))]

    def harmful(self, group: PooledGroup) -> bool:
        return group.author in {node.author for node in self.hostile}

    def check(self) -> None:
        """Verify that honest nodes refused no group of one another.

        Hostile authors may be refused for any reason and may fail to serve. If they crowd out
        honest frames, these are pulled late, and some of their groups are too old.

        Raises:
            RuntimeError: an honest node refused a group of another, which is a defect.
        """
        hostile = {node.author for node in self.hostile}
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
        """Return counters without an author that must be 0 in an honest swarm."""
        names: tuple[str, ...] = ("records_refused", "outbox_dropped")
        if not self.hostile:
            names += "refused", "pulls_failed"
        counted = node.counters.snapshot()
        wrong = {name: total for name, total in counted.items() if name.startswith(names)}
        wrong.pop("outbox_dropped{reason=frame_old}", None)
        if any(role.stays == "until the middle" for role in self._context.roles):
            # Groups of nodes that left are unreachable.
            wrong.pop("pulls_failed{reason=unreachable}", None)
        return wrong


def _hostile(context: SwarmContext) -> Iterator[HostileNode]:
    attacks = [(n, role.attack) for n, role in enumerate(context.roles) if role.attack]
    if attacks:
        sources = poisoners(context)
        yield from (HostileNode(context, number, attack, sources) for number, attack in attacks)


def _watch(context: SwarmContext, swarm: SimulatedSwarm) -> InfluenceMonitor | None:
    regime, engine = context.run.regime, context.config(0).engine
    if not regime.watched:
        return None
    return InfluenceMonitor(
        context.verifier,
        served_levels(context.manifest.catalogue, context.verifier.start()),
        Sampling(engine.temperature, engine.max_new_tokens),
        hostile=swarm.harmful,
        looks=(*LOOK_ROUNDS, context.settings.rounds),
        opening=context.opening,
    )


PASSES = 8  # completions per held-out task at the end of a run with a model of one's own


def _coverage(
    context: SwarmContext, swarm: SimulatedSwarm, judged: Collection[int]
) -> float | None:
    """Return pass@8 of the final policies; None for tiny models, whose answers are few."""
    if context.settings.answers != "starter":
        return None
    levels = served_levels(context.manifest.catalogue, context.verifier.start())
    tasks, found = heldout_tasks(levels, context.settings.eval_tasks), list[float]()
    for number in judged:
        policy, keys = swarm.nodes[number].policy, context.config(number).engine
        evaluator = Evaluator(
            policy,
            TransformersEngine(policy, seed=number),
            context.verifier,
            tasks,
            Sampling(keys.temperature, keys.max_new_tokens, seed=context.run.seed),
            Counters(),
            TurnLimits.of(keys),
        )
        found.append(evaluator.evaluate(PASSES).pass_at(PASSES))
    return fmean(found)


class UnfinishedRun:
    """A run between two rounds: its swarm and its figures so far.

    Attributes:
        rows: figures of the finished rounds.
    """

    def __init__(self, context: SwarmContext) -> None:
        self.rows: list[RoundFigures] = []
        self._seconds: list[float] = []
        self._context = context
        self._judged = context.run.regime.judged(context.settings.nodes)
        self._swarm = SimulatedSwarm(context)
        self._watch = _watch(context, self._swarm)
        if self._watch:
            self._watch.look(0, {number: context.policy(number) for number in self._judged})

    async def step(self) -> None:
        """Run the next round."""
        # A GPU's work is not CPU time.
        on_cpu = self._context.settings.device == "cpu"
        clock = time.process_time if on_cpu else time.perf_counter
        number, began = len(self.rows) + 1, clock()
        outcomes = await self._swarm.step(number)
        self._seconds.append(clock() - began)
        self.rows.append(RoundFigures.of(outcomes, self._judged))
        if watch := self._watch:
            watch.count([outcome for n in self._judged if (outcome := outcomes[n])])
            watch.look(number, {n: self._swarm.nodes[n].policy for n in self._judged})

    def recording(self) -> Recording:
        """Return what was measured; raise RuntimeError as :meth:`SimulatedSwarm.check` does."""
        self._swarm.check()
        run, watch = self._context.run, self._watch
        influx = Influx(tuple(watch.shares), tuple(watch.looks)) if watch else None
        coverage = _coverage(self._context, self._swarm, self._judged)
        rows, seconds = tuple(self.rows), tuple(self._seconds)
        return Recording(run.arm.name, run.seed, rows, seconds, influx, coverage)


def run_simulation(
    settings: Settings,
    run: Configuration,
    models: Mapping[Base, str],
    report: Callable[[int], None] = lambda done: None,
    unfinished: Path | None = None,
) -> Recording:
    """Train a whole swarm to its last round.

    Args:
        models: see :class:`SwarmContext`.
        report: called with the number of finished rounds.
        unfinished: file in which the run is saved now and then, and from which it resumes.

    Raises:
        RuntimeError: see :meth:`SimulatedSwarm.check`.
    """

    async def train() -> Recording:
        context = SwarmContext(settings, run, models)
        conditions = f"{settings} {run.arm} {run.seed} {run.regime.name}"
        state = RunState(unfinished, conditions, context.shared()) if unfinished else None
        progress: UnfinishedRun = (state and state.load()) or UnfinishedRun(context)
        while len(progress.rows) < settings.rounds:
            await progress.step()
            report(len(progress.rows))
            if state:
                state.offer(progress)
        return progress.recording()

    try:
        return asyncio.run(train())
    finally:
        gc.collect()  # frees the swarm, whose nodes refer to themselves
