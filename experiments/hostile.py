"""Nodes whose groups do not help: useless engines, and hostile nodes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

from experiments.memory_transport import MemoryTransport
from experiments.poison import Poisoner
from experiments.recipe.corpus import noise_answer
from experiments.regimes import Attack
from experiments.settings import EPOCH_SECONDS, GROUPS_PER_EPOCH, SwarmContext, node_identity
from node.engines.engine import RolloutEngine, Sample, Sampling, SamplingRequest
from node.network.membership import MIB
from node.policy.policy import Policy
from node.rollout.generator import TaskIndexes
from protocol.rollout import Finish, Tokens
from swarm.common.counters import Counters
from swarm.directory import LIFETIME_EPOCHS, Directory
from swarm.exchange import Exchange
from swarm.journal import MEMORY, Journal
from swarm.publisher import Outbox, Publisher
from swarm.reputation import Accounts

CONSTANT = "unknown"


class UselessEngine(RolloutEngine):
    """Answer every prompt with the same text, or at random, with probability 1.

    Updates of the policy change nothing.

    Args:
        policy: its tokenizer encodes the answers.
        kind: always :data:`CONSTANT`, or one to four random letters and digits.
        seed: seed of the random answers.
    """

    def __init__(self, policy: Policy, kind: Literal["constant", "random"], seed: int) -> None:
        self._policy = policy
        self._random = random.Random(seed)
        self._done: defaultdict[int, list[tuple[int, Sample]]] = defaultdict(list)
        self._write: Callable[[], str] = (
            (lambda: CONSTANT) if kind == "constant" else (lambda: noise_answer(self._random))
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling
    ) -> list[list[Sample]]:
        return [[self._sample(self._write()) for _ in range(n)] for _ in prompts]

    def submit(self, trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        written = self.generate([each.prompt for each in trajectories], 1, sampling)
        for each, (sample,) in zip(trajectories, written, strict=True):
            self._done[each.stream].append((each.key, sample))

    def poll(self, seconds: float, stream: int = 0) -> list[tuple[int, Sample]]:
        return self._done.pop(stream, [])

    def abort(self, keys: Sequence[int]) -> None:
        """Do nothing: there is no cache."""

    def nudge(self) -> None:
        """Do nothing: :meth:`poll` never waits."""

    def pause(self) -> list[tuple[int, Tokens]]:
        return []

    def update(self, policy: Policy) -> None:
        """Use the tokenizer of the new policy."""
        self._policy = policy

    def state_dict(self) -> dict[str, Any]:
        return {"random": self._random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random.setstate(state["random"])

    def _sample(self, text: str) -> Sample:
        ids = tuple(self._policy.encode_completion(text, stopped=True))
        versions = (self._policy.version,) * len(ids)
        tokens = Tokens(ids, (0.0,) * len(ids), versions)
        return Sample(tokens, Finish.STOP, text)


class HostileNode:
    """Node without a policy that publishes poisoned groups and pulls nothing.

    It samples tasks, seals frames, announces, serves and holds records with the code of an honest
    node. It renews its record only as often as necessary to stay known.

    Attributes:
        author: public key.
    """

    def __init__(
        self, context: SwarmContext, number: int, attack: Attack, poisoners: Sequence[Poisoner]
    ) -> None:
        config, clock, counters = context.config(number), context.clock, Counters()
        identity = node_identity(context.run.seed, number)
        self.author = identity.author
        self._number = number
        self._attack = attack
        self._poisoners = poisoners  # used in turn
        journal = Journal(MEMORY, clock)
        self._indexes = TaskIndexes(
            journal, clock, EPOCH_SECONDS, GROUPS_PER_EPOCH, random.Random(number)
        )
        self._outbox = Outbox(journal, counters)
        self._transport = MemoryTransport(context.network, identity.peer_id, counters)
        directory = Directory(
            self._transport,
            identity,
            context.signed,
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
            context.signed,
            Accounts(journal, clock),
            clock,
            counters,
            upload_rate=config.network.upload_mib_per_s * MIB,
        )

    async def join(self) -> None:
        await self._transport.start()

    async def step(self, number: int) -> None:
        """Write, seal and announce what is due in round ``number``."""
        due = number + self._number
        if due % self._attack.every == 0:
            poisoner = self._poisoners[due // self._attack.every % len(self._poisoners)]
            groups = poisoner.groups(self.author, self._indexes, self._attack.groups)
            self._outbox.put(groups, poisoner.origin)
        if due % min(self._attack.every, int(LIFETIME_EPOCHS)) == 0:
            await self._publisher.publish()
