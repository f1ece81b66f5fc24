"""An interrupted run resumes where it was saved, with the same figures."""

import os
from pathlib import Path

import pytest
import torch

from experiments import run_state
from experiments.arms import AUTO, varied
from experiments.regimes import ALL_REGIMES, EQUAL, find_regime
from experiments.run_state import RunState
from experiments.settings import Configuration, Settings
from experiments.simulation import run_simulation

SHORT = Settings(3, 4, bury=0, eval_every=2, eval_tasks=4)
GAMES = Settings(2, 3, "tiny-games", 0, "games", eval_every=2, eval_tasks=4)


class Interrupted(Exception):  # noqa: N818
    """Ends a run in a test."""


@pytest.fixture(autouse=True)
def saved_after_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(run_state, "SAVE_SHARE", 1e9)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "arm", "regime"),
    [
        (SHORT, AUTO, EQUAL.name),
        (SHORT, AUTO, "churn"),
        (SHORT, AUTO, "habit-75"),
        (GAMES, varied("tasks.curriculum=thompson mixture.max_uses=3"), EQUAL.name),
    ],
)
def test_resumed_run_equals_an_uninterrupted_run_exactly(settings, arm, regime, tmp_path):
    run = Configuration(arm, 0, find_regime(regime, ALL_REGIMES))
    models = dict.fromkeys(run.bases(settings), settings.model or "tiny")
    state, before, after = tmp_path / "state", list[int](), list[int]()

    def interrupt(rounds: int) -> None:
        before.append(rounds)
        if rounds == 3:
            raise Interrupted

    whole = run_simulation(settings, run, models)
    with pytest.raises(Interrupted):
        run_simulation(settings, run, models, interrupt, state)
    resumed = run_simulation(settings, run, models, after.append, state)
    assert (before[-1], after[0]) == (3, 3)
    assert resumed.as_json() == whole.as_json()


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_state_that_another_user_signed_is_not_unpickled(tmp_path, monkeypatch, caplog):
    marker, path = tmp_path / "sprung", tmp_path / "state"
    RunState(path, "", {}).save(Trap(marker))
    (tmp_path / "swarm-node" / "experiments.key").write_bytes(os.urandom(32))
    assert RunState(path, "", {}).load() is None
    assert "the run starts again" in caplog.text
    assert not marker.exists()


def test_modified_tensors_are_not_loaded(tmp_path, caplog):
    path = tmp_path / "state"
    RunState(path, "", {}).save({"weights": torch.ones(9)})
    saved = torch.load(path)
    changes = [
        [torch.zeros(36, dtype=torch.uint8)],
        [],
        [torch.zeros(1, dtype=torch.uint8).expand(36)],
    ]
    for changed in changes:
        torch.save({**saved, "storages": changed}, path)
        assert RunState(path, "", {}).load() is None
    assert caplog.text.count("starts again") == len(changes)


@pytest.mark.parametrize("damage", ["empty", "truncated", "another file", "other conditions"])
def test_unusable_state_is_named_and_the_run_restarts(damage, tmp_path, caplog):
    path = tmp_path / "state"
    RunState(path, "these", {}).save({"weights": torch.ones(9)})
    whole = path.read_bytes()
    if damage == "another file":
        torch.save({"objects": 1}, path)
    else:
        path.write_bytes({"empty": b"", "truncated": whole[:-99]}.get(damage, whole))
    wanted = "others" if damage == "other conditions" else "these"
    assert RunState(path, wanted, {}).load() is None
    assert str(path) in caplog.text


@pytest.mark.parametrize(("folder", "value"), [("missing", 1), ("", (n for n in ()))])
def test_a_run_that_cannot_be_saved_continues_with_a_warning(folder, value, tmp_path, caplog):
    path = tmp_path / folder / "state"
    RunState(path, "", {}).offer(value)
    assert "not saved" in caplog.text
    assert not path.exists()
