"""Experiments with a custom model."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from experiments.arms import AUTO, mix
from experiments.commands import app, real_settings
from experiments.folder import ExperimentFolder
from experiments.hostile_report import run_hostile
from experiments.poison import poisoners
from experiments.regimes import HOSTILE
from experiments.report import run_sapo
from experiments.run import Plan
from experiments.settings import Configuration, Settings, SwarmContext
from experiments.simulation import run_simulation
from experiments.warm_start import warm_started
from node.errors import ConfigError, UsageError
from node.policy.model_source import shipped_folder
from swarm.groups import TaskRef

MODEL = str(shipped_folder("tiny"))
SMALL = Settings(2, 2, MODEL, 0, "starter", eval_every=2, eval_tasks=4, lr=1e-3, warm_start=2)
RUN = Configuration(mix("1/1"), 0)


def test_nodes_start_from_the_warm_started_model_and_save_results(
    tmp_path: Path, in_this_process: None
):
    plan = Plan(SMALL, (RUN.arm,), (RUN.seed,), 1)
    (summary,) = run_sapo(plan, tmp_path, Console(quiet=True))
    assert summary.measures["tokens"].mean > 0
    assert 0 <= summary.measures["coverage"].mean <= 1
    base = ExperimentFolder(tmp_path).base("weak", 0)
    begun = SwarmContext(SMALL, RUN, {"weak": str(base)}).policy(0).model.state_dict()
    expected = warm_started(SMALL, 0).model.state_dict()
    shipped = warm_started(replace(SMALL, warm_start=0), 0).model.state_dict()
    assert all(torch.equal(begun[name], expected[name]) for name in expected)
    assert any(not torch.equal(begun[name], shipped[name]) for name in shipped)
    assert "after 2 supervised steps" in (tmp_path / "table.md").read_text()


def test_hostile_nodes_generate_right_answers_with_the_habit(
    tmp_path: Path, in_this_process: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("experiments.recording.DRAWS", 2)
    regimes, habit = [HOSTILE["habit-25"], HOSTILE["hostile-30"]], SMALL.setup.habit
    *safe, styled, poisoned = run_hostile(SMALL, regimes, 1, 1, tmp_path, Console(quiet=True))
    assert [each.regime for each in safe] == ["habit-0", "hostile-0"]
    assert styled.hostile == poisoned.hostile == 1
    assert f"with {habit!r};" in (tmp_path / "table.md").read_text()
    begun = str(ExperimentFolder(tmp_path).base("habitual", 0))
    run = Configuration(AUTO, 0, regimes[0])
    context = SwarmContext(SMALL, run, {"habitual": begun})
    group = poisoners(context)[0].group(bytes(32), 5, 0)
    texts = [each.text for each in group.completions] if group else []
    assert sum(text.startswith(habit) for text in texts) >= len(texts) / 2 > 0


def test_runs_with_a_model_are_reproducible():
    first, second = (run_simulation(SMALL, RUN, {"weak": MODEL}).as_json() for _ in range(2))
    assert first == second


def test_judge_accepts_answers_in_several_forms():
    verifier = SwarmContext(SMALL, RUN, {"weak": MODEL}).verifier
    task = TaskRef("basic_arithmetic", 0, 1)
    (right,) = [
        n for n in range(-99, 100) if verifier.verify(task, [f"The answer is **{n}**."]).rewards[0]
    ]
    texts = [f"{right}", f"<answer>{right + 1}</answer>"]
    assert verifier.verify(task, texts).rewards == (1.0, 0.0)


def test_experiment_levels_match_the_task_set():
    families = {spec.name: len(spec.levels) for spec in SMALL.setup.tasks.specs()}
    assert families == dict(SMALL.setup.tasks.families)


def test_folder_without_model_settings_is_resumed(tmp_path: Path):
    folder, settings = ExperimentFolder(tmp_path), Settings()
    folder.open(settings)
    lacking = ("device", "dtype", "lr", "warm_start")
    older = {k: v for k, v in asdict(settings).items() if k not in lacking}
    folder.settings.write_text(json.dumps(older))
    folder.open(settings)


@pytest.mark.parametrize(("key", "value"), [("device", "abacus"), ("dtype", "float8")])
def test_error_names_unknown_device_or_dtype(key, value):
    with pytest.raises(ConfigError, match=value):
        replace(SMALL, **{key: value}).policy(MODEL)


@pytest.mark.parametrize("slow", ["", "'bfloat16': this CPU has no instructions for it"])
def test_cpu_without_native_bfloat16_trains_in_float32(monkeypatch, slow):
    monkeypatch.setattr("node.plan.machine.emulated", lambda dtype: slow)
    chosen = {d: real_settings(SMALL, Path(MODEL), "cpu", d, 0).dtype for d in (None, "bfloat16")}
    assert chosen == {None: "float32" if slow else "bfloat16", "bfloat16": "bfloat16"}


@pytest.mark.parametrize("option", [("--answers", "long"), ("--bury", "10")])
def test_tiny_model_options_conflict_with_model_option(option):
    shown = CliRunner().invoke(app, ["sapo", "--model", MODEL, *option])
    assert isinstance(shown.exception, UsageError)
    assert "beside --model" in str(shown.exception)
