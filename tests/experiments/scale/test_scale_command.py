"""``python -m experiments scale`` on tiny swarms."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.commands import app
from node.errors import UsageError

TINY = ("scale", "--nodes", "6", "--epochs", "3")


def test_scenario_table_has_one_column_per_size() -> None:
    outcome = CliRunner().invoke(app, [*TINY, "--nodes", "4", "--scenario", "partition"])
    assert outcome.exit_code == 0, outcome.output
    assert "partition: two halves for the middle third of the time slots" in outcome.output
    assert ["per", "node", "and", "time", "slot", "4", "6"] in [
        line.split() for line in outcome.output.splitlines()
    ]
    assert "time slots from merge to groups across" in outcome.output
    assert "A member takes 1 of a real one's 4 turns per time slot" in " ".join(
        outcome.output.split()
    )


def test_json_output_is_complete_and_repeatable_by_seed() -> None:
    def measure() -> dict:
        outcome = CliRunner().invoke(app, [*TINY, "--scenario", "loss", "--json", "--seed", "3"])
        (run,) = json.loads(outcome.stdout)["runs"]
        assert run.pop("cpu_ms") > 0
        for epoch in run["epochs"]:
            assert epoch.pop("cpu_ms") > 0
        return run

    run = measure()
    assert run["scenario"] == "loss" and len(run["epochs"]) == 3
    assert run["settings"]["seed"] == 3
    assert run["bytes"].keys() == run["rpcs"].keys() == {"table", "gossip", "frames"}
    assert measure() == run


def test_out_option_writes_a_chart(tmp_path: Path) -> None:
    chart = tmp_path / "scale.svg"
    outcome = CliRunner().invoke(app, [*TINY, "--out", str(chart)])
    assert f"wrote {chart}" in " ".join(outcome.output.split())
    assert "<svg" in chart.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--scenario", "flood"], "steady, churn, partition, loss, growth"),
        (["--out", "chart.txt"], ".png"),
    ],
)
def test_invalid_options_are_refused_before_the_simulation(options: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(app, [*TINY, *options], catch_exceptions=False)
