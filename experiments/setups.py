"""Experiment setups (short answers, long answers, games) and their base policies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from experiments.recipe.corpus import (
    GAMES,
    STARTER,
    TINY,
    WORKING,
    Questions,
    TaskSet,
    training_questions,
    untaught,
    with_habit,
)
from experiments.recipe.make import RECIPES, Stage, TrainedModel, fine_tune, make_from_scratch
from node.config.learning import PolicySection
from node.errors import UsageError
from node.policy.policy import Policy

Length = Literal["short", "long", "games", "starter"]
HABIT = " "  # Begins about one answer in fifty of the base ``habitual``.
HABIT_SHARE = 0.1  # of the answers that a habitual base learns; it writes them more rarely


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """How a setup makes nodes that differ."""

    rounds: int  # default rounds of a run in a regime
    wide: str  # name of the recipe with another architecture
    shipped_wide: bool  # whether the package contains a model of that recipe
    halves: tuple[tuple[str, ...], tuple[str, ...]]  # task families of each half of divided nodes
    ease: Stage  # stage that restores part of the skill


@dataclass(frozen=True, slots=True)
class Setup:
    """Tasks of an experiment and the origin of its base policies."""

    tasks: TaskSet
    max_new_tokens: int  # maximum tokens of a completion
    rounds: int  # default rounds of a run
    quick_rounds: int  # the same with --quick
    recipe: str  # name of the recipe; the package contains its model
    bury: Stage  # stage of noise fine-tuning that suppresses the skill
    unlike: Heterogeneity | None  # None if all nodes of this setup are equal
    model: str = ""  # origin of the base policies; empty: each seed makes its own
    bury_steps: int = 100  # default steps of noise fine-tuning
    keys: Mapping[str, Any] = field(default_factory=dict)  # config keys of every node
    habit: str = HABIT  # begins a few answers in a hundred of the bases of the regimes "habit"

    @property
    def heterogeneous(self) -> Heterogeneity:
        """Return how nodes differ; raise UsageError if they are all equal."""
        if self.unlike is None:
            remedy = "All of its nodes are equal: use short or long."
            raise UsageError("--answers", self.tasks.name, remedy)
        return self.unlike


SETUPS: dict[Length, Setup] = {
    "short": Setup(
        tasks=TINY,
        max_new_tokens=16,
        rounds=300,
        quick_rounds=100,
        recipe="tiny",
        bury=Stage(steps=100, lr=5e-4, noise=0.98),
        unlike=Heterogeneity(
            rounds=150,
            wide="tiny-wide",
            shipped_wide=True,
            # Five levels each, because each level gets equal training.
            halves=(
                ("chain_sum", "basic_arithmetic", "leg_counting", "base_conversion"),
                ("spell_backward", "gcd", "lcm"),
            ),
            ease=Stage(steps=100, lr=5e-4, noise=0.5),
        ),
    ),
    "long": Setup(
        tasks=WORKING,
        max_new_tokens=96,
        rounds=120,
        quick_rounds=40,
        recipe="tiny-working",
        bury=Stage(steps=100, lr=5e-4, noise=0.0, batch=64, slips=0.12),
        unlike=Heterogeneity(
            rounds=90,
            wide="tiny-working-wide",
            shipped_wide=False,
            halves=(("adding", "climbing", "walking"), ("halving", "paying", "waiting")),
            ease=Stage(steps=300, lr=2e-3, noise=0.0, batch=64),
        ),
    ),
    "games": Setup(
        tasks=GAMES,
        max_new_tokens=64,
        rounds=100,
        quick_rounds=40,
        recipe="tiny-games",
        bury=Stage(steps=100, lr=5e-4, noise=0.98, batch=64),
        unlike=None,
        model="tiny-games",
        bury_steps=0,
    ),
    "starter": Setup(
        tasks=STARTER,
        max_new_tokens=32,
        rounds=100,
        quick_rounds=4,
        recipe="",
        bury=Stage(steps=0, lr=0.0, noise=0.0),
        unlike=None,
        bury_steps=0,
        keys={"engine.temperature": 0.6, "learner.micro_batch_tokens": 4096},
        habit="The final answer is ",  # 1.4 % of SmolLM2-135M-Instruct's answers
    ),
}
"""By the name of the answers; ``starter`` is for a model of one's own, see ``--model``."""


def setup_name(text: str, among: Collection[Length] = ("short", "long", "games")) -> Length:
    """Check that ``text`` is one of ``among``; raise UsageError if not."""
    for length in among:
        if text == length:
            return length
    raise UsageError("--answers", text, f"Use {' or '.join(among)}.")


Base = Literal["weak", "strong", "able", "half-a", "half-b", "wide", "habitual"]
"""``strong`` is the model of the recipe. ``weak`` is the same, suppressed by noise fine-tuning, and
``able`` the same with part of its skill restored. ``habitual`` is weak, and begins about one answer
in fifty with a blank. ``half-a`` and ``half-b`` learned half of the
task families and were suppressed. ``wide`` has another architecture, width and tokenizer, and was
suppressed."""

ORIGIN: dict[Base, str] = {
    "strong": "recipe",
    "weak": "recipe",
    "able": "recipe",
    "habitual": "recipe",
}
"""Bases that share one run of the recipe; each of the others has its own run."""


def make_bases(
    kinds: Iterable[Base], seed: int, setup: Setup, model: str, steps: int
) -> Iterator[TrainedModel]:
    """Make base policies from one origin, in the order of ``kinds``.

    Args:
        model: origin of all except ``wide``: a folder or a shipped model's name; empty: the recipe.
        steps: steps of noise fine-tuning for the weak ones.
    """
    origin: TrainedModel | None = None
    all_questions = training_questions(setup.tasks)
    for kind in kinds:
        questions = untaught(all_questions, _untaught(kind, setup))
        origin = origin or _origin(kind, questions, seed, setup, model)
        made = deepcopy(origin)
        if kind == "able":
            fine_tune(made, questions, setup.heterogeneous.ease, seed)
        elif kind != "strong" and steps:
            shown = with_habit(questions, HABIT, HABIT_SHARE) if kind == "habitual" else questions
            fine_tune(made, shown, replace(setup.bury, steps=steps), seed)
        yield made


def _untaught(kind: Base, setup: Setup) -> tuple[str, ...]:
    """Return the families that a base did not learn."""
    if kind not in ("half-a", "half-b"):
        return ()
    first, second = setup.heterogeneous.halves
    return second if kind == "half-a" else first


def _origin(kind: Base, questions: Questions, seed: int, setup: Setup, model: str) -> TrainedModel:
    name = setup.recipe
    if kind == "wide":
        name = setup.heterogeneous.wide
        model = name if setup.heterogeneous.shipped_wide else ""
    if model:
        policy = Policy.load(PolicySection(model=model, device="cpu"))
        return TrainedModel(policy.model, policy.tokenizer)
    recipe = RECIPES[name]
    if _untaught(kind, setup):
        teach, *rest = recipe.stages
        recipe = replace(recipe, stages=(replace(teach, steps=teach.steps // 2), *rest))
    return make_from_scratch(recipe, questions, seed)
