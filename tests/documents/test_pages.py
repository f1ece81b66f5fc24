"""Commands in the documents are valid; ``make test-docs`` also runs them."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer import Typer
from typer.main import get_command

from experiments.commands import app as experiments
from node.cli.program import COMMANDS, app
from node.config.config import Config
from tests.documents.claims import LEFT_OUT, TWICE, reason, remaining
from tests.documents.environment import build
from tests.documents.page import (
    EXPERIMENTS,
    PAGES,
    PROGRAM,
    ROOT,
    arguments,
    beginnings,
    blocks,
    commands,
    name,
    unset,
)
from tests.documents.walk import Walk, kind
from tests.parsing import parse

PAGE = """# One

Text.

```sh
first \\
    --option  # why
```

The task set `sums.toml`:

```toml
a = 1
```

## Two

1. In `/etc/node.toml`:

   ```toml
   b = 2
   ```
"""


def scripts(page: Path) -> list[str]:
    return [block.text for block in blocks(page.read_text()) if block.language == "sh"]


def lines(page: Path) -> list[str]:
    return [line for script in scripts(page) for line in commands(script)]


def typed(page: Path, program: re.Pattern[str] = PROGRAM) -> list[str]:
    return [words for line in lines(page) if (words := arguments(line, program))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_blocks_have_a_language(page: Path) -> None:
    known = {"sh", "text", "python", "toml", "json"}
    found = blocks(page.read_text())
    assert [block.line for block in found if block.language not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_shell_blocks_set_their_variables_and_parse(page):
    assert [unset(script) for script in scripts(page) if unset(script)] == []
    for line in typed(page):
        read(app, "swarm-node", line)


def test_documents_and_experiment_commands_match() -> None:
    shown = [words for page in PAGES for words in typed(page, EXPERIMENTS)]
    for words in shown:
        read(experiments, "python -m experiments", words)
    named = set(get_command(experiments).commands)
    assert {words.split()[0] for words in shown} >= named - {"hostile"}


def read(program: Typer, called: str, line: str) -> None:
    command, words = get_command(program), shlex.split(line)
    context = command.make_context(called, [*words])
    while hasattr(command, "resolve_command"):
        called, command, words = command.resolve_command(context, words)
        context = command.make_context(called, [*words], parent=context)


def test_documents_show_every_command() -> None:
    shown = {line.split()[0] for page in PAGES for line in typed(page)}
    assert {called for group in COMMANDS.values() for called, *_ in group} <= shown, (
        "every command occurs in a document"
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_only_last_command_of_block_runs_forever(page: Path) -> None:
    for script in scripts(page):
        *others, _ = commands(remaining(name(page), script)) or [""]
        assert [line for line in others if kind(line)] == []


def test_every_skipped_command_occurs_on_its_page() -> None:
    shown = {name(page): lines(page) for page in PAGES}
    for page, starts in LEFT_OUT.items():
        for begin in starts:
            assert any(line.startswith(begin) for line in shown[page]), f"{page}: {begin}"


def test_command_skipped_as_duplicate_runs_on_another_page() -> None:
    rest = [remaining(name(page), script) for page in PAGES for script in scripts(page)]
    executed = {line for script in rest for line in commands(script)}
    for page in PAGES:
        for line in lines(page):
            assert reason(name(page), line) != TWICE or line in executed, line


def test_troubleshooting_quotes_only_existing_messages() -> None:
    files = (file for name in ("node", "swarm", "protocol") for file in (ROOT / name).rglob("*.py"))
    items = (item for file in files for item in ast.walk(parse(file.read_text())))
    strings = "\0".join({str(item.value) for item in items if isinstance(item, ast.Constant)})
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
    quoted = "…".join(re.findall(r"(?m)^\| `([^`]+)`", page)).split("…")
    assert quoted and [part for part in quoted if part.strip(" ,;:") not in strings] == []


def test_trl_page_names_options_of_both_programs():
    from trl import GRPOConfig

    table = (ROOT / "docs/guides/from_trl.md").read_text().partition("## Options")[2]
    rows = [re.findall(r"`([\w.]+)`", line) for line in table.split("\n") if line[:3] == "| `"]
    keys = {f"{name}.{key}" for name, part in Config().model_dump().items() for key in part}
    assert len(rows) > 20
    for theirs, ours, *_ in rows[1:]:
        assert theirs in GRPOConfig.__dataclass_fields__ and ours in keys


def test_parser_reads_block_language_position_and_file() -> None:
    first, task_set, config = blocks(PAGE)
    assert (first.language, first.line, first.section) == ("sh", 5, 1)
    assert commands(first.text) == ["first --option"]
    assert (task_set.text, task_set.file) == ("a = 1\n", "sums.toml")
    assert (config.text, config.section, config.file) == ("b = 2\n", 2, None)


def test_parser_extracts_line_prefixes_of_output() -> None:
    shown = "state     running as 3\n12D3Koo… in\nround 3 | x\n…\n  prompt      Say\ndone\nnow: 3\n"
    assert beginnings(shown) == ["state", "round ", "prompt", "done", "now"]


def test_checker_finds_unset_shell_variables() -> None:
    assert unset('join "$LOCAL"') == {"LOCAL"}
    assert unset('join "$LOCAL"\nLOCAL=x') == {"LOCAL"}
    assert unset('LOCAL=x\njoin "${LOCAL}"') == set()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("swarm-node init a\nswarm-node join --config a", "join"),
        ("swarm-node join --rounds 0", "join"),
        ("torchrun --no-python swarm-node join --config a", "join"),
        ("swarm-node bootstrap", "bootstrap"),
        ("swarm-node demo --rounds 0", "demo"),
        ("swarm-node demo", None),
        ("swarm-node join --rounds 12", None),
        ("swarm-node join --detach", None),
        ("swarm-node join --config a\nswarm-node status", None),
        ("pip install .", None),
    ],
)
def test_last_command_decides_if_a_script_runs_until_ctrl_c(script, expected):
    assert kind(script) == expected


def test_skipping_a_command_keeps_the_rest_of_a_block() -> None:
    whole = "swarm-node init \\\n    a\n"
    assert remaining("README.md", whole) == whole
    assert remaining("README.md", f"make demo\n{whole}") == "swarm-node init a\n"
    assert remaining("README.md", "A=1\nmake demo\n") == ""
    assert reason("README.md", "make demo") and not reason("SECURITY.md", "make demo")


def walked(page: Path) -> int:
    return sum(bool(remaining(name(page), script)) for script in scripts(page))


# The longest page runs first, because two workers share the pages.
WALKED = sorted(filter(walked, PAGES), key=walked, reverse=True)


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the shell variables of a separate environment."""
    return build(tmp_path_factory.mktemp("environment"))


@pytest.mark.documents
@pytest.mark.parametrize("page", WALKED, ids=name)
def test_page_commands_work_as_documented(page, variables, tmp_path):
    faults = Walk(page, tmp_path, variables).go()
    assert faults == [], "\n\n".join(faults)
