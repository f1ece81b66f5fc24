import json
import os
import tomllib
from pathlib import Path

import pytest
import torch

from node.config.config import Config
from node.config.registry import LOSSES, SELECTIONS, TRANSPORTS, Registry
from node.doctor import checks
from node.errors import ConfigError
from node.learner.learner import Learner
from node.learner.losses import Clip, Terms
from node.monitor.live import Stages
from node.network import transports
from node.run.status import RunOptions
from node.run.untrained import run_untrained
from node.storage.run_folder import RunFolder
from tests.node.learner.parts import MIXED, weights
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


def test_custom_loss_trains_with_its_own_options(tmp_path, monkeypatch):
    name = install(monkeypatch, tmp_path, "own_loss", LOSSES)

    def trained(beta: float, epochs: int = 3) -> torch.Tensor:
        keys = {"learner.loss": name, "learner.loss_options.beta": beta, "learner.epochs": epochs}
        policy = random_policy()
        Learner(policy, Config.with_overrides(keys).learner).update(MIXED)
        return weights(policy)

    assert not torch.equal(trained(0.0), trained(10.0))
    assert torch.equal(trained(0.0, epochs=1), trained(10.0, epochs=1))  # stated in its README
    with pytest.raises(ConfigError, match=r"learner\.loss_options\.beta: 11"):
        Config.with_overrides({"learner.loss": name, "learner.loss_options.beta": 11})


def test_example_loss_has_finite_gradients_at_extreme_ratios(tmp_path, monkeypatch):
    name = install(monkeypatch, tmp_path, "own_loss", LOSSES)
    loss = LOSSES.open(name, {}, Clip(0.2, 0.28))
    cur = torch.tensor([[-1.0, -200.0, -200.0]], requires_grad=True)
    prox, mask = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[True, True, False]])
    one = torch.ones(1)
    loss(Terms(cur, prox, one, mask, torch.ones_like(prox), one)).backward()
    assert cur.grad is not None and cur.grad.isfinite().all()


def test_experiment_runs_with_a_custom_selection(tmp_path, monkeypatch):
    name = install(monkeypatch, tmp_path, "own_selection", SELECTIONS)
    path = os.pathsep.join([str(tmp_path), str(EXAMPLES / "own_selection"), str(EXAMPLES.parent)])
    command = ["sapo", "--quick", "--mix", "auto", "--nodes", "2", "--run-dir", "run", "--json"]
    command += ["--rounds", "3", "--bury", "0", "--vary", f"mixture.select={name}"]
    env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run = program("-m", "experiments", *command, cwd=tmp_path, env=env, timeout=600)
    assert run.returncode == 0, run.stderr
    assert f"auto mixture.select={name}" in json.dumps(json.loads(run.stdout))


REGIONAL = """
from node.config.schema import Section, key
from node.errors import ConfigError
from node.network.transports import TransportKind


class Regional(TransportKind):
    class Options(Section):
        region: str = key("north", "Where it connects.")

    def check(self, network):
        if self.options.region != "north":
            raise ConfigError("network.transport_options.region", self.options.region, "Go north.")

    def prepare_process(self):
        self.check(None)

    def open(self, network, folder, counters, *, beside):
        raise NotImplementedError
"""


@pytest.mark.parametrize("name", ["north", "south"])
def test_custom_transport_options_are_checked_everywhere(tmp_path, monkeypatch, name):
    (tmp_path / "regional.py").write_text(REGIONAL)
    declare(monkeypatch, tmp_path, "regional", "regional:Regional", TRANSPORTS.group)
    keys = {"network.transport": "regional", "network.transport_options.region": name}
    config = Config.with_overrides(keys)
    result = checks.check_transport(config.network)
    if name == "north":
        transports.check_transport(config.network)
        assert result.level == "ok"
        return
    assert result.level == "fail" and "south" in result.found
    folder, stages = RunFolder(tmp_path / "run"), Stages(quiet=True)
    for action in (
        lambda: transports.check_transport(config.network),
        lambda: run_untrained("bootstrap", config, folder, RunOptions(), stages),
    ):
        with pytest.raises(ConfigError, match="south"):
            action()
