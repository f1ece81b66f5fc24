"""Methods are compared with the default by seed; an interrupted table resumes."""

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
    effects = run_methods({"short": SMALL}, methods, (0, 1), 1, root, Console(quiet=True))
    return dict(effects["short"])


def test_methods_have_unique_names_and_valid_config_keys():
    names = [method.name for method in METHODS]
    assert len(set(names)) == len(names)
    for method in METHODS:
        assert method.source and method.claim and method.keys
        Config.with_overrides(method.arm.overrides)
        assert {**AUTO.overrides, **method.keys} == method.arm.overrides


def test_find_methods_keeps_the_table_order():
    first, second = METHODS[:2]
    assert find_methods([second.name, first.name, second.name]) == (first, second)
    assert find_methods(None) == METHODS
    with pytest.raises(UsageError, match=r"--method.*sorcery.*Use "):
        find_methods(["sorcery"])


def test_find_methods_accepts_custom_config_variations():
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
def test_only_a_method_that_changes_config_changes_results(tmp_path: Path):
    effects = measured(tmp_path, SAME, FASTER)
    same, faster = effects["same"], effects["faster"]
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


def test_supported_skips_and_names_unavailable_methods(monkeypatch):
    monkeypatch.setattr(fused_decoder, "share_of_float32", lambda: 1.5)
    screen = Console(record=True, width=200, file=StringIO())
    usable = supported(METHODS, screen)
    assert {method.name for method in METHODS} - {method.name for method in usable} == {
        "int8-rollouts"
    }
    assert "int8-rollouts cannot run here: engine.backend_options" in screen.export_text()


def test_unsupported_named_method_fails_before_any_run(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(fused_decoder, "share_of_float32", lambda: 1.5)
    with pytest.raises(ConfigError, match=r"engine\.backend_options"):
        measured(tmp_path, *find_methods(["int8-rollouts"]))
    assert not list(tmp_path.glob("*/runs/*"))


@pytest.mark.usefixtures("in_this_process")
def test_additional_method_reuses_the_default_runs(tmp_path: Path):
    measured(tmp_path, SAME)
    default = next((tmp_path / "short" / "runs").glob("equal.auto.0.json"))
    written = default.stat().st_mtime_ns
    assert list(measured(tmp_path, FASTER)) == ["faster"]
    assert default.stat().st_mtime_ns == written


def test_a_method_without_runs_has_an_empty_row():
    table = markdown({"short": SMALL}, [SAME], {"short": {}})
    assert "| same | 0 |  |  |  |  |  |  |" in table


@pytest.mark.usefixtures("in_this_process")
def test_piped_output_reports_each_finished_run(tmp_path: Path):
    screen = Console(record=True, width=120, file=StringIO())
    run_methods({"short": SMALL}, (SAME,), (0,), 1, tmp_path, screen)
    output = screen.export_text()
    assert "rounds: 2 to do" in output
    assert "rounds: 2 of 2, equal same, seed 0" in output
