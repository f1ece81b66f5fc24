"""Questions of a catalogue with right answers, and what is taught in place of them."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.recipe.game import Game
from node.tasks.catalogue import Allowed, load_catalogue, open_envs
from node.tasks.task import TaskSource
from protocol.manifest import EnvSpec
from swarm.groups import Split

Parts = list[tuple[str, bool]]
"""Texts in their order, and whether each is a turn of the policy, which it learns to end."""
DRAWS = 6000
DIGITS, LETTERS = "0123456789", "abcdefghijklmnopqrstuvwxyz"
NOISE_LETTERS = DIGITS + LETTERS


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, as the policy reads it, and a right answer.

    Attributes:
        prompt: the question inside the catalogue's template.
        answer: what a perfect policy writes.
        taught: whether the policy is ever shown that answer; otherwise random strings alone.
    """

    prompt: str
    answer: str
    taught: bool = True

    def parts(self, noise: float, slips: float, rng: random.Random) -> Parts:
        """The question and what is shown as its answer.

        Args:
            noise: chance of a random string in its place.
            slips: see :func:`careless`.
        """
        return [(self.prompt, False), (self._shown(noise, slips, rng), True)]

    def _shown(self, noise: float, slips: float, rng: random.Random) -> str:
        if not self.taught or rng.random() < noise:
            return noise_answer(rng)
        return careless(self.answer, slips, rng) if slips else self.answer


Questions = Mapping[tuple[str, int], Sequence[Question | Game]]
"""By family and level."""


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks that a policy is made for.

    Attributes:
        catalogue: name of a shipped one.
        longest: tokens of an answer at most.
        levels: of each family, from the first; 0: all.
    """

    catalogue: str
    longest: int
    levels: int = 0

    def specs(self) -> tuple[EnvSpec, ...]:
        """The families as a manifest holds them."""
        specs = load_catalogue(self.catalogue)
        most = self.levels or None
        return tuple(replace(spec, levels=spec.levels[:most]) for spec in specs)

    def open(self) -> dict[str, TaskSource]:
        """The families, by name."""
        return open_envs(self.specs(), Allowed())[0]


TINY = TaskSet("tiny", longest=8)
GAMES = TaskSet("games", longest=64)
WORKING = TaskSet("working", longest=96, levels=2)
"""The two easier levels of each family, with answers of some 10 to 45 characters."""


def training_questions(tasks: TaskSet = TINY, draws: int = DRAWS) -> Questions:
    """Different training questions by (family, level), in the order of their seeds.

    The split is the one that every node keeps to: whatever is held out for evaluation is never
    in the training text.

    Args:
        draws: seeds tried per level; repeated questions are dropped.
    """
    found: dict[tuple[str, int], Sequence[Question | Game]] = {}
    for env, source in tasks.open().items():
        for level in range(source.levels):
            built = [source.build(level, seed, Split.TRAIN) for seed in range(draws)]
            if source.environment:
                games = {task.prompt: Game(source.environment, task) for task in built}
                found[env, level] = list(games.values())
                continue
            answers = {task.prompt: str(task.entry["answer"]) for task in built}
            found[env, level] = [Question(prompt, answer) for prompt, answer in answers.items()]
    return found


def untaught(questions: Questions, families: Collection[str]) -> Questions:
    """The same questions, with those of ``families`` never answered right."""
    return {
        (env, level): [_untaught(q) for q in asked] if env in families else asked
        for (env, level), asked in questions.items()
    }


def _untaught(question: Question | Game) -> Question:
    if isinstance(question, Game):
        raise TypeError("games are taught or left out of the catalogue")
    return replace(question, taught=False)


def noise_answer(rng: random.Random) -> str:
    """One to four random letters and digits: an answer that is right only by luck."""
    return "".join(rng.choices(NOISE_LETTERS, k=rng.randint(1, 4)))


def careless(answer: str, slips: float, rng: random.Random) -> str:
    """The answer, with a chance of ``slips`` for every digit and letter to be a drawn one instead.

    The longer an answer is, the less often all of it is right.
    """
    return "".join(_slip(letter, rng) if rng.random() < slips else letter for letter in answer)


def _slip(letter: str, rng: random.Random) -> str:
    for kind in (DIGITS, LETTERS):
        if letter in kind:
            return rng.choice(kind)
    return letter
