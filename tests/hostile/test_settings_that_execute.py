"""Mallory creates a swarm whose manifest carries code, or answers with code: none of it runs."""

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
NEVER = (
    *(*CALLS, *([call] for call in CALLS), [[CALLS[0]]], {CALLS[0]: CALLS[0]}),
    *("/etc/passwd", "../../key", "", None, 10**400, -(10**400), math.nan, math.inf),
    *([math.nan], [10**400], [[1, 2]], [1] * 65, ["+"] * 65),
)
FLOORS = ("protocol", "swarm", "node")
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
def test_no_field_of_the_library_takes_what_mallory_writes(family):
    kinds = schema(family, LIBRARY[family][1])
    for name in [*fields(family), "no_such_field", CALLS[0]]:
        for value in NEVER:
            with watched() as events, pytest.raises(TaskSetError) as refusal:
                check_settings(family, 3, {name: value}, kinds)
            assert events == []
            message = str(refusal.value)
            assert f"env {family!r} level 3: setting" in message
            assert name[:8] in message
            assert len(message) < 2000 and "\n" not in message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_level_is_checked_before_the_library_hears_of_it(family, monkeypatch):
    monkeypatch.setattr(import_library(), "create_dataset", None)  # whoever asks it fails
    for name in fields(family):
        spec = spec_of(family, canonical_json({name: CALLS[0]}))
        with pytest.raises(TaskSetError, match=f"env '{family}' level 0: setting '{name}'"):
            ReasoningGym.open(spec, level_settings(spec))
    assert MARK not in os.environ


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_library_sets_itself_may_be_set(family):
    config = LIBRARY[family][1]
    kinds = schema(family, config)
    defaults = {name: getattr(config(), name) for name in kinds}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in defaults.items()}
    check_settings(family, 0, plain, kinds)
    assert not {"seed", "size", "data_file"} & kinds.keys(), "they name a file or another seed"


def test_the_own_key_of_a_level_takes_truth_alone():
    with pytest.raises(TaskSetError, match="'partial_credit' = 'yes': use true or false"):
        ReasoningGym.open(spec_of("gcd"), [{"partial_credit": "yes"}])
    assert Truth().wants(1) is not None


@pytest.mark.parametrize("family", sorted(EVALUATING))
def test_a_family_that_evaluates_is_opened_by_its_name_alone(family):
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
def test_a_package_is_handed_plain_bounded_values_alone(tmp_path, monkeypatch, settings):
    declare(monkeypatch, tmp_path, "keeps", "tests.hostile.deeds:Deeds")
    spec = EnvSpec("keeps", "plugin", "1", ("{}",), "{question}", "text")
    assert open_plugin(spec, [{"a": 1, "b": [1.5, "x", True]}]) is not None
    with pytest.raises(TaskSetError, match="env 'keeps' level 0: setting"):
        open_plugin(spec, [settings])


def test_text_of_a_manifest_is_evaluated_nowhere():
    """What evaluates text or fills templates by attribute is in no file that meets a manifest."""
    root = Path(__file__).resolve().parents[2]
    for path in (p for floor in FLOORS for p in (root / floor).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for word in (" eval(", " exec(", "parse_expr(", "sympify(", ".format_map(", "pickle."):
            assert word not in text, f"{path}: {word}"
        assert "template.format" not in text, path


def test_every_family_of_the_library_that_executes_an_answer_is_listed_and_no_other(tmp_path):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("payload_probe.py"))],
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
        timeout=850,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 105, "the whole library is tried"
    executing = {family for family, executes in found.items() if executes}
    assert executing == EVALUATING - {"composite"}, "which is made of the others"


@pytest.mark.parametrize("match", ["exact", "numeric"])
def test_a_file_of_questions_executes_no_answer(tmp_path, monkeypatch, match):
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
