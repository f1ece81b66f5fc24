"""One member of a simulated swarm, with all that it stands on."""

from __future__ import annotations

import random
from hashlib import sha256

from experiments.scale.accounts import AccountsInMemory
from experiments.scale.journal import JournalInMemory
from experiments.scale.network import SimulatedNetwork, SimulatedTransport
from experiments.scale.settings import Agreed, Settings
from experiments.scale.shared_memory import Openings
from experiments.scale.stand_ins import JudgeStandIn, LearnerStandIn
from protocol.identity import Identity
from swarm.admission import Admission
from swarm.collector import CollectorLimits
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.groups import GroupKey
from swarm.member import Experience, assemble
from swarm.pool import Pool
from swarm.publisher import Outbox

POOL_GROUPS = 256
POOL_SECONDS = 3600.0
UPLOAD_RATE = 8.0 * (1 << 20)


class SimulatedNode:
    """A real member, journal, pool and admission, between stand-ins for judge and learner.

    Attributes:
        transport: its end of the network, with what it spends.
        joined: unix time at which it came, seconds.
        phase: when within each turn it is its turn, in [0, 1).
        first: unix time at which its pool had its first outside group; None while there is none.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        agreed: Agreed,
        openings: Openings,
        settings: Settings,
        number: int,
    ) -> None:
        name = f"node/{settings.seed}/{number}"
        identity = Identity.from_seed(sha256(name.encode()).digest())
        clock, counters = network.clock, Counters()
        self.author = identity.author
        self.joined = 0.0
        self.phase = random.Random(f"phase/{name}").random()
        self.first: float | None = None
        self.transport = SimulatedTransport(network, identity.peer_id)
        self._clock = clock
        self._journal = journal = JournalInMemory(clock)
        self._pool = pool = Pool(journal, POOL_GROUPS, POOL_SECONDS, clock, counters)
        accounts = AccountsInMemory(journal, clock)
        experience = Experience(journal, pool, Outbox(journal, counters), accounts)
        most = agreed.manifest.max_groups_per_epoch
        self._learner = LearnerStandIn(experience, settings.groups, most)
        self._member = assemble(
            self.transport,
            identity,
            agreed.signed,
            _admission(experience, agreed, openings, clock, counters),
            experience,
            clock=clock,
            counters=counters,
            limits=CollectorLimits(settings.gossip_peers, settings.pulls),
            upload_rate=UPLOAD_RATE,
            secret=identity.author,
            rng=random.Random(name),
            opener=openings.record,
        )

    @property
    def depth(self) -> float:
        """At which it takes announcements to stand."""
        return self._member.density.depth

    async def join(self) -> None:
        """Take part in the network."""
        await self.transport.start()

    async def leave(self) -> None:
        """Go away for good, without a word."""
        await self.transport.close()
        self._journal.close()

    def write(self, epoch: int) -> int:
        """Write an epoch's groups, to be published with the next turn; how many they are."""
        return self._learner.write(epoch)

    async def turn(self) -> int:
        """One turn of the member; how many outside groups its pool has got by it."""
        await self._member.step()
        got = len(self._pool.arrived())
        if got and self.first is None:
            self.first = self._clock.time()
        return got

    def learn(self) -> list[GroupKey]:
        """Use what lies in the pool; what that was."""
        return self._learner.learn()


def _admission(
    experience: Experience, agreed: Agreed, openings: Openings, clock: Clock, counters: Counters
) -> Admission:
    """A real gate, but for the judge behind it."""
    return Admission(
        agreed.manifest,
        agreed.swarm_id,
        JudgeStandIn(),
        experience.accounts,
        experience.journal,
        clock,
        counters,
        threaded=False,
        opener=openings.frame,
    )
