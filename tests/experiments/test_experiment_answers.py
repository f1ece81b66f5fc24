"""Swarms whose nodes answer with intermediate steps, or play games turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from experiments.answers import ANSWERS, answers_of
from experiments.arms import AUTO, mix, varied
from experiments.bases import Base, make_bases
from experiments.folder import ExperimentFolder
from experiments.regimes import REGIMES
from experiments.run import Plan, run
from experiments.simulation import SimulatedNode
from node.config.learning import PolicySection
from node.errors import NodeError, UsageError
from node.policy.policy import Policy
from tests.experiments.parts import QUIET, SMALL, simulated, surroundings

LONG = ANSWERS["long"]
STEPS = replace(SMALL, nodes=3, model="tiny-working", answers="long")
GAMES = replace(SMALL, model="tiny-games", answers="games")
TURNS = varied(
    "learner.turn_credit=0.5 learner.turns_kept=0.8 mixture.successes=2 mixture.semi_online=1"
)


def test_a_seed_gives_the_same_figures_again_and_answers_are_long() -> None:
    first, second = simulated(STEPS), simulated(STEPS)
    assert first.as_json() == second.as_json()
    groups = [mix("8/0").local if number == 0 else 2 for number in range(STEPS.rounds)]
    for figures, least in zip(first.rounds, groups, strict=True):
        assert figures.tokens > least * 8 * 8, "some ten tokens a completion"


@pytest.mark.parametrize("name", sorted(REGIMES.keys() - {"equal"}))
def test_every_regime_is_there_for_long_answers(name: str) -> None:
    recording = simulated(replace(STEPS, rounds=2), name)
    assert len(recording.rounds) == 2


def test_where_credit_is_partial_some_reward_is_for_the_first_right_steps() -> None:
    dense = simulated(replace(STEPS, nodes=1, rounds=1), "dense")
    assert dense.rewards([0])[0] > dense.rounds[0].solved > 0.0


def weights(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def test_bases_branch_off_from_one_origin_as_far_as_they_are_told_to() -> None:
    kinds: Sequence[Base] = ("strong", "weak")
    strong, weak = make_bases(kinds, 0, LONG, "tiny-working", steps=2)
    shipped = Policy.load(PolicySection(model="tiny-working", device="cpu")).model
    assert torch.equal(weights(strong.model), weights(shipped))
    assert not torch.equal(weights(strong.model), weights(weak.model))


@pytest.mark.usefixtures("in_this_process")
def test_a_folder_of_short_answers_is_not_gone_on_with_by_long_ones(tmp_path: Path) -> None:
    short = replace(SMALL, nodes=1, rounds=1)
    plan = Plan(short, (mix("8/0"),), (0,), 1)
    run(plan, tmp_path, QUIET)
    with pytest.raises(NodeError, match="answers 'short' there, 'long' here"):
        run(replace(plan, settings=replace(short, answers="long")), tmp_path, QUIET)


def test_another_length_is_refused_with_those_that_there_are_and_nodes_of_games_are_alike() -> None:
    with pytest.raises(UsageError, match="short or long"):
        answers_of("middling")
    with pytest.raises(UsageError, match=r"--answers: .*short or long"):
        _ = ANSWERS["games"].differing


def test_a_seed_of_games_gives_the_same_figures_again_and_another_or_options_for_turns_others():
    first, turns = simulated(GAMES), simulated(GAMES, arm=TURNS)
    assert simulated(GAMES).as_json() == first.as_json()
    assert simulated(GAMES, arm=TURNS).as_json() == turns.as_json()
    assert simulated(GAMES, seed=1).rounds != first.rounds != turns.rounds
    assert max(figures.external for figures in first.rounds) > 0, "trajectories are shared"


def test_nodes_write_trajectories_of_several_turns() -> None:
    own = SimulatedNode(surroundings(GAMES, arm=mix("8/0")), 0).step().own
    turns = {len(c.segments) // 2 + 1 for each in own for c in each.group.completions}
    assert max(turns) > 2
    assert {each.group.env for each in own} > {"guess"}


@pytest.mark.usefixtures("in_this_process")
def test_sharing_stands_in_the_table_beside_training_alone(tmp_path: Path) -> None:
    plan = Plan(replace(GAMES, rounds=2), (mix("8/0"), AUTO), (0,), 1)
    alone, shared = run(plan, tmp_path, QUIET)
    assert alone.comparison is None and shared.comparison is not None
    assert shared.comparison.at_equal_tokens.mean > 0
    table = ExperimentFolder(tmp_path).table.read_text()
    assert "the model `tiny-games`, tasks of the catalogue `games`" in table
    assert not (tmp_path / "bases").exists()
