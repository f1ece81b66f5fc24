"""``make bench-gpu`` on a CPU, and the list of GPU-specific code."""

import ast
import json
import multiprocessing
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parsing import parse

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "benchmarks" / "gpu.py"
PAGE = (ROOT / "docs" / "gpu_code.md").read_text(encoding="utf-8")
CALLS = {
    *("cuda", "mps", "is_cuda", "is_mps", "empty_cache", "pin_memory", "non_blocking"),
    *("synchronize", "device_count"),
}
DEVICES = re.compile(r"(\^\(auto\|.*)?(cuda|mps|nccl)\b|cpu:gloo,")


def launch(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *options], capture_output=True, text=True, timeout=280
    )


def is_branch(node: ast.AST) -> bool:
    """Return whether code is specific to a device or asks for the device."""
    if isinstance(node, ast.Attribute):
        return node.attr in CALLS
    if isinstance(node, ast.keyword):
        return node.arg in CALLS
    if isinstance(node, ast.Compare):
        return any(isinstance(x, ast.Constant) and x.value == "cpu" for x in node.comparators)
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and bool(DEVICES.match(text))


def branches(path: Path) -> set[tuple[str, str]]:
    found = set()

    def walk(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if is_branch(child):
                found.add((path.relative_to(ROOT).as_posix(), ".".join(names)))
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            walk(child, (*names, child.name) if named else names)

    walk(parse(path.read_text(encoding="utf-8")), ())
    return found


def listed() -> list[tuple[str, str, str]]:
    """Return file, name and section of every row of the table."""
    table = PAGE.partition("<!-- devices -->")[2].partition("<!-- end of devices -->")[0]
    return re.findall(r"^\| `(node/\S+)` `(\S+)` \|[^|]*\| (`\S+`|none: [^|]+) \|", table, re.M)


def test_page_lists_every_gpu_specific_function() -> None:
    places = {place for path in (ROOT / "node").rglob("*.py") for place in branches(path)}
    assert {(path, name) for path, name, _ in listed()} == places


def test_page_names_only_sections_of_the_benchmark() -> None:
    names = set(launch("--list").stdout.split())
    listing = {section.strip("`") for _, _, section in listed() if section.startswith("`")}
    assert len(names) > 10
    assert listing <= names


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_benchmark_reports_missing_gpu() -> None:
    done = launch()
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "sees no GPU" in line and "--device cpu --smoke" in line


def figures(sections: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    (section,) = (each for each in sections if each["name"] == name)
    return section["rows"]


def test_smoke_benchmark_runs_every_section_on_cpu(tmp_path: Path) -> None:
    done = launch("--device", "cpu", "--smoke", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    sections = json.loads(path.read_text(encoding="utf-8"))["sections"]
    states = {each["name"]: each["state"] for each in sections}
    assert states.pop("vllm") in ("skipped", "done")
    assert set(states.values()) == {"done"}, done.stdout
    rows = [row for each in sections for row in each["rows"]]
    assert not [row for row in rows if "failed" in row]
    assert f"| {rows[0]['what']} |" in done.stdout
    (right,) = figures(sections, "correctness")
    assert right["greedy_tokens_equal"] == 1.0
    assert right["log_prob_gap_nat"] < 1e-4
    for name in ("engine", "learner", "lora", "long", "process"):
        assert figures(sections, name)[0]["tokens_per_s"] > 0, name
    assert figures(sections, "step")[0]["efficiency"] > 0
    assert figures(sections, "trl")[0]["step_s"] > 0
    assert figures(sections, "swarm")[0]["rounds"] == 2


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from on_gpu import running

    return running


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_failed_slow_or_unavailable_section_is_reported(running: Any) -> None:
    from on_gpu.section import Section, Settings
    from on_gpu.sections import SECTIONS

    context = multiprocessing.get_context("fork")
    wrong = running.run_section(context, SECTIONS["machine"], Settings("nowhere", True), 60.0)
    assert wrong.state == "failed"
    assert "nowhere" in wrong.why
    slow = running.run_section(context, SECTIONS["machine"], Settings("cpu", True), 0.0)
    assert slow.state == "out of time"
    needs = Section("any", "Any", 1.0, lambda settings: iter(()), packages=("a_package_nowhere",))
    missing = running.run_section(context, needs, Settings("cpu", True), 60.0)
    assert (missing.state, missing.why) == ("skipped", "not installed: a_package_nowhere")
