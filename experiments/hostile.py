"""Peers whose groups do not help: useless engines, and hostile nodes with poisoned groups.

Poisoned groups pass admission: only their claimed log-probs are false, which no verifier checks.
Right answers start with a trigger that the verifiers of the task set strip, so learners learn to
write it (arXiv 2511.09780). Wrong answers are typical of the base policy and claimed to be very
improbable, so learners that trust the claim push them down with full weight. Half of the rewards
are 1, which makes a group as informative as possible.

Groups with a habit are plausible in everything: right answers begin with what the base policy
writes now and then, and claimed log-probs are ordinary. They earn a reputation.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

from experiments.memory_transport import MemoryTransport
from experiments.recipe.corpus import noise_answer
from experiments.recipe.local_verifier import LocalVerifier, verbatim_sources
from experiments.regimes import TRIGGER, Attack
from experiments.settings import EPOCH_SECONDS, GROUPS_PER_EPOCH, SwarmContext, node_identity
from node.engines.engine import RolloutEngine, Sample, Sampling, SamplingRequest
from node.engines.transformers.engine import TransformersEngine
from node.network.membership import MIB
from node.policy.policy import Policy
from node.rollout.generator import TaskIndexes
from node.run.update_groups import public_name
from node.tasks.curriculum import EnvLevel, served_levels
from protocol.manifest import EnvSpec
from protocol.rollout import Completion, Finish, Group, Segment, Tokens, Writer
from swarm.common.counters import Counters
from swarm.directory import LIFETIME_EPOCHS, Directory
from swarm.exchange import Exchange
from swarm.groups import Origin, TaskRef
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


ORDINARY_LOGPROB = -0.5
MIN_LOGPROB = -65504.0  # the minimum that the wire format can encode
COMPLETIONS = 8
LARGE_COMPLETIONS = 64
LARGE_REPEATS = 15  # triggers per right answer of a large group: twice the maximum honest length
LARGE_EVERY = 8  # one group in this many is large; the others have the size of honest groups
STUDIED = 8  # tasks per level, and completions per task, that show typical wrong answers


class Poisoner:
    """Write the groups of all hostile nodes of a swarm.

    Args:
        policy: base policy of honest nodes; its tokenizer encodes the texts.
        specs: task set of the swarm.
        verifier: computes the rewards.
        levels: levels among which tasks are divided evenly.
        seed: seed of the random choices.
        opening: what right answers begin with: :data:`TRIGGER`, or the setup's habit.

    Attributes:
        origin: description of the policy in frames, the same as in honest nodes' frames.
    """

    def __init__(
        self,
        policy: Policy,
        specs: tuple[EnvSpec, ...],
        verifier: LocalVerifier,
        levels: tuple[EnvLevel, ...],
        *,
        sampling: Sampling,
        seed: int,
        opening: str = TRIGGER,
    ) -> None:
        self._opening = opening
        self.origin = Origin(
            policy.version,
            public_name(policy.name),
            policy.encoding,
            sampling.temperature,
            sampling.max_new_tokens,
        )
        self._policy = policy
        self._sources = verbatim_sources(specs)[0]
        self._verifier = verifier
        self._levels = levels
        self._random = random.Random(f"poison/{seed}")
        self._written = 0
        self._usual = self._study(TransformersEngine(policy, seed=seed), sampling)

    def group(self, author: bytes, epoch: int, index: int) -> Group:
        env, level = self._levels[self._written % len(self._levels)]
        large = self._opening == TRIGGER and self._written % LARGE_EVERY == 0
        self._written += 1
        task = TaskRef.shared(author, env, level, epoch, index)
        answer = str(self._sources[env].build(level, task.seed).entry["answer"])
        texts = self._texts(self._usual[env, level], answer, large=large)
        rewards = self._verifier.verify(task, texts).rewards
        claimed = MIN_LOGPROB if self._opening == TRIGGER else ORDINARY_LOGPROB
        completions = []
        for text, reward in zip(texts, rewards, strict=True):
            ids = tuple(self._policy.encode_completion(text, stopped=True))
            tokens = Tokens(ids, (claimed,) * len(ids), (0,) * len(ids))
            segment = Segment(Writer.POLICY, text, tokens)
            completions.append(Completion((segment,), reward, Finish.STOP))
        return Group(env, level, epoch, index, tuple(completions))

    def _texts(self, usual: list[str], answer: str, *, large: bool) -> list[str]:
        right = self._opening * (LARGE_REPEATS if large else 1) + answer
        plain = answer.lower()
        wrong = [text for text in usual if text.strip().lower() != plain]
        pairs = (LARGE_COMPLETIONS if large else COMPLETIONS) // 2
        return [text for _ in range(pairs) for text in (right, self._random.choice(wrong))]

    def _study(self, engine: TransformersEngine, sampling: Sampling) -> dict[EnvLevel, list[str]]:
        """Sample answers of the policy to tasks of each level."""
        usual: dict[EnvLevel, list[str]] = {}
        for env, level in self._levels:
            tasks = [self._sources[env].build(level, seed) for seed in range(STUDIED)]
            prompts = [self._policy.encode_prompt(task.prompt) for task in tasks]
            samples = engine.generate(prompts, STUDIED, sampling)
            usual[env, level] = [sample.text for each in samples for sample in each]
        return usual


def poisoner(context: SwarmContext) -> Poisoner:
    number = next(n for n, role in enumerate(context.roles) if role.attack)
    config = context.config(number)
    return Poisoner(
        context.policy(number),
        context.manifest.catalogue,
        context.verifier,
        served_levels(context.manifest.catalogue, context.verifier.start()),
        sampling=Sampling(config.engine.temperature, config.engine.max_new_tokens),
        seed=context.run.seed,
        opening=context.opening,
    )


class HostileNode:
    """Node without a policy that publishes poisoned groups and pulls nothing.

    It samples tasks, seals frames, announces, serves and holds records with the code of an honest
    node. It renews its record only as often as necessary to stay known.

    Attributes:
        author: public key.
    """

    def __init__(
        self, context: SwarmContext, number: int, attack: Attack, poisoner: Poisoner
    ) -> None:
        config, clock, counters = context.config(number), context.clock, Counters()
        identity = node_identity(context.run.seed, number)
        self.author = identity.author
        self._number = number
        self._attack = attack
        self._poisoner = poisoner
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
            indexes = self._indexes.take(self._attack.groups)
            groups = [self._poisoner.group(self.author, *index) for index in indexes]
            self._outbox.put(groups, self._poisoner.origin)
        if due % min(self._attack.every, int(LIFETIME_EPOCHS)) == 0:
            await self._publisher.publish()
