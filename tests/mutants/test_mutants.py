"""The mutant checker accepts valid mutants and rejects all others."""

import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, main
from tests.mutants.mutant import THREATS, BadMutant, faults, read, threats, unmatched

CODE = """def admit(size: int) -> bool:
    if size > 4:
        return False
    return size != 3
"""
TESTS = """from gate import admit
import pytest

def test_large_ones_stay_out():
    assert not admit(5)

def test_small_ones_come_in():
    assert admit(1)

@pytest.mark.skip
def test_that_no_machine_runs():
    assert not admit(5)

@pytest.fixture
def broken():
    assert not admit(5)

def test_whose_preparation_breaks(broken):
    pass

def test_that_waits():
    import time
    if admit(5):
        time.sleep(600)
"""
LARGE = '''
[[mutant]]
threat = "large-ones"
defence = "sizes over four are refused"
file = "gate.py"
find = """size > 4"""
replace = """size > 9"""
tests = ["tests/test_gate.py::{test}"]
'''
DOCUMENT = "| threat | what stops it |\n|---|---|\n| `large-ones` | a limit |\n"


@pytest.fixture
def tree(tmp_path) -> Path:
    """Create a tree with code, its tests and one mutant that the tests kill."""
    files = {
        "gate.py": CODE,
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
        "tests/test_gate.py": TESTS,
        "tests/mutants/gate.toml": LARGE.format(test="test_large_ones_stay_out"),
        "docs/security.md": DOCUMENT,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


def attempt(tree: Path, capsys, *options: str) -> tuple[int, str]:
    code = main(["--jobs", "1", *options], tree)
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def test_failing_test_kills_the_mutant(tree, capsys):
    code, shown = attempt(tree, capsys)
    assert code == 0
    assert "1 of 1 mutants killed" in shown
    assert (tree / "gate.py").read_text() == CODE


@pytest.mark.parametrize(
    ("test", "seconds", "code", "verdict"),
    [
        ("test_small_ones_come_in", "60", CODE, "SURVIVED"),
        ("test_that_no_machine_runs", "60", CODE, "must pass before"),
        ("test_whose_preparation_breaks", "60", CODE, "no test ran to its end"),
        ("test_that_waits", "25", CODE, "out of time"),
        ("test_small_ones_come_in", "60", CODE.replace("!= 3", "!= 1"), "must pass before"),
    ],
    ids=["survives", "skipped", "broken", "waits", "fails anyway"],
)
def test_any_other_mutant_outcome_is_a_failure(tree, capsys, test, seconds, code, verdict):
    (tree / "gate.py").write_text(code)
    (tree / "tests/mutants/gate.toml").write_text(LARGE.format(test=test))
    status, shown = attempt(tree, capsys, "--seconds", seconds)
    assert status == 1
    assert verdict in shown


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (("size > 4", "size"), "occurs 3 times"),
        (("size > 4", "sizes > 4"), "occurs 0 times"),
        (("size > 9", "size >"), "no Python any more"),
        (("size > 9", "size > 4"), "the same text"),
        (("gate.py", "wall.py"), "no file wall.py"),
        (("gate.py", "../gate.py"), "no file ../gate.py"),
        (("::test_large", "::test_huge"), "no test tests/test_gate.py::test_huge"),
        (('"large-ones"', '"Large Ones"'), "not a slug"),
        (("defence", "defense"), "keys"),
        (('["', '[3, "'), "3 is not a text"),
        (("[[mutant]]", "[mutant"), "gate.toml"),
    ],
)
def test_checker_reports_an_invalid_mutant_entry(tree, capsys, bad, fault):
    text = LARGE.format(test="test_large_ones_stay_out").replace(*bad)
    (tree / "tests/mutants/gate.toml").write_text(text)
    code, shown = attempt(tree, capsys)
    assert code == 1
    assert fault in shown
    assert "killed" not in shown


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (DOCUMENT + "| `small-ones` | nothing |\n", "small-ones of docs/security.md has no mutant"),
        (DOCUMENT.replace("large", "huge"), "large-ones has mutants but no row"),
        ("# Security\n", "no table of threats"),
        (None, "there is no docs/security.md"),
    ],
)
def test_checker_compares_threat_table_with_mutants(tree, capsys, document, fault):
    path = tree / "docs/security.md"
    path.unlink() if document is None else path.write_text(document)
    code, shown = attempt(tree, capsys)
    assert code == 1
    assert fault in shown
    assert attempt(tree, capsys, "--only", "large-ones")[0] == 0, "--only ignores other threats"


def test_repository_mutants_are_valid_and_cover_all_threats():
    try:
        mutants = read(ROOT / "tests/mutants")
    except BadMutant as error:
        pytest.fail(str(error))
    assert mutants
    assert [f"{m.source}: {fault}" for m in mutants for fault in faults(m, ROOT)] == []
    assert list(unmatched(threats(ROOT / THREATS), mutants)) == []
