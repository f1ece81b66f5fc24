"""What a swarm is founded on can be opened by those who join it."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.storage.run_folder import RunFolder
from tests.node.conftest import Terminal

FOUND = ("create", "--config", "node", "--name", "sums")
SUM = '{"prompt": "1 + 1 =", "answer": "2"}\n'
KEYS = 'template = "{question}"\nextract = "text"\n[[env]]\n'


def gym(name: str = "gcd", level: str = "max_value = 9") -> str:
    """A catalogue of one family of the library."""
    head = 'source = "reasoning-gym"\nversion = "0.1.25"\n'
    return f'{head}{KEYS}name = "{name}"\nlevels = [{{ {level} }}]\n'


def sums(level: str = 'match = "numeric"') -> str:
    """A catalogue of one file, which lies beside it."""
    env = 'name = "sums"\nfile = "sums.jsonl"\n'
    return f'source = "jsonl"\n{KEYS}{env}levels = [{{ {level} }}]\n'


def written(catalogue: str, lines: str = SUM) -> tuple[str, ...]:
    Path("own.toml").write_text(catalogue)
    Path("sums.jsonl").write_text(lines)
    return (*FOUND, "--catalogue", "own.toml")


@pytest.mark.parametrize(
    ("catalogue", "lines", "complaint"),
    [
        (gym("gdc"), SUM, "env 'gdc' is no family of reasoning-gym"),
        (gym(level="max_valeu = 9"), SUM, "max_valeu"),
        (sums('match = "nope"'), SUM, "not {'match': 'nope'}"),
        (sums('macth = "numeric"'), SUM, "not {'macth': 'numeric'}"),
        (sums(), "1 + 1 = 2\n", "sums.jsonl line 1 is no JSON"),
        (sums(), "", "holds no line"),
        (sums(), '{"prompt": "1 + 1 =", "answer": 2}\n', "prompt and answer are strings"),
    ],
)
def test_a_catalogue_that_no_node_can_open_is_refused_and_nothing_written(
    terminal: Terminal, node: RunFolder, catalogue: str, lines: str, complaint: str
) -> None:
    assert terminal(*written(catalogue, lines)) == 2
    assert terminal.err.startswith("error: --catalogue: own.toml (")
    assert complaint in terminal.err and len(terminal.err.splitlines()) == 1
    assert not node.manifest.exists()


@pytest.mark.parametrize("catalogue", [gym(), sums()])
def test_a_catalogue_that_opens_is_signed(terminal, node, catalogue):
    assert terminal(*written(catalogue)) == 0, terminal.err
    assert node.manifest.exists()
    assert "not tried" not in terminal.out


def test_a_family_that_this_machine_may_not_open_is_named_with_the_reason(terminal, node):
    evaluating = gym("binary_matrix", "min_n = 3")
    assert terminal(*written(evaluating)) == 0, terminal.err
    assert "not tried: env 'binary_matrix' evaluates the text of answers" in terminal.out
    plugin = gym("nowhere", "").replace('"reasoning-gym"', '"plugin"')
    assert terminal(*written(plugin), "--out", "other.swarm") == 0, terminal.err
    assert "not tried: env 'nowhere' is not served here: install the package" in terminal.out


def test_a_manifest_that_is_there_is_told_before_anything_is_tried(terminal, node):
    node.manifest.write_bytes(b"mine")
    assert terminal(*FOUND, "--catalogue", "nowhere.toml") == 1
    remedy = "Name a new file with --out, or move this one away if no swarm runs on it yet."
    told = f"cannot write the manifest (File exists): {node.manifest}"
    assert terminal.err == f"error: {told}. {remedy}\n"
    assert node.manifest.read_bytes() == b"mine"
