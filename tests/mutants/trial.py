"""Try mutants: copy the tree, remove a defence, and run the tests that must fail."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutants.mutant import Mutant, mutated

_PASSED, _FAILED = 0, 1
_TAIL = 4000


class Outcome(StrEnum):
    GREEN = "green"
    RED = "red"
    SKIPPED = "skipped"
    BROKEN = "broken"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Result:
    outcome: Outcome
    seconds: float
    output: str


def copy_tree(root: Path, copy: Path) -> None:
    """Copy the files that git tracks or would track, without environments and caches.

    The copy has no bytecode, because a mutant may have its original's size and modification time.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, check=True)
    for name in listing.stdout.decode().split("\0"):
        if name and (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)


@contextmanager
def applied(mutant: Mutant, tree: Path) -> Iterator[None]:
    path = tree / mutant.file
    original = path.read_text(encoding="utf-8")
    path.write_text(mutated(original, mutant), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(original, encoding="utf-8")


def run_tests(tree: Path, tests: Iterable[str], seconds: float, *options: str) -> Result:
    """Run pytest in a tree for at most ``seconds``, with all processes that it starts."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        report = Path(scratch, "report.xml")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]
        command += [f"--junitxml={report}", f"--basetemp={scratch}/tmp", *options, *tests]
        started = time.monotonic()
        code, output = _run(command, tree, seconds)
        took = time.monotonic() - started
        return Result(_outcome(code, report), took, output[-_TAIL:])


def _run(command: list[str], tree: Path, seconds: float) -> tuple[int | None, str]:
    ours = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=tree,
        env={**os.environ, **ours},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, output


def _outcome(code: int | None, report: Path) -> Outcome:
    """Return RED only if a test failed; collection or setup errors do not count."""
    if code is None:
        return Outcome.TIMEOUT
    if code not in (_PASSED, _FAILED) or not report.is_file():
        return Outcome.BROKEN
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, skipped, failed, errors = (
        int(suite.get(name, "0")) for name in ("tests", "skipped", "failures", "errors")
    )
    if failed:
        return Outcome.RED
    if errors:
        return Outcome.BROKEN
    return Outcome.SKIPPED if total == skipped else Outcome.GREEN
