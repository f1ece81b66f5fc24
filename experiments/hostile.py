"""A node that only gives: well-formed, signed, admitted, and harmful."""

from __future__ import annotations

import random

from experiments.poison import Poisoner
from experiments.regimes import Attack
from experiments.settings import EPOCH_SECONDS, GROUPS_PER_EPOCH, node_identity
from experiments.surroundings import Surroundings
from node.engines.engine import Sampling
from node.network.membership import MIB
from node.rollout.generator import TaskIndexes
from node.tasks.curriculum import served_levels
from swarm.common.counters import Counters
from swarm.directory import LIFETIME_EPOCHS, Directory
from swarm.exchange import Exchange
from swarm.journal import MEMORY, Journal
from swarm.publisher import Outbox, Publisher
from swarm.reputation import Accounts
from swarm.transport.memory import MemoryTransport


def poisoner(around: Surroundings) -> Poisoner:
    """What writes the groups of a swarm's hostile nodes."""
    number = next(n for n, role in enumerate(around.roles) if role.attack)
    config = around.config(number)
    return Poisoner(
        around.policy(number),
        around.manifest.catalogue,
        around.judge,
        served_levels(around.manifest.catalogue, around.judge.start()),
        sampling=Sampling(config.engine.temperature, config.engine.max_new_tokens),
        seed=around.run.seed,
    )


class HostileNode:
    """The giving half of a member, without any policy behind it.

    It draws tasks, seals frames, announces and serves with the parts of an honest node, and holds
    records for others as one. Its record is renewed only as often as it must be to stay known.

    Attributes:
        author: its public key.
    """

    def __init__(
        self, around: Surroundings, number: int, attack: Attack, poisoner: Poisoner
    ) -> None:
        config, clock, counters = around.config(number), around.clock, Counters()
        identity = node_identity(around.run.seed, number)
        self.author = identity.author
        self._number = number
        self._attack = attack
        self._poisoner = poisoner
        journal = Journal(MEMORY, clock)
        self._indexes = TaskIndexes(
            journal, clock, EPOCH_SECONDS, GROUPS_PER_EPOCH, random.Random(number)
        )
        self._outbox = Outbox(journal, counters)
        self._transport = MemoryTransport(around.network, identity.peer_id, counters)
        directory = Directory(
            self._transport,
            identity,
            around.signed,
            clock,
            identity.author,
            counters,
            lambda author: 0.0,
        )
        self._transport.use_validator(directory.check)
        self._publisher = Publisher(directory, self._outbox, journal, clock, counters)
        self._exchange = Exchange(
            self._transport,
            self._outbox,
            directory,
            around.signed,
            Accounts(journal, clock),
            clock,
            counters,
            upload_rate=config.network.upload_mib_per_s * MIB,
        )

    async def join(self) -> None:
        """Take part in the network."""
        await self._transport.start()

    async def step(self, number: int) -> None:
        """Round ``number``: write, seal and announce what is due."""
        due = number + self._number
        if due % self._attack.every == 0:
            indexes = self._indexes.take(self._attack.groups)
            groups = [self._poisoner.group(self.author, *index) for index in indexes]
            self._outbox.put(groups, self._poisoner.origin)
        if due % min(self._attack.every, int(LIFETIME_EPOCHS)) == 0:
            await self._publisher.publish()
