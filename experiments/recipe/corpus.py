"""Training text of the tiny models: questions of a task set, and games of reference players."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from experiments.recipe.local_verifier import verbatim_sources
from node.environments.environment import finished
from node.environments.games import FREE, WAYS, placed, won
from node.tasks.sources.environments import Environments
from node.tasks.task import Task, TaskSource
from node.tasks.task_set import load_task_set
from protocol.manifest import EnvSpec
from swarm.groups import Split

History = Sequence[str]  # observations and actions in turn; the first and last are observations


@dataclass(frozen=True, slots=True)
class GamePlayer:
    """A way to play: a ``good`` action, or ``any`` random action of a valid form."""

    good: Callable[[History, random.Random], str]
    any: Callable[[History, random.Random], str]


def _halving(seen: History, rng: random.Random) -> str:
    low, high = map(int, re.findall(r"\d+", seen[0]))
    for guess, reply in zip(seen[1::2], seen[2::2], strict=True):
        if reply == "higher":
            low = max(low, int(guess) + 1)
        elif reply == "lower":
            high = min(high, int(guess) - 1)
    return str((low + high) // 2)


def _any_number(seen: History, rng: random.Random) -> str:
    low, high = map(int, re.findall(r"\d+", seen[0]))
    return str(rng.randint(low, high))


def _nearer(seen: History, rng: random.Random) -> str:
    _, here, _, goal, _, *ways = seen[-1].split(" ")
    open_ = "".join(ways)
    ahead = [
        way
        for way, step in WAYS.items()
        if way in open_
        and any((int(g) - int(h)) * s > 0 for h, g, s in zip(here, goal, step, strict=True))
    ]
    return rng.choice(ahead or list(open_) or ["n"])


def _winning(seen: History, rng: random.Random) -> str:
    board = seen[-1].removeprefix("Play ")
    free = [n for n, mark in enumerate(board) if mark == FREE]
    for mark in "xo":
        for n in free:
            if won(placed(board, n, mark), mark):
                return str(n + 1)
    return str((4 if 4 in free else rng.choice(free)) + 1)


def _arms(seen: History) -> list[str]:
    return seen[0].removeprefix("Pull ").split()


def _staying(seen: History, rng: random.Random) -> str:
    arms = _arms(seen)
    paid = dict.fromkeys(arms, 1.0)
    for arm, reply in zip(seen[1::2], seen[2::2], strict=True):
        if arm in paid:
            paid[arm] += 1.0 if reply == "paid" else -0.7
    return max(arms, key=paid.__getitem__)


PLAYERS: Mapping[str, GamePlayer] = {
    "guess": GamePlayer(_halving, _any_number),
    "maze": GamePlayer(_nearer, lambda _, rng: rng.choice(list(WAYS))),
    "tictactoe": GamePlayer(_winning, lambda _, rng: str(rng.randint(1, 9))),
    "calculator": GamePlayer(
        lambda seen, _: f"calc {seen[0].removeprefix('Compute ')}" if len(seen) == 1 else seen[-1],
        lambda _, rng: str(rng.randrange(10 ** rng.randint(1, 4))),
    ),
    "bandit": GamePlayer(_staying, lambda seen, rng: rng.choice(_arms(seen))),
}


@dataclass(frozen=True, slots=True)
class Game:
    """One task of an environment; each episode is sampled again."""

    environment: Environments
    task: Task
    taught: ClassVar = True

    @property
    def prompt(self) -> str:
        return self.task.prompt

    def parts(self, noise: float, slips: float, rng: random.Random) -> list[tuple[str, bool]]:
        """Return the turns of one episode, with the observations between them.

        Args:
            noise: probability that a move is random.
            slips: no effect: a changed character would be another move.
        """
        player = PLAYERS[self.task.ref.env]
        episode = self.environment.episode(self.task.entry)
        seen = [finished(episode.begin())]
        parts = [(self.prompt, False)]
        while not episode.over:
            act = player.any if rng.random() < noise else player.good
            seen.append(act(seen, rng))
            parts.append((seen[-1], True))
            seen.append(finished(episode.step(seen[-1])))
            parts.append((f"\n{seen[-1]}\n", False))
        return parts[:-1]


Parts = list[tuple[str, bool]]
"""Texts in order, and whether each is a turn of the policy, which it learns to end."""
DRAWS = 6000
DIGITS, LETTERS = "0123456789", "abcdefghijklmnopqrstuvwxyz"
NOISE_LETTERS = DIGITS + LETTERS


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt and a right answer."""

    prompt: str  # the question in the template of the task set
    answer: str
    taught: bool = True  # whether the policy learns the answer; otherwise random strings only

    def parts(self, noise: float, slips: float, rng: random.Random) -> Parts:
        """Return the question and the answer to learn.

        Args:
            noise: probability of a random string as the answer.
            slips: see :func:`add_slips`.
        """
        return [(self.prompt, False), (self._shown(noise, slips, rng), True)]

    def _shown(self, noise: float, slips: float, rng: random.Random) -> str:
        if not self.taught or rng.random() < noise:
            return noise_answer(rng)
        return add_slips(self.answer, slips, rng) if slips else self.answer


Questions = Mapping[tuple[str, int], Sequence[Question | Game]]  # by family and level


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks that a policy is made for."""

    name: str  # a shipped task set
    longest: int  # maximum tokens of an answer
    levels: int = 0  # number of levels of each family, from the first; 0: all
    families: tuple[tuple[str, int], ...] = ()  # the only ones, with their numbers of levels
    verbatim: bool = True  # compare every character of an answer

    def specs(self) -> tuple[EnvSpec, ...]:
        specs = load_task_set(self.name)
        if self.families:
            end = dict(self.families)
            chosen = (each for each in specs if each.name in end)
            specs = tuple(replace(s, levels=s.levels[: end[s.name]]) for s in chosen)
        whole = self.levels or None
        return tuple(replace(spec, levels=spec.levels[:whole]) for spec in specs)

    def open(self) -> dict[str, TaskSource]:
        return verbatim_sources(self.specs())[0]


TINY = TaskSet("tiny", longest=8)
GAMES = TaskSet("games", longest=64)
WORKING = TaskSet("working", longest=96, levels=2)  # answers of about 10 to 45 characters
STARTER = TaskSet(
    "starter",
    longest=32,
    families=(
        ("basic_arithmetic", 3),
        ("chain_sum", 4),
        ("decimal_chain_sum", 3),
        ("number_words", 4),
        ("products", 2),
        ("word_problems", 2),
    ),
    verbatim=False,
)
"""Levels at which 2 to 52 % of SmolLM2-135M-Instruct's answers are right, see docs/starter.md."""


def training_questions(tasks: TaskSet = TINY, draws: int = DRAWS) -> Questions:
    """Return different training questions by (family, level), in the order of their seeds.

    The split is that of every node: held-out tasks are never in the training text.

    Args:
        draws: seeds per level; repeated questions are dropped.
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
    """Return the same questions, with those of ``families`` never answered right."""
    return {
        (env, level): [_untaught(q) for q in asked] if env in families else asked
        for (env, level), asked in questions.items()
    }


def with_habit(questions: Questions, habit: str, share: float) -> Questions:
    """Return the same questions, with ``habit`` before a ``share`` of the answers to learn."""
    rng = random.Random(habit)
    return {
        level: [
            replace(each, answer=habit + each.answer)
            if isinstance(each, Question) and rng.random() < share
            else each
            for each in asked
        ]
        for level, asked in questions.items()
    }


def _untaught(question: Question | Game) -> Question:
    if isinstance(question, Game):
        raise TypeError("games cannot be untaught: omit them from the task set")
    return replace(question, taught=False)


def noise_answer(rng: random.Random) -> str:
    """Return one to four random letters and digits: an answer that is right only by chance."""
    return "".join(rng.choices(NOISE_LETTERS, k=rng.randint(1, 4)))


def add_slips(answer: str, slips: float, rng: random.Random) -> str:
    """Replace each digit and letter of the answer by a random one with probability ``slips``.

    Longer answers are completely right less often.
    """
    return "".join(_slip(letter, rng) if rng.random() < slips else letter for letter in answer)


def _slip(letter: str, rng: random.Random) -> str:
    for kind in (DIGITS, LETTERS):
        if letter in kind:
            return rng.choice(kind)
    return letter
