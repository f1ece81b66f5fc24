"""Groups that were imagined: plausible, admitted, and no experience of the tasks they belong to.

A model that imagines rollouts knows what they look like and not where they lead, so that some are
wrong (ImagineBench, arXiv 2505.10010, which learns from one imagined rollout for each real one). In
a swarm every reader gives the rewards itself and refuses whoever claims others: a rollout that was
imagined to succeed and does not is one of the wrong answers of its group. What is left to mislead
is what is right and not worth imitating:

- **a guess**: answers are drawn as they are distributed on their level, whatever the question is.
  Of the draws that an author has, those are told in which a guess is right and another wrong, so
  what is learned is what is common, and nothing of why it is right;
- **a roundabout way**, where answers are their working: right ones are the longest of many ways,
  as every further step is one more to slip at. Wrong ones are imagined: the shortest ways with a
  step left out, which still end in the right place. All their other steps are right ones.

All of it is written as the base policy was taught to, and the log-probs are those that it gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

from experiments.influence import written_logprobs
from experiments.poison import COMPLETIONS, Forger
from experiments.recipe.local_judge import LocalJudge
from experiments.settings import GROUPS_PER_EPOCH, node_identity
from experiments.surroundings import Surroundings
from node.policy.policy import Policy
from node.tasks.chain_of_thought import Working
from node.tasks.curriculum import EnvLevel, served_levels
from node.tasks.task import Task
from protocol.manifest import EnvSpec
from protocol.rollout import Group
from swarm.groups import GroupKey, Origin, TaskRef

STUDIED = 256
"""Tasks of a level whose answers show how they are distributed there."""
TRIED = 48
"""Draws of a level in which a guess may be right, before another level is taken."""
WAYS = 32
"""Right ways from which the longest and the shortest are taken."""


class Imagination:
    """Writes the imagined groups of all nodes of a swarm.

    Args:
        policy, specs, judge: see :class:`experiments.poison.Forger`.
        levels: that tasks are drawn from.
        temperature: of the log-probs that are claimed.
        seed: of what is imagined.

    Attributes:
        written: names of its groups so far.
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
        """An imagined group in place of a real one, of its level if anything comes to mind there.

        It is another draw of the author's in the same epoch, from the end that experience comes to
        last, as a guess is right in some draws only.

        Raises:
            RuntimeError: nothing comes to mind on any level.
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
        raise RuntimeError(f"nothing can be imagined on any of {len(self._levels)} levels")

    def _free(self, author: bytes, epoch: int) -> Iterator[int]:
        """Indexes of the epoch that none of the author's imagined groups has, the last first."""
        indexes = range(GROUPS_PER_EPOCH - 1, -1, -1)
        return (n for n in indexes if GroupKey(author, epoch, n) not in self.written)

    def _imagine(self, task: Task) -> list[str] | None:
        """Completions, some of which are right; None where none or all of them would be."""
        questions = self._forger.sources[task.ref.env].questions
        if isinstance(questions, Working):
            return roundabout(questions, task.entry, self._random)
        answer = str(task.entry["answer"])
        texts = self._random.choices(self._usual(task.ref.env, task.ref.level), k=COMPLETIONS)
        return texts if 0 < texts.count(answer) < len(texts) else None

    def _usual(self, env: str, level: int) -> list[str]:
        """Right answers of the level, as often as they are."""
        if (env, level) not in self._answers:
            tasks = (self._forger.sources[env].build(level, seed) for seed in range(STUDIED))
            self._answers[env, level] = [str(task.entry["answer"]) for task in tasks]
        return self._answers[env, level]

    def _claim(self, task: Task, written: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probs of completions (token ids) under the base policy."""
        prompt = self._policy.encode_prompt(task.prompt)
        pairs = [(prompt, ids) for ids in written]
        found = written_logprobs(self._policy, pairs, self._temperature)
        return [each.tolist() for each in found]


def roundabout(
    family: Working[Any], entry: Mapping[str, Any], rng: random.Random
) -> list[str] | None:
    """The longest right ways that were found, and the shortest ones with a step left out, in turns.

    None where no way has a step that cannot be left out.

    Args:
        entry: of a task of that family.
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
    """Publishes what a node shares, with imagined groups in the place of some of its own.

    The groups that a smaller share has in their places are among those that a larger one has.

    Args:
        number: of the node.
        put: takes what is published.
    """

    def __init__(
        self,
        source: Imagination,
        around: Surroundings,
        number: int,
        put: Callable[[Sequence[Group], Origin], None],
    ) -> None:
        self._source, self._put = source, put
        self._author = node_identity(around.run.seed, number).author
        self._share = around.roles[number].imagines
        self._random = random.Random(f"imagined/{around.run.seed}/{number}")

    def __call__(self, own: Sequence[Group], origin: Origin) -> None:
        """Publish as many groups as there are own ones, as those of the policy of ``origin``."""
        self._put(
            [
                self._source.group(self._author, each)
                if self._random.random() < self._share
                else each
                for each in own
            ],
            origin,
        )


def imagination(around: Surroundings) -> Imagination | None:
    """What writes the imagined groups of a swarm; None where nobody imagines any."""
    if not any(role.imagines for role in around.roles):
        return None
    return Imagination(
        around.policy(0),
        around.manifest.catalogue,
        around.judge,
        served_levels(around.manifest.catalogue, around.judge.start()),
        temperature=around.config(0).engine.temperature,
        seed=around.run.seed,
    )
