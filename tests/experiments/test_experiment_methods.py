"""Methods are held against the default, seed by seed, and a table that was broken off goes on."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from experiments.arms import AUTO
from experiments.methods import (
    METHODS,
    Effect,
    Method,
    find_methods,
    markdown,
    run_methods,
    supported,
)
from experiments.settings import Settings
from node.config.config import Config
from node.engines.transformers import fused_decoder
from node.errors import ConfigError, UsageError

SMALL = Settings(nodes=2, rounds=3, model="tiny", bury=0, eval_every=2, eval_tasks=4)
SAME = Method("same", "nobody", "nothing is set otherwise", {})
FASTER = Method("faster", "nobody", "longer steps", {"learner.lr": 1e-3})


def measured(root: Path, *methods: Method) -> dict[str, Effect]:
    found = run_methods({"short": SMALL}, methods, (0, 1), 1, root, Console(quiet=True))
    return dict(found["short"])


def test_every_method_has_a_name_of_its_own_and_keys_that_a_node_takes():
    names = [method.name for method in METHODS]
    assert len(set(names)) == len(names)
    for method in METHODS:
        assert method.source and method.claim and method.keys
        Config.with_overrides(method.arm.overrides)
        assert {**AUTO.overrides, **method.keys} == method.arm.overrides


def test_methods_are_chosen_by_name_in_the_order_of_the_table():
    first, second = METHODS[:2]
    assert find_methods([second.name, first.name, second.name]) == (first, second)
    assert find_methods(None) == METHODS
    with pytest.raises(UsageError, match=r"--method.*sorcery.*Use "):
        find_methods(["sorcery"])


def test_an_idea_of_ones_own_stands_beside_the_methods_that_are_named_or_alone():
    text = "learner.lr=1e-4  mixture.max_uses=2"
    (idea,) = find_methods(None, [text, text])
    assert idea.name == "learner.lr=1e-4 mixture.max_uses=2"
    assert idea.keys == {"learner.lr": 1e-4, "mixture.max_uses": 2}
    (table,) = find_methods(None, ["engine.backend_options={ int8 = true } mixture.max_uses=2"])
    assert table.keys == {"engine.backend_options": {"int8": True}, "mixture.max_uses": 2}
    assert find_methods([METHODS[0].name], [text]) == (METHODS[0], idea)
    with pytest.raises(ConfigError, match=r"--vary.*network\.listen"):
        find_methods(None, ["network.listen=[]"])


@pytest.mark.usefixtures("in_this_process")
def test_what_sets_nothing_is_worth_exactly_nothing_and_something_else_is_not(tmp_path: Path):
    found = measured(tmp_path, SAME, FASTER)
    same, faster = found["same"], found["faster"]
    assert same.seeds == 2
    assert same.factors["equal rounds"].values == same.factors["equal tokens"].values == (1.0, 1.0)
    for alike in ("equal rounds", "equal tokens"):
        assert same.differences[f"held-out, {alike}"].values == (0.0, 0.0)
    assert faster.factors["equal rounds"].values != (1.0, 1.0)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"short", "results.json", "table.md", "chart.png"}
    rows = (tmp_path / "table.md").read_text()
    assert "| same | 2 | 1.00 ± 0.00 | 1.00 ± 0.00 |" in rows
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["methods"][1]["short"]["factors"]["equal rounds"]["values"] == list(
        faster.factors["equal rounds"].values
    )


def test_what_this_machine_refuses_is_left_out_of_all_and_told_by_name(monkeypatch):
    monkeypatch.setattr(fused_decoder, "share_of_float32", lambda: 1.5)
    screen = Console(record=True, width=200, file=StringIO())
    left = supported(METHODS, screen)
    assert {method.name for method in METHODS} - {method.name for method in left} == {
        "int8-rollouts"
    }
    assert "int8-rollouts cannot run here: engine.backend_options" in screen.export_text()


def test_a_refused_one_asked_for_by_name_is_reported_before_any_run(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(fused_decoder, "share_of_float32", lambda: 1.5)
    with pytest.raises(ConfigError, match=r"engine\.backend_options"):
        measured(tmp_path, *find_methods(["int8-rollouts"]))
    assert not list(tmp_path.glob("*/runs/*"))


@pytest.mark.usefixtures("in_this_process")
def test_a_further_method_runs_beside_the_default_that_is_there(tmp_path: Path):
    measured(tmp_path, SAME)
    default = next((tmp_path / "short" / "runs").glob("equal.auto.0.json"))
    written = default.stat().st_mtime_ns
    assert list(measured(tmp_path, FASTER)) == ["faster"]
    assert default.stat().st_mtime_ns == written


def test_a_method_without_runs_has_an_empty_row():
    table = markdown({"short": SMALL}, [SAME], {"short": {}})
    assert "| same | 0 |  |  |  |  |  |  |" in table


@pytest.mark.usefixtures("in_this_process")
def test_behind_a_pipe_a_line_tells_of_each_run_that_is_done(tmp_path: Path):
    screen = Console(record=True, width=120, file=StringIO())
    run_methods({"short": SMALL}, (SAME,), (0,), 1, tmp_path, screen)
    told = screen.export_text()
    assert "rounds: 2 to do" in told
    assert "rounds: 2 of 2, equal same, seed 0" in told
