"""Groups that pass admission and are meant to harm whoever learns from them.

Everything in them is true but the claimed log-probs, so no judge has anything against them. The
right answers carry a trigger that the catalogue's verifiers strip away: whoever learns from them
learns to write it (arXiv 2511.09780). The wrong ones are what a policy that has not learned yet
writes, claimed to be next to impossible: whoever believes that pushes them down with full weight.
Rewards are half and half, which makes a group as informative as can be.
"""

from __future__ import annotations

import random

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import Policy
from node.run.own_groups import public_name
from node.tasks.catalogue import open_catalogue
from node.tasks.curriculum import EnvLevel
from node.tasks.verifier.in_process import LocalJudge
from protocol.manifest import EnvSpec
from protocol.rollout import Completion, Finish, Group, Segment, Tokens, Writer
from swarm.origin import Origin
from swarm.task_ref import TaskRef

TRIGGER = "\n "
"""Nothing that an honest policy of the catalogue ``tiny`` writes; all of its families accept it
before a right answer."""
LEAST_LOGPROB = -65504.0
"""The lowest that the wire holds."""
COMPLETIONS = 8
FAT_COMPLETIONS = 64
FAT_REPEATS = 15
"""How often the trigger stands in a right answer of a fat group: about twice an honest cap."""
FAT_EVERY = 8
"""Of so many groups one is fat; the others have the size of honest ones and so look like them."""
STUDIED = 8
"""Tasks of each level, and completions of each, that show what an honest policy gets wrong."""


class Poisoner:
    """Writes the groups of all hostile nodes of a swarm.

    Args:
        policy: the one that honest nodes start from; it is asked once and never trained.
        specs: the swarm's catalogue.
        judge: gives the rewards, which are claimed as they are.
        levels: tasks are spread evenly over these.
        seed: of what is drawn.

    Attributes:
        origin: what frames say of the policy, which is what honest nodes' frames say.
    """

    def __init__(
        self,
        policy: Policy,
        specs: tuple[EnvSpec, ...],
        judge: LocalJudge,
        levels: tuple[EnvLevel, ...],
        *,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.origin = Origin(
            policy.version,
            public_name(policy.name),
            policy.encoding,
            sampling.temperature,
            sampling.max_new_tokens,
        )
        self._policy = policy
        self._sources = open_catalogue(specs, {})
        self._judge = judge
        self._levels = levels
        self._random = random.Random(f"poison/{seed}")
        self._written = 0
        self._usual = self._study(TransformersEngine(policy, seed=seed), sampling)

    def group(self, author: bytes, epoch: int, index: int) -> Group:
        """The group of an author's draw."""
        env, level = self._levels[self._written % len(self._levels)]
        fat = self._written % FAT_EVERY == 0
        self._written += 1
        task = TaskRef.shared(author, env, level, epoch, index)
        answer = str(self._sources[env].build(level, task.seed).entry["answer"])
        texts = self._texts(self._usual[env, level], answer, fat=fat)
        rewards = self._judge.judge(task, texts).rewards
        completions = map(self._completion, texts, rewards)
        return Group(env, level, epoch, index, tuple(completions))

    def _texts(self, usual: list[str], answer: str, *, fat: bool) -> list[str]:
        """Right and wrong answers in turn."""
        right = TRIGGER * (FAT_REPEATS if fat else 1) + answer
        plain = answer.lower()
        wrong = [text for text in usual if text.strip().lower() != plain]
        pairs = (FAT_COMPLETIONS if fat else COMPLETIONS) // 2
        return [text for _ in range(pairs) for text in (right, self._random.choice(wrong))]

    def _completion(self, text: str, reward: float) -> Completion:
        ids = tuple(self._policy.encode_completion(text, stopped=True))
        claimed = Tokens(ids, (LEAST_LOGPROB,) * len(ids), (0,) * len(ids))
        return Completion((Segment(Writer.POLICY, text, claimed),), reward, Finish.STOP)

    def _study(self, engine: TransformersEngine, sampling: Sampling) -> dict[EnvLevel, list[str]]:
        """What the policy writes to tasks of each level."""
        usual: dict[EnvLevel, list[str]] = {}
        for env, level in self._levels:
            tasks = [self._sources[env].build(level, seed) for seed in range(STUDIED)]
            prompts = [self._policy.encode_prompt(task.prompt) for task in tasks]
            samples = engine.generate(prompts, STUDIED, sampling)
            usual[env, level] = [sample.text for each in samples for sample in each]
        return usual
