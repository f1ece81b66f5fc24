"""Swarms whose nodes answer with their working."""

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


def test_a_seed_gives_the_same_figures_again_and_answers_are_long() -> None:
    first, second = simulated("equal"), simulated("equal")
    assert first.as_json() == second.as_json()
    groups = [mix("8/0").local if number == 0 else 2 for number in range(SMALL.rounds)]
    for figures, least in zip(first.rounds, groups, strict=True):
        assert figures.tokens > least * 8 * 8, "some ten tokens a completion"


@pytest.mark.parametrize("name", sorted(REGIMES.keys() - {"equal"}))
def test_every_regime_is_there_for_long_answers(name: str) -> None:
    recording = simulated(name, replace(SMALL, rounds=2))
    assert len(recording.rounds) == 2


def test_where_credit_is_partial_some_reward_is_for_the_first_right_steps() -> None:
    dense = simulated("dense", replace(SMALL, nodes=1, rounds=1))
    assert dense.rewards([0])[0] > dense.rounds[0].solved > 0.0


def test_bases_branch_off_from_one_origin_as_far_as_they_are_told_to() -> None:
    kinds: Sequence[Base] = ("strong", "weak")
    strong, weak = make_bases(kinds, 0, LONG, "tiny-working", steps=2)
    assert torch.equal(weights(strong), weights(loaded("tiny-working")))
    assert not torch.equal(weights(strong), weights(weak))


@pytest.mark.usefixtures("in_this_process")
def test_a_folder_of_short_answers_is_not_gone_on_with_by_long_ones(tmp_path: Path) -> None:
    short = replace(SMALL, nodes=1, rounds=1, answers="short", model="tiny")
    plan = Plan(short, (mix("8/0"),), (0,), 1)
    run_sapo(plan, tmp_path, Console(quiet=True))
    with pytest.raises(NodeError, match="answers 'short' there, 'long' here"):
        long = replace(plan, settings=replace(short, answers="long"))
        run_sapo(long, tmp_path, Console(quiet=True))


def test_another_length_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="short or long"):
        setup_name("middling")
