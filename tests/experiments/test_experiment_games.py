"""Swarms whose nodes play games of several turns."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from experiments.arms import AUTO, mix
from experiments.folder import ExperimentFolder
from experiments.report import run_sapo
from experiments.run import Plan
from experiments.settings import Configuration, Settings, SwarmContext
from experiments.setups import SETUPS, Base
from experiments.simulation import SimulatedNode, run_simulation
from node.errors import UsageError

SMALL = Settings(2, 3, "tiny-games", bury=0, answers="games", eval_every=2, eval_tasks=4)
MODELS: dict[Base, str] = {"weak": "tiny-games"}


def test_trajectories_are_shared() -> None:
    shared = run_simulation(SMALL, Configuration(AUTO, 0), MODELS)
    assert max(figures.external for figures in shared.rounds) > 0


def test_nodes_generate_multi_turn_trajectories() -> None:
    node = SimulatedNode(SwarmContext(SMALL, Configuration(mix("8/0"), 0), MODELS), 0)
    local = node.step().local
    turns = {len(c.segments) // 2 + 1 for each in local for c in each.group.completions}
    assert max(turns) > 2
    assert {each.group.env for each in local} > {"guess"}


@pytest.mark.usefixtures("in_this_process")
def test_table_compares_sharing_with_isolated_training(tmp_path: Path) -> None:
    plan = Plan(replace(SMALL, rounds=2), (mix("8/0"), AUTO), (0,), 1)
    alone, shared = run_sapo(plan, tmp_path, Console(quiet=True))
    assert alone.comparison is None and shared.comparison is not None
    assert shared.comparison.at_equal_tokens.mean > 0
    table = ExperimentFolder(tmp_path).table.read_text()
    assert "the model `tiny-games`, task set `games`" in table
    assert not (tmp_path / "bases").exists()


def test_games_setup_is_homogeneous() -> None:
    with pytest.raises(UsageError, match=r"--answers: .*short or long"):
        _ = SETUPS["games"].heterogeneous
