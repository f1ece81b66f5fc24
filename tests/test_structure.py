"""Structure of the code: imports follow experiments -> node -> swarm ->
protocol, and the last two load no heavy libraries."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from install.environment import requirements
from tests.layers import PAGE, cycles, module_imports, package_imports, written
from tests.parsing import parse, reached
from tests.tiers import QUICK, SLOW, TESTS, needless

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {"protocol": 0, "swarm": 1, "node": 2, "experiments": 3}
LAZY = {"bitsandbytes", "hivemind", "libp2p", "peft", "vllm", "zeroconf"}
OPTIONAL = {
    *("bitsandbytes", "gymnasium", "peft", "tensorboard", "textarena", "trackio", "trl"),
    *("verifiers", "vllm", "wandb"),
}
PRIVATES = ROOT / "tests" / "library_privates.py"
WHEEL = ("protocol", "swarm", "node")
# A new feature may raise a limit by at most 5%; the commit must give the reason.
MOST_FILES = 247
MOST_LINES = 54_832
LONGEST_FILE = 450
SHORT_FILE = 60
MOST_TEST_LINES = 58_200
MOST_WORDS = 2_000
SHORT = {
    "swarm/common/clock.py": "a protocol and its one implementation, named all over the package",
    "node/cli/main.py": "imports nothing, so that Ctrl-C is handled while the program loads",
    "node/errors.py": "the errors that a user sees, which every package raises",
    "node/lifecycle.py": "a base class that several packages share",
    "swarm/transport/hivemind/transport.py": "loads hivemind without torch",
}
"""Files with fewer lines than ``SHORT_FILE``, and the reasons."""
HEAVY = {"torch", "transformers", "vllm", "hivemind", "numpy"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def dotted(paths: Iterable[Path]) -> list[str]:
    named = (path.relative_to(ROOT).with_suffix("") for path in paths)
    return [".".join(path.parts) for path in named if path.name != "__init__"]


def ran(code: str) -> str:
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@cache
def parsed(path: Path) -> ast.Module:
    return parse(path.read_text(encoding="utf-8"))


@cache
def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            names |= {alias.name.split(".")[0] for alias in item.names}
        elif isinstance(item, ast.ImportFrom) and item.level == 0 and item.module:
            names.add(item.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", LAYERS)
def test_imports_follow_the_layers(package: str) -> None:
    for path in modules(package):
        above = {name for name in imported(parsed(path)) if LAYERS.get(name, -1) > LAYERS[package]}
        assert not above, f"{path.relative_to(ROOT)} imports {above}"


@pytest.mark.parametrize("library", sorted(LAZY))
def test_one_file_wraps_each_lazy_library(library: str) -> None:
    wrappers = {
        path.relative_to(ROOT).as_posix()
        for package in LAYERS
        for path in modules(package)
        if library in imported(parsed(path))
    }
    assert len(wrappers) <= 1, f"{library} is imported by {wrappers}"


@pytest.mark.parametrize("package", ["protocol", "swarm"])
def test_lower_layers_load_without_heavy_libraries(package: str) -> None:
    names = dotted(modules(package))
    code = f"import sys\nfor n in {names!r}: __import__(n)\nprint(*sys.modules, sep='\\n')"
    assert not {line.split(".")[0] for line in ran(code).split()} & HEAVY


def test_modules_without_optional_imports_need_no_extras() -> None:
    """``make demo`` installs no extras, so a node's imports must not need them."""
    paths = (path for package in WHEEL for path in modules(package))
    names = dotted(path for path in paths if not OPTIONAL & imported_on_load(path))
    ran(
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(OPTIONAL)!r}))\n"
        f"for name in {names!r}: importlib.import_module(name)"
    )


def imported_on_load(path: Path) -> set[str]:
    body = parsed(path).body
    statements = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
    return imported(ast.Module(statements, []))


def test_command_line_imports_no_torch() -> None:
    code = "import sys, node.cli.main; print('torch' in sys.modules)"
    assert ran(code).strip() == "False"


def taken_over(path: Path) -> list[tuple[str, str]]:
    return [
        (item.module, alias.name)
        for item in ast.walk(parsed(path))
        if isinstance(item, ast.ImportFrom) and item.module and item.level == 0
        for alias in item.names
        if item.module.split(".")[0] in LAYERS
    ]


def is_there(module: str, name: str) -> bool:
    known = hasattr(importlib.import_module(module), name)
    return known or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_benchmarks_and_examples_import_existing_names(folder: str) -> None:
    for path in modules(folder):
        missing = [each for each in taken_over(path) if not is_there(*each)]
        assert missing == [], path
        # ``import node.x`` would hide which names are used.
        imports = [item for item in ast.walk(parsed(path)) if isinstance(item, ast.Import)]
        names = {alias.name.split(".")[0] for item in imports for alias in item.names}
        assert not names & LAYERS.keys(), path


@pytest.mark.parametrize("graph", [package_imports, module_imports])
def test_import_graph_has_no_cycles(graph) -> None:
    assert cycles(graph()) == []


def test_contributor_page_matches_imports_and_stays_short() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run: python -m tests.layers"
    assert len(page.split()) <= MOST_WORDS


def wheel() -> dict[str, str]:
    paths = (path for package in WHEEL for path in modules(package))
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}


def test_wheel_and_tests_stay_within_size_limits() -> None:
    files = wheel()
    assert len(files) <= MOST_FILES
    assert sum(text.count("\n") for text in files.values()) <= MOST_LINES
    tests = (path.read_text(encoding="utf-8") for path in modules("tests"))
    assert sum(text.count("\n") for text in tests) <= MOST_TEST_LINES
    outside = {path.stem for path in (ROOT / "node").glob("*.py")}
    assert outside == {"__init__", "errors", "lifecycle", "threads"}


def test_file_lengths_stay_within_limits() -> None:
    lengths = {
        name: text.count("\n") for name, text in wheel().items() if not name.endswith("__init__.py")
    }
    assert [name for name, lines in lengths.items() if lines > LONGEST_FILE] == []
    short = {name for name, lines in lengths.items() if lines < SHORT_FILE}
    assert short == SHORT.keys()


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for path in (path for package in WHEEL for path in modules(package)):
        for item in parsed(path).body:
            if isinstance(item, ast.ClassDef) and not item.name.startswith("_"):
                places.setdefault(item.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_only_one_test_file_uses_private_library_names() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} reaches for {name}"
        for folder in ("tests", "benchmarks", "examples")
        for path in modules(folder)
        if path != PRIVATES
        for line, name in reached(path.read_text(encoding="utf-8"))
    ]
    assert found == []
    assert not LAYERS.keys() & imported(parsed(PRIVATES))


@pytest.mark.parametrize(
    "line",
    [
        *("x._y", "self._y", "x._y = 1", "from x import _y", "from x._y import z", "import x._y"),
        *("getattr(x, '_y')", "monkeypatch.setattr(x, '_y', 1)", "mock.patch('x._y')"),
        "monkeypatch.setattr(target=x, name='_y')",
    ],
)
def test_checker_finds_every_access_to_a_private_name(line: str) -> None:
    ((number, name),) = reached(f"class X:\n    def f(self) -> None: self._z = 0\n{line}")
    assert number == 3 and name.endswith(("_y", "_y.z"))


@pytest.mark.parametrize("line", ["self._z", "x.__doc__", "os._exit(0)", "print('_y')"])
def test_checker_ignores_own_and_documented_names(line: str) -> None:
    assert reached(f"class X:\n    def f(self) -> None: self._z = 0\n{line}") == []


def test_tier_entry_names_a_folder_file_or_one_test_prefix() -> None:
    for entry in (*QUICK, *SLOW):
        path, _, name = entry.partition("::")
        assert (TESTS / path).exists(), entry
        if name:
            matches = re.findall(
                rf"^(?:(?:async )?def )?{name}\w*(?: =|\()", (TESTS / path).read_text(), re.M
            )
            assert len(matches) == 1, entry


def test_only_the_fast_tier_skips_slow_test_files() -> None:
    slow = TESTS / "node/environments/test_textarena.py"
    assert needless(slow, "not vllm and not slow")
    assert needless(TESTS / "experiments/scale", "not slow")
    assert not needless(slow, "not vllm and slow")
    assert not needless(slow, "not vllm")
    assert not needless(TESTS / "node/environments/test_gymnasium.py", "not slow")


EXTRAS = ("test", "dev", "docs")
"""Extras of the test environment."""


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def required() -> list[Requirement]:
    """Return all requirements of the program and of EXTRAS; resolve nested extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, found = project["optional-dependencies"], list[Requirement]()
    waiting = [*requirements(), *(line for name in EXTRAS for line in extras[name])]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == project["name"]:
            waiting += [line for name in requirement.extras for line in extras[name]]
        elif not requirement.marker or requirement.marker.evaluate():
            found.append(requirement)
    return found


def test_pinned_versions_satisfy_every_requirement() -> None:
    versions = pinned()
    wrong = [
        str(each)
        for each in required()
        if versions.get(canonicalize_name(each.name), "") not in each.specifier
    ]
    assert wrong == []
