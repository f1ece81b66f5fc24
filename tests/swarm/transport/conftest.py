"""Run tests marked ``alone`` in their own process; libp2p and hivemind do not mix.

All such tests of a file run there, beside its other tests, and are reported here by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).resolve().parents[3]
INNER = "SWARM_NODE_TEST_ALONE"
"""Environment variable with the file to which the inner process reports."""
SECONDS = 1200
PYTEST = "pytest -q -p no:cacheprovider -m alone"


@dataclass
class Alone:
    process: subprocess.Popen[bytes]
    folder: TemporaryDirectory[str]
    failed: dict[str, str] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    output: str = ""

    @classmethod
    def begin(cls, items: list[pytest.Item]) -> Alone:
        folder = TemporaryDirectory()
        (Path(folder.name) / "reports").touch()
        names = [f"{item.path}::{name_of(item.nodeid)}" for item in items]
        with (Path(folder.name) / "output").open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    *["pytest", "-q", "-p", "no:cacheprovider", "-m", "alone"],
                    *names,
                ],
                env={**os.environ, INNER: str(Path(folder.name) / "reports")},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return cls(process, folder)

    def wait(self) -> None:
        if self.output:
            return
        try:
            self.process.wait(SECONDS)
        finally:
            self.end()
            folder = Path(self.folder.name)
            self.output = (folder / "output").read_text(errors="replace") or "no output"
            for line in (folder / "reports").read_text().splitlines():
                name, when, outcome, reason = json.loads(line)
                if outcome != "passed":
                    self.failed[name] = reason
                elif when == "call":
                    self.passed.add(name)
            self.folder.cleanup()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


BEGUN: dict[Path, Alone] = {}


def name_of(node: str) -> str:
    return node.partition("::")[2]


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the marked tests of a file last: they run while the others do."""
    positions: dict[Path, int] = {}
    for position, item in enumerate(items):
        positions.setdefault(item.path, position)
    items.sort(key=lambda item: (positions[item.path], is_alone(item)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("alone"):
        for package in mark.args:
            if find_spec(package) is None:
                pytest.skip(f"{package} is not installed: pip install 'swarm-node[{package}]'")
    if INNER in os.environ or item.path in BEGUN:
        return
    here = [other for other in item.session.items if other.path == item.path and is_alone(other)]
    packages = {package for other in here for package in other.get_closest_marker("alone").args}
    if here and all(map(find_spec, packages)):
        BEGUN[item.path] = Alone.begin(here)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not is_alone(pyfuncitem) or INNER in os.environ:
        return None
    alone, name = BEGUN[pyfuncitem.path], name_of(pyfuncitem.nodeid)
    alone.wait()
    assert name not in alone.failed, alone.failed[name]
    assert name in alone.passed, alone.output
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if INNER in os.environ:
        entry = [name_of(report.nodeid), report.when, report.outcome, report.longreprtext]
        with Path(os.environ[INNER]).open("a") as reports:
            reports.write(json.dumps(entry) + "\n")


def pytest_sessionfinish() -> None:
    for alone in BEGUN.values():
        alone.end()
