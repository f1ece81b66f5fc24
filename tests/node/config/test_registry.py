from contextlib import nullcontext
from importlib import import_module

import pytest

from node.config.config import Config, build
from node.config.registry import LOGGERS, LOSSES, REGISTRIES, Registry
from node.errors import ConfigError
from tests.node.packages import declare
from tests.node.programs import python


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.key)
def test_registry_loads_every_built_in_plugin(registry):
    section, name = registry.key.split(".")
    chosen = getattr(getattr(Config(), section), name)
    assert chosen in registry.builtin if isinstance(chosen, str) else chosen == ()
    module, base = registry.base.split(":")
    for kind in registry.builtin:
        assert registry.load(kind).__doc__
        assert issubclass(registry.load(kind), getattr(import_module(module), base))
        registry.options(kind, {})


def test_config_import_loads_no_torch_or_plugins():
    code = "import sys,node.config.config; print({'torch', 'node.learner.losses'} & {*sys.modules})"
    assert python(code, check=True).stdout.strip() == "set()"


def named(registry: Registry, kind: str) -> str | list[str]:
    """Return the value that the registry's key expects."""
    return [kind] if registry is LOGGERS else kind


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.key)
def test_unknown_plugin_error_lists_the_available_ones(registry):
    with pytest.raises(ConfigError) as caught:
        Config.with_overrides({registry.key: named(registry, "magic")})
    line = str(caught.value)
    assert line.startswith(f"{registry.key}: 'magic'.")
    assert all(name in line for name in (*registry.builtin, registry.group))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cop": 1.0}, "mixture.correction_options.cop: 1.0. Extra inputs .*'tis' are cap"),
        ({"cap": 0}, "mixture.correction_options.cap: 0. It should be greater than 0"),
        ({"cap": "much"}, "mixture.correction_options.cap: 'much'"),
    ],
)
def test_config_rejects_invalid_or_unsupported_plugin_options(options, told):
    with pytest.raises(ConfigError, match=told):
        build({"mixture": {"correction": "tis", "correction_options": options}})
    with pytest.raises(ConfigError, match=r"learner\.loss_options: .*'grpo' has no options"):
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
from swarm.mixture import Selection
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
    "engine.backend": """
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
"""Complete files that each add a plugin, by registry key."""


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.key)
def test_package_file_adds_a_plugin(registry, tmp_path, monkeypatch):
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


@pytest.mark.parametrize(
    ("name", "target", "told"),
    [
        ("plain", "plain_loss:Plain", None),
        ("lost", "plain_loss:Lost", "must be a class that extends node.learner.losses.Loss"),
        ("gone", "plain_loss:Gone", "plain_loss:Gone cannot be imported .*repair its package"),
        ("grpo", "plain_loss:Plain", "has a name that this project uses"),
    ],
)
def test_package_adds_a_plugin_or_a_clear_error(tmp_path, monkeypatch, name, target, told):
    (tmp_path / "plain_loss.py").write_text(PLAIN)
    declare(monkeypatch, tmp_path, name, target, LOSSES.group)
    with pytest.raises(ConfigError, match=told) if told else nullcontext():
        config = Config.with_overrides({"learner.loss": name})
        assert LOSSES.load(config.learner.loss).__name__ == "Plain"


OF_TIS = {"correction": "tis", "correction_options": 5}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"monitor": {"loggers_options": {"wandb": {}}}}, "monitor.loggers_options"),
        ({"learner": 3}, "learner"),
        ({"mixture": OF_TIS}, "mixture.correction_options"),
    ],
)
def test_config_error_names_an_invalid_table(table, key):
    with pytest.raises(ConfigError) as caught:
        build(table)
    assert caught.value.key == key
