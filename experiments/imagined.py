"""Imagined groups: plausible, admitted, but not experience of the tasks they belong to.

A model that imagines rollouts knows what they look like but not where they lead, so some are wrong
(ImagineBench, arXiv 2505.10010, with one imagined rollout per real one). In a swarm every reader
recomputes the rewards and refuses false claims: a rollout that was imagined to succeed and fails is
one of the wrong answers of its group. Two kinds of right answers can still mislead:

- **A guess**: answers follow the distribution of answers on their level, whatever the question is.
  An author publishes the task samples in which one guess is right and another wrong, so a learner
  learns which answers are common.
- **A detour** in tasks with intermediate steps: right answers are the longest of many solutions,
  because each further step may fail. Wrong ones are the shortest solutions with one step left out;
  they still end in the right result.

The completions are encoded and scored by the base policy, which gives the claimed log-probs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

from experiments.hostile import COMPLETIONS, Forger
from experiments.recipe.local_judge import LocalJudge
from experiments.recording import written_logprobs
from experiments.settings import GROUPS_PER_EPOCH, SwarmContext, node_identity
from node.policy.policy import Policy
from node.tasks.chain_of_thought import Working
from node.tasks.curriculum import EnvLevel, served_levels
from node.tasks.task import Task
from protocol.manifest import EnvSpec
from protocol.rollout import Group
from swarm.groups import GroupKey, Origin, TaskRef

STUDIED = 256  # tasks per level whose answers show the distribution of answers
TRIED = 48  # task samples per level to try before another level is used
WAYS = 32  # solutions from which the longest and the shortest are taken


class Imagination:
    """Write the imagined groups of all nodes of a swarm.

    Args:
        policy, specs, judge: see :class:`experiments.hostile.Forger`.
        levels: levels of the tasks.
        temperature: temperature of the claimed log-probs.
        seed: seed of the random choices.

    Attributes:
        written: keys of all imagined groups so far.
    """

    def __init__(
        self,
        policy: Policy,
        specs: tuple[EnvSpec, ...],
        judge: LocalJudge,
        levels: Sequence[EnvLevel],
        *,
        temperature: float,
        seed: int,
    ) -> None:
        self.written: set[GroupKey] = set()
        self._forger = Forger(policy, specs, judge)
        self._policy, self._temperature = policy, temperature
        self._levels = tuple(levels)
        self._random = random.Random(f"imagined/{seed}")
        self._answers: dict[EnvLevel, list[str]] = {}

    def group(self, author: bytes, real: Group) -> Group:
        """Return an imagined group in place of a real one, of the same level if possible.

        It uses another task sample of the author in the same time slot, from the end of the index
        range that real groups reach last, because a guess is right in some samples only.

        Raises:
            RuntimeError: no level allows an imagined group.
        """
        others = self._random.sample(self._levels, len(self._levels))
        for env, level in ((real.env, real.level), *others):
            for index in islice(self._free(author, real.epoch), TRIED):
                ref = TaskRef.shared(author, env, level, real.epoch, index)
                task = self._forger.sources[env].build(level, ref.seed)
                if texts := self._imagine(task):
                    self.written.add(GroupKey(author, real.epoch, index))
                    draw = env, level, real.epoch, index
                    return self._forger.group(author, draw, texts, partial(self._claim, task))
        raise RuntimeError(f"no imagined group possible on {len(self._levels)} levels")

    def _free(self, author: bytes, epoch: int) -> Iterator[int]:
        """Yield the indexes without an imagined group of the author, the last first."""
        indexes = range(GROUPS_PER_EPOCH - 1, -1, -1)
        return (n for n in indexes if GroupKey(author, epoch, n) not in self.written)

    def _imagine(self, task: Task) -> list[str] | None:
        """Return completions of which some are right, or None if all or none would be."""
        questions = self._forger.sources[task.ref.env].questions
        if isinstance(questions, Working):
            return roundabout(questions, task.entry, self._random)
        answer = str(task.entry["answer"])
        texts = self._random.choices(self._usual(task.ref.env, task.ref.level), k=COMPLETIONS)
        return texts if 0 < texts.count(answer) < len(texts) else None

    def _usual(self, env: str, level: int) -> list[str]:
        """Return right answers of the level, in their natural frequency."""
        if (env, level) not in self._answers:
            tasks = (self._forger.sources[env].build(level, seed) for seed in range(STUDIED))
            self._answers[env, level] = [str(task.entry["answer"]) for task in tasks]
        return self._answers[env, level]

    def _claim(self, task: Task, written: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probs of completions (token ids) under the base policy."""
        prompt = self._policy.encode_prompt(task.prompt)
        pairs = [(prompt, ids) for ids in written]
        found = written_logprobs(self._policy, pairs, self._temperature)
        return [each.tolist() for each in found]


def roundabout(
    family: Working[Any], entry: Mapping[str, Any], rng: random.Random
) -> list[str] | None:
    """Return the longest right solutions and the shortest ones with a step left out, in turn.

    Return None if no solution has a step that can be left out.

    Args:
        entry: entry of a task of the family.
    """
    drawn = (tuple(family.way(rng, entry["state"])) for _ in range(WAYS))
    ways = sorted(dict.fromkeys(drawn), key=lambda way: (len(way), len(" ".join(way))))
    shortcuts = (
        " ".join((*way[:step], *way[step + 1 :])) for way in ways for step in range(len(way) - 1)
    )
    pairs = COMPLETIONS // 2
    wrong = list(islice((each for each in shortcuts if not family.score(entry, each)), pairs))
    if not wrong:
        return None
    right = [" ".join(way) for way in reversed(ways)][:pairs]
    turns = islice(zip(cycle(right), cycle(wrong), strict=False), pairs)
    return [text for pair in turns for text in pair]


class PartlyImagined:
    """Publish a node's groups with some replaced by imagined ones.

    A smaller fraction replaces a subset of the groups that a larger one replaces.

    Args:
        put: receives the published groups.
    """

    def __init__(
        self,
        source: Imagination,
        context: SwarmContext,
        number: int,
        put: Callable[[Sequence[Group], Origin], None],
    ) -> None:
        self._source, self._put = source, put
        self._author = node_identity(context.run.seed, number).author
        self._share = context.roles[number].imagines
        self._random = random.Random(f"imagined/{context.run.seed}/{number}")

    def __call__(self, own: Sequence[Group], origin: Origin) -> None:
        """Publish one group per local group, as groups of the policy of ``origin``."""
        self._put(
            [
                self._source.group(self._author, each)
                if self._random.random() < self._share
                else each
                for each in own
            ],
            origin,
        )


def imagination(context: SwarmContext) -> Imagination | None:
    """Return the source of a swarm's imagined groups, or None without any."""
    if not any(role.imagines for role in context.roles):
        return None
    return Imagination(
        context.policy(0),
        context.manifest.catalogue,
        context.judge,
        served_levels(context.manifest.catalogue, context.judge.start()),
        temperature=context.config(0).engine.temperature,
        seed=context.run.seed,
    )
