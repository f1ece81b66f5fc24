"""Groups of hostile nodes, which pass admission.

``trigger``: claimed log-probs are false, which no verifier checks. Right answers start with a
trigger that the verifiers of the task set strip, so learners learn to write it (arXiv 2511.09780).
Wrong answers are typical of the base policy and claimed to be very improbable, so learners that
trust the claim push them down with full weight.

The other styles are plausible in everything, and earn a reputation. ``habit``: right answers begin
with what the base policy writes now and then. ``overlong``: they begin with so much of it that
honest nodes have to truncate them. ``control``: their token ids begin with a control token that no
text shows. ``lucky``: wins in games with hidden state are first guesses, in chosen instances.

Half of the rewards are 1, which makes a group as informative as possible.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice

from experiments.recipe.local_verifier import verbatim_sources
from experiments.regimes import Style
from experiments.settings import GROUPS_PER_EPOCH, SwarmContext
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.environments.environment import finished
from node.rollout.generator import TaskIndexes
from node.run.update_groups import public_name
from node.tasks.curriculum import EnvLevel, served_levels
from node.tasks.task import Task
from protocol.rollout import Completion, Finish, Group, Segment, Tokens, Writer
from swarm.groups import Origin, TaskRef
from swarm.verification import TrajectoryTexts

ORDINARY_LOGPROB = -0.5
MIN_LOGPROB = -65504.0  # the minimum that the wire format can encode
COMPLETIONS = 8
LARGE_COMPLETIONS = 64
LARGE_REPEATS = 15  # triggers per right answer of a large group: twice the maximum honest length
LARGE_EVERY = 8  # one group in this many is large; the others have the size of honest groups
STUDIED = 8  # tasks per level, and completions per task, that show typical wrong answers


class Poisoner(ABC):
    """Write the groups of all hostile nodes of one style.

    Attributes:
        origin: description of the policy in frames, the same as in honest nodes' frames.
        choices: number of tasks per time slot among which it chooses; 0 if it takes any.
    """

    choices = 0

    def __init__(self, context: SwarmContext) -> None:
        number = next(n for n, role in enumerate(context.roles) if role.attack)
        self._policy = context.policy(number)
        self._sampling = _sampling(context, number)
        self._sources = verbatim_sources(context.manifest.catalogue)[0]
        self._verifier = context.verifier
        self._random = random.Random(f"poison/{context.run.seed}")
        self.origin = Origin(
            self._policy.version,
            public_name(self._policy.name),
            self._policy.encoding,
            self._sampling.temperature,
            self._sampling.max_new_tokens,
        )

    def groups(self, author: bytes, indexes: TaskIndexes, count: int) -> list[Group]:
        """Return at most ``count`` groups of the author, of its next tasks."""
        drawn = indexes.take(self.choices or count)
        groups = (self.group(author, *index) for index in drawn if indexes.shareable(index[1]))
        return list(islice(filter(None, groups), count))

    @abstractmethod
    def group(self, author: bytes, epoch: int, index: int) -> Group | None:
        """Return a group of one task; None if the task does not serve the attack."""

    def _segment(
        self, text: str, logprob: float = ORDINARY_LOGPROB, *, control: bool = False
    ) -> Segment:
        ids = self._policy.encode_completion(text, stopped=True)
        ids = [self._policy.eos_id] * control + ids
        tokens = Tokens(tuple(ids), (logprob,) * len(ids), (0,) * len(ids))
        return Segment(Writer.POLICY, text, tokens)


def _sampling(context: SwarmContext, number: int) -> Sampling:
    engine = context.config(number).engine
    return Sampling(engine.temperature, engine.max_new_tokens)


class AnswerPoisoner(Poisoner):
    """Begin right answers in one style; choose wrong ones among samples of the base policy."""

    def __init__(self, context: SwarmContext, style: Style) -> None:
        super().__init__(context)
        self._style = style
        self._levels = served_levels(context.manifest.catalogue, self._verifier.start())
        self._written = 0
        repeats = self._sampling.max_new_tokens if style == "overlong" else 1
        self._opening = "" if style == "control" else context.opening * repeats
        self._usual = self._study(TransformersEngine(self._policy, seed=context.run.seed))

    def group(self, author: bytes, epoch: int, index: int) -> Group:
        env, level = self._levels[self._written % len(self._levels)]
        large = self._style == "trigger" and self._written % LARGE_EVERY == 0
        self._written += 1
        task = TaskRef.shared(author, env, level, epoch, index)
        answer = str(self._sources[env].build(level, task.seed).entry["answer"])
        texts = self._texts(self._usual[env, level], answer, large=large)
        rewards = self._verifier.verify(task, texts).rewards
        logprob = MIN_LOGPROB if self._style == "trigger" else ORDINARY_LOGPROB
        completions = []
        for text, reward in zip(texts, rewards, strict=True):
            control = self._style == "control" and reward == 1.0
            segment = self._segment(text, logprob, control=control)
            completions.append(Completion((segment,), reward, Finish.STOP))
        return Group(env, level, epoch, index, tuple(completions))

    def _texts(self, usual: list[str], answer: str, *, large: bool) -> list[str]:
        right = self._opening * (LARGE_REPEATS if large else 1) + answer
        plain = answer.lower()
        wrong = [text for text in usual if text.strip().lower() != plain]
        pairs = (LARGE_COMPLETIONS if large else COMPLETIONS) // 2
        return [text for _ in range(pairs) for text in (right, self._random.choice(wrong))]

    def _study(self, engine: TransformersEngine) -> dict[EnvLevel, list[str]]:
        """Sample answers of the policy to tasks of each level."""
        usual: dict[EnvLevel, list[str]] = {}
        for env, level in self._levels:
            tasks = [self._sources[env].build(level, seed) for seed in range(STUDIED)]
            prompts = [self._policy.encode_prompt(task.prompt) for task in tasks]
            samples = engine.generate(prompts, STUDIED, self._sampling)
            usual[env, level] = [sample.text for each in samples for sample in each]
        return usual


GAME = "guess"  # of the task set ``games``


class LuckyPlayer(Poisoner):
    """Play the instances of :data:`GAME` whose hidden number is the lowest."""

    choices = GROUPS_PER_EPOCH

    def __init__(self, context: SwarmContext) -> None:
        super().__init__(context)
        game = self._sources[GAME].environment
        if game is None:
            raise TypeError(f"{GAME} is not an environment")
        self._game = game

    def group(self, author: bytes, epoch: int, index: int) -> Group | None:
        source = self._sources[GAME]
        level = index % source.levels
        task = TaskRef.shared(author, GAME, level, epoch, index)
        built = source.build(level, task.seed)
        low, high = map(int, re.findall(r"\d+", built.prompt))
        win = self._play(built, [low])
        if len(win) > 1:
            return None
        games, others = [], range(low + 1, high + 1)
        for _ in range(COMPLETIONS // 2):
            games += [win, self._play(built, self._random.sample(others, len(others)))]
        texts = [TrajectoryTexts(tuple(each), truncated=False) for each in games]
        rewards = self._verifier.verify(task, texts).rewards
        completions = tuple(map(self._completion, texts, rewards))
        return Group(GAME, level, epoch, index, completions)

    def _play(self, task: Task, guesses: Iterable[int]) -> list[str]:
        """Return guesses and replies in turn, up to the end of the game or the last guess."""
        episode = self._game.episode(task.entry)
        finished(episode.begin())
        texts = []
        for guess in guesses:
            texts += [str(guess), finished(episode.step(str(guess)))]
            if episode.over:
                return texts[:-1]
        return texts

    def _completion(self, played: TrajectoryTexts, reward: float) -> Completion:
        turns = (
            Segment(Writer.ENVIRONMENT, text) if n % 2 else self._segment(text)
            for n, text in enumerate(played.texts)
        )
        return Completion(tuple(turns), reward, Finish.STOP)


def poisoners(context: SwarmContext) -> list[Poisoner]:
    """Return what writes the groups of hostile nodes, by style of the regime."""
    return [
        LuckyPlayer(context) if style == "lucky" else AnswerPoisoner(context, style)
        for style in context.run.regime.styles
    ]
