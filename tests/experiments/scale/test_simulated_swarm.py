"""Whole simulated swarms: what befalls them shows in their figures, and on the command line."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.commands import app
from experiments.scale.figures import Figures
from experiments.scale.scenario import SCENARIOS
from experiments.scale.settings import Settings, agreed
from experiments.scale.shared_memory import Openings
from experiments.scale.swarm import run
from experiments.scale.tally import Kind
from node.errors import UsageError
from protocol.announcement import Announcement, depth_for, sign_announcement
from protocol.identity import Identity

SMALL = Settings(nodes=12, epochs=6, turns=2, pulls=4)


def simulated(scenario: str, **changes: int) -> Figures:
    return run(replace(SMALL, **changes), SCENARIOS[scenario])


def told(figures: Figures) -> list[object]:
    """All but CPU time."""
    epochs = [astuple(replace(epoch, cpu_ms=0.0)) for epoch in figures.epochs]
    return [epochs, figures.waits, figures.taken]


def test_everybody_in_a_steady_swarm_soon_has_groups_of_others() -> None:
    figures = simulated("steady", epochs=9)
    assert figures.waits.never == 0 and figures.waits.worst <= 1.0
    assert figures.least_found == 1.0
    assert 0.5 < figures.taken <= 1.0
    assert 1.0 <= figures.authors <= SMALL.pulls
    assert figures.rpcs(Kind.FRAMES) == SMALL.pulls
    assert figures.key_records == 12 and figures.key_reads == 2 * 12
    assert all(figures.bytes(kind) > 0 for kind in Kind)


@pytest.mark.parametrize("scenario", ["churn", "loss", "partition"])
def test_a_seed_gives_the_same_figures_again_and_another_seed_others(scenario: str) -> None:
    first = told(simulated(scenario))
    assert told(simulated(scenario)) == first
    assert told(simulated(scenario, seed=1)) != first


def test_the_halves_of_a_cut_have_nothing_of_one_another_until_it_heals() -> None:
    figures = simulated("partition", epochs=9, nodes=16)
    crossed = [epoch.crossed for epoch in figures.epochs]
    assert crossed[4:6] == [0.0, 0.0]
    assert figures.mended is not None and figures.mended <= 2
    assert simulated("steady").mended is None


def test_who_leaves_is_replaced_and_the_newcomer_finds_groups() -> None:
    figures = simulated("churn", nodes=40, epochs=12)
    assert {epoch.nodes for epoch in figures.epochs} == {40}
    steady = simulated("steady", nodes=40, epochs=12)
    assert told(figures) != told(steady)
    assert figures.waits.never == 0


def test_a_third_of_the_nodes_leaves_in_an_hour_of_churn() -> None:
    settings = Settings(nodes=1000, epochs=60)
    churn = SCENARIOS["churn"]
    assert churn.leaving(settings, 0) == 0
    assert sum(churn.leaving(settings, epoch) for epoch in range(61)) == 300


def test_a_swarm_grows_by_a_constant_factor_up_to_its_size() -> None:
    growth = SCENARIOS["growth"]
    settings = Settings(nodes=10_000, epochs=20)
    sizes = [growth.size(settings, epoch) for epoch in range(20)]
    assert sizes[0] == 10 and sizes[-1] == 10_000
    assert all(1.4 < after / before < 1.5 for before, after in pairwise(sizes[4:]))
    figures = simulated("growth", nodes=30)
    assert [epoch.nodes for epoch in figures.epochs] == [10, 12, 16, 19, 24, 30]


def test_lost_messages_are_lost_to_somebody() -> None:
    whole, lossy = simulated("steady", nodes=30), simulated("loss", nodes=30)
    assert lossy.rpcs(Kind.FRAMES) > whole.rpcs(Kind.FRAMES)
    assert lossy.waits.never == 0


def test_announcements_stand_as_deep_as_suits_the_size() -> None:
    for nodes in (10, 60):
        assert simulated("steady", nodes=nodes).depth == pytest.approx(depth_for(nodes), abs=0.4)


def test_what_nodes_remember_together_is_theirs_alone_and_bounded() -> None:
    openings = Openings.remembering(1)
    swarm = agreed(10)

    def opened(number: int) -> object:
        made = Announcement(1, 0, 0, number, 1, 120.0, 0, ())
        author = Identity.from_seed(bytes([number]) * 32)
        record = sign_announcement(made, author, swarm.swarm_id)
        return openings.record(record, swarm.swarm_id, swarm.manifest)

    first, again, _, anew = map(opened, (1, 1, 2, 1))
    assert first is again
    assert anew == first
    assert Openings.remembering(1).record is not openings.record


TINY = ("scale", "--nodes", "6", "--epochs", "3")


def test_sizes_stand_side_by_side_under_their_scenario() -> None:
    shown = CliRunner().invoke(app, [*TINY, "--nodes", "4", "--scenario", "partition"])
    assert shown.exit_code == 0, shown.output
    assert "partition: two halves for the middle third of the epochs" in shown.output
    assert ["a", "node", "and", "epoch", "4", "6"] in [
        line.split() for line in shown.output.splitlines()
    ]
    assert "epochs from heal to groups across" in shown.output
    assert "A member takes 1 of a real one's 4 turns an epoch" in " ".join(shown.output.split())


def test_json_tells_everything_and_a_seed_gives_it_again() -> None:
    def told() -> dict:
        shown = CliRunner().invoke(app, [*TINY, "--scenario", "loss", "--json", "--seed", "3"])
        (run,) = json.loads(shown.stdout)["runs"]
        assert run.pop("cpu_ms") > 0
        for epoch in run["epochs"]:
            assert epoch.pop("cpu_ms") > 0
        return run

    run = told()
    assert run["scenario"] == "loss" and len(run["epochs"]) == 3
    assert run["settings"]["seed"] == 3
    assert run["bytes"].keys() == run["rpcs"].keys() == {"table", "gossip", "frames"}
    assert told() == run


def test_a_chart_is_drawn_where_it_is_asked_for(tmp_path: Path) -> None:
    chart = tmp_path / "scale.svg"
    shown = CliRunner().invoke(app, [*TINY, "--out", str(chart)])
    assert f"wrote {chart}" in " ".join(shown.output.split())
    assert "<svg" in chart.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--scenario", "flood"], "steady, churn, partition, loss, growth"),
        (["--out", "chart.txt"], ".png"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_simulated(options, said):
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(app, [*TINY, *options], catch_exceptions=False)
