"""A swarm shares game trajectories, verifies them by replay and trains on them."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.cli.program import app
from node.demo import run
from node.monitor.groups import ANSWERED, read_rollouts
from node.monitor.history import read_records
from tests.end_to_end.commands import Command, join
from tests.end_to_end.forked import ForkedNode
from tests.end_to_end.watching import OUT_OF_TIME

pytestmark = pytest.mark.processes

PLAYING = ("--set=policy.model=tiny-games", "--set=engine.max_new_tokens=32")


def test_two_nodes_accept_and_train_on_each_others_games(tmp_path, monkeypatch):
    arguments = ("--task-set", "games", "--nodes", "2", "--rounds", "12", "--run-dir", "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "NodeProcess", ForkedNode)
    demo = CliRunner().invoke(app, ["demo", *arguments])
    assert demo.exit_code == 0, demo.output
    for name in ("node-1", "node-2"):
        records = read_records(tmp_path / "demo" / name)
        assert sum(record.groups_external for record in records) > 0
        assert all(record.refused.keys() <= OUT_OF_TIME for record in records)
        assert any(record.policy_step for record in records)
        shown = read_rollouts(tmp_path / "demo" / name / "groups.jsonl")
        assert any(f"\n{ANSWERED}" in each.completion for each in shown)
        assert any(each.author for each in shown)


def test_async_schedule_plays_games_and_resumes(tmp_path: Path) -> None:
    create = ("create", "--name", "players", "--task-set", "games", "--config", "swarm-run")
    for arguments in (("init", "swarm-run"), create):
        with Command(tmp_path, *arguments, forked=True) as command:
            assert command.wait() == 0, command.err
    overlap = (*PLAYING, "--set=schedule.mode=async", "--set=schedule.max_staleness=2")
    for rounds in (4, 8):
        with join(tmp_path, *overlap, f"--rounds={rounds}") as node:
            assert node.wait() == 0, node.err
            last = node.records()[-1]
            assert last.round == rounds and not last.refused
            assert last.groups_local and last.policy_step
