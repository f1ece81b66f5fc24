"""Groups that pass admission and are meant to harm whoever learns from them.

Everything in them is true but the claimed log-probs, so no judge has anything against them. The
right answers carry a trigger that the catalogue's verifiers strip away: whoever learns from them
learns to write it (arXiv 2511.09780). The wrong ones are what a policy that has not learned yet
writes, claimed to be next to impossible: whoever believes that pushes them down with full weight.
Rewards are half and half, which makes a group as informative as can be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from experiments.recipe.local_judge import LocalJudge
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import Policy
from node.run.update_groups import public_name
from node.tasks.catalogue import Allowed, open_envs
from node.tasks.curriculum import EnvLevel
from protocol.manifest import EnvSpec
from protocol.rollout import Completion, Finish, Group, Segment, Tokens, Writer
from swarm.groups import Origin, TaskRef

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

Draw = tuple[str, int, int, int]
"""Family, level, epoch and index."""
Claim = Callable[[Sequence[Sequence[int]]], Sequence[Sequence[float]]]
"""Log-probs that a group claims for the tokens of its completions, nats."""


class Forger:
    """Makes groups of texts that were chosen for what they do; the rewards of all are true.

    Args:
        policy: the one that honest nodes start from; it spells the texts.
        specs: the swarm's catalogue.
        judge: gives the rewards, which are claimed as they are.

    Attributes:
        sources: of tasks, by family.
    """

    def __init__(self, policy: Policy, specs: tuple[EnvSpec, ...], judge: LocalJudge) -> None:
        self.sources = open_envs(specs, Allowed())[0]
        self._policy = policy
        self._judge = judge

    def group(self, author: bytes, draw: Draw, texts: Sequence[str], claim: Claim) -> Group:
        """The group of an author's draw, whose completions are these texts."""
        rewards = self._judge.judge(TaskRef.shared(author, *draw), texts).rewards
        written = [tuple(self._policy.encode_completion(text, stopped=True)) for text in texts]
        columns = zip(texts, written, claim(written), rewards, strict=True)
        completions = (
            Completion(
                (Segment(Writer.POLICY, text, Tokens(ids, tuple(claimed), (0,) * len(ids))),),
                reward,
                Finish.STOP,
            )
            for text, ids, claimed, reward in columns
        )
        return Group(*draw, tuple(completions))


class Poisoner:
    """Writes the groups of all hostile nodes of a swarm.

    Args:
        policy, specs, judge: see :class:`Forger`.
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
        self._forger = Forger(policy, specs, judge)
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
        answer = str(self._forger.sources[env].build(level, task.seed).entry["answer"])
        texts = self._texts(self._usual[env, level], answer, fat=fat)
        return self._forger.group(author, (env, level, epoch, index), texts, _least)

    def _texts(self, usual: list[str], answer: str, *, fat: bool) -> list[str]:
        """Right and wrong answers in turn."""
        right = TRIGGER * (FAT_REPEATS if fat else 1) + answer
        plain = answer.lower()
        wrong = [text for text in usual if text.strip().lower() != plain]
        pairs = (FAT_COMPLETIONS if fat else COMPLETIONS) // 2
        return [text for _ in range(pairs) for text in (right, self._random.choice(wrong))]

    def _study(self, engine: TransformersEngine, sampling: Sampling) -> dict[EnvLevel, list[str]]:
        """What the policy writes to tasks of each level."""
        usual: dict[EnvLevel, list[str]] = {}
        for env, level in self._levels:
            tasks = [self._forger.sources[env].build(level, seed) for seed in range(STUDIED)]
            prompts = [self._policy.encode_prompt(task.prompt) for task in tasks]
            samples = engine.generate(prompts, STUDIED, sampling)
            usual[env, level] = [sample.text for each in samples for sample in each]
        return usual


def _least(written: Sequence[Sequence[int]]) -> list[list[float]]:
    """That all tokens were next to impossible."""
    return [[LEAST_LOGPROB] * len(ids) for ids in written]
