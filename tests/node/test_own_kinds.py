import json
import os
import tomllib
from pathlib import Path

import pytest
import torch

from node.config.config import Config
from node.config.registry import LOSSES, SELECTIONS, Registry
from node.errors import ConfigError
from node.learner.learner import Learner
from tests.node.learner.parts import MIXED
from tests.node.packages import declare
from tests.node.programs import ROOT, program
from tests.support import random_policy

EXAMPLES = ROOT / "examples"


def install(patch: pytest.MonkeyPatch, folder: Path, example: str, registry: Registry) -> str:
    project = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"][registry.group].items()
    patch.syspath_prepend(EXAMPLES / example)
    declare(patch, folder, name, target, registry.group)
    return name


def test_a_loss_of_ones_own_trains_with_its_own_settings(tmp_path, monkeypatch):
    name = install(monkeypatch, tmp_path, "own_loss", LOSSES)

    def trained(beta: float) -> torch.Tensor:
        keys = {"learner.loss": name, "learner.loss_options.beta": beta, "learner.epochs": 3}
        policy = random_policy()
        Learner(policy, Config.with_overrides(keys).learner).update(MIXED)
        return torch.cat([weight.detach().flatten() for weight in policy.model.parameters()])

    assert not torch.equal(trained(0.0), trained(10.0))
    with pytest.raises(ConfigError, match=r"learner\.loss_options\.beta: 11"):
        Config.with_overrides({"learner.loss": name, "learner.loss_options.beta": 11})


def test_a_selection_of_ones_own_is_measured_by_the_experiment(tmp_path, monkeypatch):
    name = install(monkeypatch, tmp_path, "own_selection", SELECTIONS)
    path = os.pathsep.join([str(tmp_path), str(EXAMPLES / "own_selection"), str(EXAMPLES.parent)])
    command = ["sapo", "--quick", "--mix", "auto", "--nodes", "2", "--run-dir", "run", "--json"]
    command += ["--rounds", "3", "--bury", "0", "--vary", f"mixture.select={name}"]
    env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run = program("-m", "experiments", *command, cwd=tmp_path, env=env, timeout=600)
    assert run.returncode == 0, run.stderr
    assert f"auto mixture.select={name}" in json.dumps(json.loads(run.stdout))
