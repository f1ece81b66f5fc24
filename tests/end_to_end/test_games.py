"""A swarm that plays: trajectories are shared, replayed by whoever takes them, and learned from."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from commands import QUICK, Command

from node.monitor.history import read_records
from node.monitor.rollouts_file import read_rollouts
from node.monitor.transcript import ANSWERED

pytestmark = pytest.mark.processes

PLAYING = ("--set=policy.model=tiny-games", "--set=engine.max_new_tokens=32")


def test_two_nodes_learn_from_each_others_games_and_refuse_none(tmp_path: Path) -> None:
    arguments = ("--catalogue", "games", "--nodes", "2", "--rounds", "12", "--run-dir", "demo")
    with closing(Command(tmp_path, "demo", *arguments)) as demo:
        assert demo.wait() == 0, demo.err
    for name in ("node-1", "node-2"):
        records = read_records(tmp_path / "demo" / name)
        assert sum(record.groups_external for record in records) > 0
        assert all(not record.refused for record in records)
        assert any(record.policy_step for record in records)
        shown = read_rollouts(tmp_path / "demo" / name / "rollouts.jsonl")
        assert any(f"\n{ANSWERED}" in each.completion for each in shown)
        assert any(each.author for each in shown)


def test_a_schedule_that_does_not_play_is_refused_with_the_remedy(tmp_path: Path) -> None:
    found = ("found", "--name", "players", "--catalogue", "games", "--config", "swarm-run")
    for arguments in (("init", "swarm-run"), found):
        with closing(Command(tmp_path, *arguments)) as command:
            assert command.wait() == 0, command.err
    overlap = (*QUICK, *PLAYING, "--set=schedule.mode=overlap", "--rounds=1")
    with closing(Command(tmp_path, "join", *overlap)) as node:
        assert node.wait() == 2
        (said,) = (line for line in node.err if line.startswith("error: "))
    assert "schedule.mode" in said and "sync" in said and "tasks.weights" in said
    with closing(Command(tmp_path, "join", *QUICK, *PLAYING, "--rounds=2")) as node:
        assert node.wait() == 0, node.err
        assert node.records()[-1].round == 2
