"""Kinds by name: the project's own, those of packages, and what is told of wrong ones."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from node.config.config import Config, build
from node.config.registry import LOGGERS, LOSSES, REGISTRIES, Registry
from node.errors import ConfigError
from tests.node.packages import declare


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.key)
def test_every_file_of_a_folder_is_a_kind_that_can_be_opened(registry: Registry) -> None:
    section, name = registry.key.split(".")
    chosen = getattr(getattr(Config(), section), name)
    assert chosen in registry.own if isinstance(chosen, str) else chosen == ()
    for kind in registry.own:
        assert registry.load(kind).__doc__
        registry.options(kind, {})


def test_names_are_known_without_importing_what_they_name() -> None:
    code = (
        "import sys, node.config.config; print({'torch', 'node.learner.losses'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def named(registry: Registry, kind: str) -> str | list[str]:
    """As the key of a registry takes it."""
    return [kind] if registry is LOGGERS else kind


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.key)
def test_a_kind_that_is_not_here_is_named_with_those_that_are(registry: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.with_overrides({registry.key: named(registry, "magic")})
    line = str(caught.value)
    assert line.startswith(f"{registry.key}: 'magic'.")
    assert all(name in line for name in (*registry.own, registry.group))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cop": 1.0}, "mixture.correction_options.cop: 1.0. Extra inputs .*'tis' has cap"),
        ({"cap": 0}, "mixture.correction_options.cap: 0. It should be greater than 0"),
        ({"cap": "much"}, "mixture.correction_options.cap: 'much'"),
    ],
)
def test_wrong_options_of_a_kind_are_refused_with_the_file(options: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build({"mixture": {"correction": "tis", "correction_options": options}})


def test_options_of_a_kind_that_has_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.loss_options: .*'grpo' has none"):
        Config.with_overrides({"learner.loss_options.beta": 1})


CHANGES = {
    "learner.loss": """
from node.learner.losses import Loss
class Mine(Loss):
    def __call__(self, terms):
        return -(terms.cur * terms.advantages[:, None]).sum()
""",
    "learner.advantage": """
from node.learner.losses import Advantage
class Mine(Advantage):
    def of(self, rewards):
        return tuple(rewards)
""",
    "mixture.correction": """
from node.learner.off_policy import Correction
class Mine(Correction):
    def external(self, prox, entropies, mask, batch):
        return prox * 0
""",
    "mixture.select": """
from swarm.mixture.selection import Selection
class Mine(Selection):
    slots = 4
    def room(self, informative):
        return 4
""",
    "tasks.curriculum": """
from node.tasks.curriculum import Curriculum
class Mine(Curriculum):
    def next(self, levels, weights, rng):
        return levels[0]
""",
    "engine.kind": """
from node.engines.kinds import EngineKind
class Mine(EngineKind):
    beside = True
    def backend(self, settings):
        raise NotImplementedError
""",
    "monitor.loggers": """
from node.monitor.loggers import Logger
class Mine(Logger):
    def write(self, record):
        print(record.round)
    def close(self):
        print("closed")
""",
    "network.transport": """
from node.network.transports import TransportKind
class Mine(TransportKind):
    def open(self, network, folder, counters, *, beside):
        raise NotImplementedError
""",
}
"""By key: a whole file that adds a kind."""


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.key)
def test_every_kind_of_the_table_is_one_of_its_part(registry: Registry) -> None:
    module, name = registry.base.split(":")
    base = getattr(import_module(module), name)
    assert all(issubclass(registry.load(kind), base) for kind in registry.own)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.key)
def test_one_file_of_a_package_adds_a_kind(registry: Registry, tmp_path, monkeypatch) -> None:
    module = registry.key.replace(".", "_")
    (tmp_path / f"{module}.py").write_text(CHANGES[registry.key])
    declare(monkeypatch, tmp_path, "mine", f"{module}:Mine", registry.group)
    Config.with_overrides({registry.key: named(registry, "mine")})
    assert registry.load("mine").__name__ == "Mine"


PLAIN = """
from node.learner.losses import Loss
class Plain(Loss):
    def __call__(self, terms):
        return -(terms.cur * terms.advantages[:, None]).sum()
class Lost: ...
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plain_loss.py").write_text(PLAIN)
    return tmp_path


def test_a_packages_kind_is_chosen_by_its_name(package: Path, monkeypatch) -> None:
    declare(monkeypatch, package, "plain", "plain_loss:Plain", LOSSES.group)
    config = Config.with_overrides({"learner.loss": "plain"})
    assert LOSSES.load(config.learner.loss).__name__ == "Plain"


@pytest.mark.parametrize(
    ("name", "target", "told"),
    [
        ("lost", "plain_loss:Lost", "must be a class that extends node.learner.losses.Loss"),
        ("gone", "plain_loss:Gone", "plain_loss:Gone cannot be imported .*mend its package"),
        ("grpo", "plain_loss:Plain", "has a name that the project uses"),
    ],
)
def test_a_package_that_is_wrong_is_told_as_such(
    package: Path, monkeypatch, name: str, target: str, told: str
) -> None:
    declare(monkeypatch, package, name, target, LOSSES.group)
    with pytest.raises(ConfigError, match=told):
        Config.with_overrides({"learner.loss": name})


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"monitor": {"loggers_options": {"wandb": {}}}}, "monitor.loggers_options"),
        ({"learner": 3}, "learner"),
        (
            {"mixture": {"correction": "tis", "correction_options": 5}},
            "mixture.correction_options",
        ),
    ],
)
def test_a_table_that_is_not_one_or_has_no_plugin_is_named(table: dict, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(table)
    assert caught.value.key == key
