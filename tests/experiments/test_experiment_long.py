"""Swarms whose nodes answer with a chain of thought."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from experiments.arms import AUTO, mix
from experiments.recording import Recording
from experiments.regimes import REGIMES, find_regime
from experiments.report import run_sapo
from experiments.run import Plan
from experiments.settings import Configuration, Settings
from experiments.setups import SETUPS, Base, make_bases, setup_name
from experiments.simulation import run_simulation
from node.errors import NodeError, UsageError
from tests.node.learner.parts import weights
from tests.support import loaded

LONG = SETUPS["long"]
SMALL = Settings(3, 3, "tiny-working", bury=0, answers="long", eval_every=2, eval_tasks=4)
KINDS: tuple[Base, ...] = ("weak", "strong", "able", "half-a", "half-b")
MODELS: dict[Base, str] = {**dict.fromkeys(KINDS, "tiny-working"), "wide": "tiny-wide"}


def simulated(name: str, settings: Settings = SMALL) -> Recording:
    return run_simulation(settings, Configuration(AUTO, 0, find_regime(name)), MODELS)


def test_seed_reproduces_figures_and_answers_are_long() -> None:
    first, second = simulated("equal"), simulated("equal")
    assert first.as_json() == second.as_json()
    groups = [mix("8/0").local if number == 0 else 2 for number in range(SMALL.rounds)]
    for figures, least in zip(first.rounds, groups, strict=True):
        assert figures.tokens > least * 8 * 8, "about ten tokens per completion"


@pytest.mark.parametrize("name", sorted(REGIMES.keys() - {"equal"}))
def test_every_regime_runs_with_long_answers(name: str) -> None:
    recording = simulated(name, replace(SMALL, rounds=2))
    assert len(recording.rounds) == 2


def test_partial_credit_rewards_correct_first_steps() -> None:
    dense = simulated("dense", replace(SMALL, nodes=1, rounds=1))
    assert dense.rewards([0])[0] > dense.rounds[0].solved > 0.0


def test_bases_diverge_from_one_model_by_the_given_steps() -> None:
    kinds: Sequence[Base] = ("strong", "weak")
    strong, weak = make_bases(kinds, 0, LONG, "tiny-working", steps=2)
    assert torch.equal(weights(strong), weights(loaded("tiny-working")))
    assert not torch.equal(weights(strong), weights(weak))


@pytest.mark.usefixtures("in_this_process")
def test_long_answers_cannot_resume_short_answer_folder(tmp_path: Path) -> None:
    short = replace(SMALL, nodes=1, rounds=1, answers="short", model="tiny")
    plan = Plan(short, (mix("8/0"),), (0,), 1)
    run_sapo(plan, tmp_path, Console(quiet=True))
    with pytest.raises(NodeError, match="answers 'short' there, 'long' here"):
        long = replace(plan, settings=replace(short, answers="long"))
        run_sapo(long, tmp_path, Console(quiet=True))


def test_unknown_length_error_lists_the_lengths() -> None:
    with pytest.raises(UsageError, match="short or long"):
        setup_name("middling")
