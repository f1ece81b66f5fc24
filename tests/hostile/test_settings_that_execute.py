"""Code in the manifest or in the answers of mallory never runs."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.errors import TaskSetError
from node.tasks.settings import Truth, check_settings, schema
from node.tasks.sources.jsonl import file_digest
from node.tasks.sources.plugins import open_plugin
from node.tasks.sources.reasoning_gym import EVALUATING, ReasoningGym, import_library
from node.tasks.task_set import Allowed, level_settings, open_envs
from protocol.manifest import EnvSpec, canonical_json
from tests.hostile.payload_probe import CALLS, MARK, texts
from tests.node.packages import declare

LIBRARY = import_library().DATASETS
FAMILIES = sorted(LIBRARY)
INVALID = (
    *(*CALLS, *([call] for call in CALLS), [[CALLS[0]]], {CALLS[0]: CALLS[0]}),
    *("/etc/passwd", "../../key", "", None, 10**400, -(10**400), math.nan, math.inf),
    *([math.nan], [10**400], [[1, 2]], [1] * 65, ["+"] * 65),
)
LAYERS = ("protocol", "swarm", "node")
WATCHED = ("compile", "exec", "open", "import", "os.", "socket.", "subprocess.", "ctypes.")
watching: list[list[str]] = []


def hook(event: str, args: tuple) -> None:
    if watching and event.startswith(WATCHED):
        watching[-1].append(event)


sys.addaudithook(hook)


@contextmanager
def watched():
    watching.append([])
    try:
        yield watching[-1]
    finally:
        watching.pop()


def spec_of(family: str, level: str = "{}") -> EnvSpec:
    return EnvSpec(family, "reasoning-gym", "0.1.25", (level,), "{question}", "text")


def fields(family: str) -> list[str]:
    return [field.name for field in dataclasses.fields(LIBRARY[family][1])]


@pytest.mark.parametrize("family", FAMILIES)
def test_library_fields_reject_malicious_values(family):
    kinds = schema(family, LIBRARY[family][1])
    for name in [*fields(family), "no_such_field", CALLS[0]]:
        for value in INVALID:
            with watched() as events, pytest.raises(TaskSetError) as refusal:
                check_settings(family, 3, {name: value}, kinds)
            assert events == []
            message = str(refusal.value)
            assert f"env {family!r} level 3: setting" in message
            assert name[:8] in message
            assert len(message) < 2000 and "\n" not in message


@pytest.mark.parametrize("family", FAMILIES)
def test_level_is_validated_before_the_library_call(family, monkeypatch):
    monkeypatch.setattr(import_library(), "create_dataset", None)  # A call would fail.
    for name in fields(family):
        spec = spec_of(family, canonical_json({name: CALLS[0]}))
        with pytest.raises(TaskSetError, match=f"env '{family}' level 0: setting '{name}'"):
            ReasoningGym.open(spec, level_settings(spec))
    assert MARK not in os.environ


@pytest.mark.parametrize("family", FAMILIES)
def test_library_defaults_are_valid_settings(family):
    config = LIBRARY[family][1]
    kinds = schema(family, config)
    defaults = {name: getattr(config(), name) for name in kinds}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in defaults.items()}
    check_settings(family, 0, plain, kinds)
    assert not {"seed", "size", "data_file"} & kinds.keys(), "a level must not set a file or a seed"


def test_partial_credit_accepts_only_booleans():
    with pytest.raises(TaskSetError, match="'partial_credit' = 'yes': use true or false"):
        ReasoningGym.open(spec_of("gcd"), [{"partial_credit": "yes"}])
    assert Truth().wants(1) is not None


@pytest.mark.parametrize("family", sorted(EVALUATING))
def test_evaluating_family_opens_only_if_allowed_by_name(family):
    spec = spec_of(family)
    assert open_envs([spec], Allowed())[0] == {}
    assert open_envs([spec], Allowed(code_execution=["another"]))[0] == {}
    if family != "composite":
        assert set(open_envs([spec], Allowed(code_execution=[family]))[0]) == {family}


@pytest.mark.parametrize(
    "settings",
    [
        {"__import__('os')": 1},
        {"a": {"b": 1}},
        {"a": None},
        {"a": 10**400},
        {"a": math.nan},
        {"a": "x" * 257},
        {"a": [1] * 257},
        {"a": [[[[[1]]]]]},
    ],
)
def test_package_receives_only_bounded_plain_values(tmp_path, monkeypatch, settings):
    declare(monkeypatch, tmp_path, "keeps", "tests.hostile.deeds:Deeds")
    spec = EnvSpec("keeps", "plugin", "1", ("{}",), "{question}", "text")
    assert open_plugin(spec, [{"a": 1, "b": [1.5, "x", True]}]) is not None
    with pytest.raises(TaskSetError, match="env 'keeps' level 0: setting"):
        open_plugin(spec, [settings])


def test_source_never_evaluates_manifest_text():
    """Check that no layer evaluates text or fills templates by attribute access."""
    root = Path(__file__).resolve().parents[2]
    for path in (p for layer in LAYERS for p in (root / layer).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for word in (" eval(", " exec(", "parse_expr(", "sympify(", ".format_map(", "pickle."):
            assert word not in text, f"{path} contains {word}"
        assert "template.format" not in text, path


def test_evaluating_list_matches_families_that_execute_answers(tmp_path):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("payload_probe.py"))],
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
        timeout=850,
    )
    results = json.loads(done.stdout.splitlines()[-1])
    assert len(results) == 105, "the probe tries all families of the library"
    executing = {family for family, executes in results.items() if executes}
    assert executing == EVALUATING - {"composite"}, "composite consists of other families"


@pytest.mark.parametrize("match", ["exact", "numeric"])
def test_jsonl_source_executes_no_answer(tmp_path, monkeypatch, match):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "1/2?", "answer": "0.5"}))
    level = json.dumps({"match": match}, separators=(",", ":"))
    spec = EnvSpec("halves", "jsonl", file_digest(path), (level,), "{question}", "text")
    source = open_envs([spec], Allowed({"halves": path}))[0]["halves"]
    entry = source.questions.draw(0, 0)
    for text in texts("0.5"):
        source.questions.score(entry, text)
        assert MARK not in os.environ
        assert not Path(MARK).exists()
