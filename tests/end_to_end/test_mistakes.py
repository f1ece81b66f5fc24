"""One error line says what is wrong, where, and how to fix it.

A row in ``mistakes/`` holds a command line and the required content of its error line: the key or
argument, the value, and words of the remedy. A group of rows gives the folder (``place``) and the
exit status. If the rows hold only a part of the command line or of a config file, the group gives
the rest in ``run`` or ``file``.
"""

import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from node.cli.options import LOADING
from node.network.creation import create_swarm
from node.run.preflight import prepare
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from tests.end_to_end import forked
from tests.end_to_end.commands import ROOT, Command

pytestmark = pytest.mark.processes

MODEL = ROOT / "node" / "models" / "tiny"
STATE = {"model": "tiny", "dtype": "float32", "lora_rank": 0, "policy_step": 4}
EVERY = 37
Made = Callable[[Path], RunFolder]


def a_node(folder: Path) -> RunFolder:
    prepare(folder / "node")
    return RunFolder(folder / "node")


def a_member(folder: Path) -> RunFolder:
    node = a_node(folder)
    node.manifest.write_bytes(create_swarm(Identity.load(node.identity), name="ours"))
    return node


def a_trained_node(folder: Path) -> RunFolder:
    node, put_model = a_member(folder), partial(shutil.copytree, MODEL, dirs_exist_ok=True)
    Checkpoints(node.checkpoints).save(4, put_model, STATE)
    return node


def a_file_and_a_folder(folder: Path) -> None:
    """Create a file, and a folder that is not empty."""
    (folder / "file").write_text("something\n")
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("something\n")


def a_closed_folder(folder: Path) -> None:
    """Create a read-only folder and a folder without any permission."""
    for name, mode in (("readable", 0o500), ("closed", 0o000)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)


def a_damaged_checkpoint(folder: Path) -> None:
    for file in a_trained_node(folder).checkpoints.rglob("config.json"):
        file.write_text("{}")


def with_mode(name: str, mode: int, made: Made = a_node) -> Callable[[Path], object]:
    return lambda folder: (made(folder).root / name).chmod(mode)


def with_file(name: str, text: bytes | None, made: Made = a_node) -> Callable[[Path], object]:
    """Return a function that creates a node whose file has this text or is a folder."""

    def make(folder: Path) -> None:
        path = made(folder).root / name
        if text is None:
            path.unlink(missing_ok=True)
            path.mkdir(mode=0o700)
        else:
            path.write_bytes(text)

    return make


def without_a_key(folder: Path) -> RunFolder:
    node = a_node(folder)
    node.identity.unlink()
    return node


def task_sets(folder: Path) -> None:
    """Create a node, and task sets and allow lists that are all invalid."""
    a_node(folder)
    env = 'name = "gcd"\nsource = "reasoning-gym"\nversion = "0.1.25"\n'
    rest = 'template = "{question}"\nextract = "text"\n'
    texts = {
        "empty": "",
        "yaml": "env:\n  - name: gcd\n",
        "nameless": "[[env]]\nlevels = [{}]\n",
        "short": '[[env]]\nname = "gcd"\nlevels = [{}]\n',
        "unknown": f"[[env]]\n{env}{rest}levels = [{{}}]\ndifficulty = 3\n",
        "twice": f"[[env]]\n{env}{rest}levels = [{{}}]\n" * 2,
        "levels": f"[[env]]\n{env}{rest}levels = 3\n",
        "date": f"[[env]]\n{env}{rest}levels = [{{ a = 2026-01-01 }}]\n",
        "table": f"[env]\n{env}",
        "extract": f'[[env]]\n{env}template = "{{question}}"\nextract = "json"\nlevels = [{{}}]\n',
        "fileless": '[[env]]\nname = "sums"\nsource = "jsonl"\nfile = "sums.jsonl"\n'
        f"{rest}levels = [{{}}]\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "folder.toml").mkdir()
    (folder / "nobody.txt").write_text("# nobody yet\n")
    (folder / "names.txt").write_text("anna\nbert\n")
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00")


PLACES: dict[str, Callable[[Path], object]] = {
    "nothing": bool,
    "a_node": a_node,
    "a_member": a_member,
    "a_trained_node": a_trained_node,
    "a_file_and_a_folder": a_file_and_a_folder,
    "a_closed_folder": a_closed_folder,
    "a_closed_node": with_mode("", 0o500, a_trained_node),
    "a_node_with_a_closed_config": with_mode("node.toml", 0),
    "a_node_with_a_closed_key": with_mode("identity.key", 0),
    "a_node_with_a_shared_key": with_mode("identity.key", 0o644),
    "a_node_whose_key_is_text": with_file("identity.key", b"-----BEGIN PRIVATE KEY-----\n"),
    "a_node_whose_key_is_a_folder": with_file("identity.key", None),
    "a_node_without_a_key": without_a_key,
    "a_node_that_lost_its_key": with_file("journal.sqlite", b"", without_a_key),
    "a_node_whose_config_is_binary": with_file("node.toml", b'[node]\nname = "caf\xe9"\n'),
    "a_node_whose_config_is_a_folder": with_file("node.toml", None),
    "a_node_whose_manifest_is_text": with_file("manifest.swarm", b"[swarm]\n", a_trained_node),
    "a_node_whose_manifest_is_a_folder": with_file("manifest.swarm", None),
    "a_node_whose_status_is_text": with_file("status.json", b"running\n"),
    "a_node_whose_status_is_a_list": with_file("status.json", b"[1]\n"),
    "a_damaged_checkpoint": a_damaged_checkpoint,
    "task_sets": task_sets,
}
"""Folders for the mistakes; each function fills an empty one."""


@dataclass(frozen=True)
class Mistake:
    """A mistake and the required error line.

    Attributes:
        command: arguments of ``swarm-node``.
        named: the key or argument and the value, in this order.
        remedy: words of the fix, which follow them.
        status: the exit status.
        place: a key of :data:`PLACES`.
        file: content of node/node.toml, if that is the mistake.
    """

    command: tuple[str, ...]
    named: tuple[str, str]
    remedy: str
    status: int
    place: str
    file: str | None = None

    @property
    def title(self) -> str:
        where = "" if self.place == "nothing" else f" [{self.place}]"
        return f"{shlex.join(self.command) if self.file is None else self.file!r}{where}"


def mistakes() -> Iterator[Mistake]:
    for path in sorted(Path(__file__).with_name("mistakes").glob("*.toml")):
        for group in tomllib.loads(path.read_text(encoding="utf-8"))["group"]:
            whole = "file" in group
            for argument, key, value, remedy in group["rows"]:
                command = group["run"] if whole else group["run"].replace("{}", argument)
                file = group["file"].replace("{}", argument) if whole else None
                words, where = tuple(shlex.split(command)), (group["status"], group["place"])
                yield Mistake(words, (key, value), remedy, *where, file)


MISTAKES = tuple(mistakes())
SAMPLE = [m for m in MISTAKES if not m.place.startswith("a_closed")][::EVERY]
"""A sample without closed folders, because root can open these."""

COMMANDS = "".join(path.read_text() for path in (ROOT / "node" / "cli").glob("*.py"))
WAITS = {LOADING, *re.findall(r'waiting\("([^"]+)"\)', COMMANDS)}


def assert_output(mistake: Mistake, ended: forked.Ended) -> None:
    assert "Traceback" not in ended.out + ended.err
    others = [line for line in ended.out.splitlines() if not line.startswith("starting")]
    assert others == [], "stdout has only progress lines"
    (line,) = [each for each in ended.err.splitlines() if each not in WAITS]
    key, value = map(re.escape, mistake.named)
    remedy = re.escape(mistake.remedy)
    assert re.fullmatch(rf"error: .*{key}.*{value}.*[.?:)] .*{remedy}.*", line), line
    assert line.endswith((".", "?", ".)")), line
    assert not line.startswith("error: unexpected")
    assert len(line) < 600, line
    assert ended.status == mistake.status


def made(mistake: Mistake, tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    PLACES[mistake.place](folder)
    if mistake.file is not None:
        (folder / "node" / "node.toml").write_text(mistake.file)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_command_reports_mistakes_in_one_line_with_fix(mistake: Mistake, tmp_path: Path) -> None:
    assert_output(mistake, forked.run(mistake.command, made(mistake, tmp_path)))


@pytest.mark.parametrize("mistake", SAMPLE, ids=lambda mistake: mistake.title)
def test_subprocess_reports_the_same_mistake(mistake: Mistake, tmp_path: Path) -> None:
    with Command(made(mistake, tmp_path), *mistake.command) as command:
        status = command.wait()
        result = forked.Ended(status, "\n".join(command.out), "\n".join(command.err))
    assert_output(mistake, result)


def test_mistake_tables_hold_no_duplicate() -> None:
    titles = [mistake.title for mistake in MISTAKES]
    assert len(titles) == len(set(titles)) >= 200
