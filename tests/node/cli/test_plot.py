import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from node.config.config import set_keys
from node.monitor.record import RoundRecord
from tests.node.conftest import Terminal
from tests.node.monitor.test_monitor import RECORD, rounds
from tests.node.programs import python


def run(folder: Path, count: int = 6, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "metrics.jsonl", [replace(record, **changes) for record in rounds(count)])
    return folder


def write(path: Path, records: Sequence[RoundRecord]) -> None:
    path.write_text("".join(json.dumps(record.to_dict()) + "\n" for record in records))


def own_reward(terminal: Terminal) -> list[str]:
    return next(line for line in terminal.out.splitlines() if "reward, local" in line).split()


def names(terminal: Terminal) -> list[str]:
    """Return the run names of the local reward rows, in order."""
    lines = terminal.out.splitlines()
    begin = next(n for n, line in enumerate(lines) if "reward, local" in line)
    end = next(n for n in range(begin, len(lines)) if "held-out" in lines[n])
    block = [line.replace("reward, local", "").split() for line in lines[begin:end]]
    return [cells[0] for cells in block if cells]


def test_plot_draws_to_the_terminal_and_to_a_file(terminal):
    run(Path("mine"))
    shown = terminal.ok("plot", "mine", "--terminal", "--out", "mine.png")
    assert Path("mine.png").read_bytes().startswith(b"\x89PNG")
    assert "wrote mine.png" in shown and "rounds 1 to 6" in shown


def test_plot_draws_text_into_a_pipe_by_default(terminal):
    run(Path("mine"))
    piped = terminal.ok("plot", "mine")
    assert "rounds 1 to 6" in piped and "\x1b" not in piped
    assert piped == terminal.ok("plot", "mine", "--terminal")
    terminal.ok("plot", "mine", "--out", "mine.png")
    assert "rounds 1 to 6" not in terminal.out, "--out draws only the file"


@pytest.mark.skipif(sys.platform == "win32", reason="needs /dev/full")
def test_plot_reports_a_full_disk(terminal):
    run(Path("mine"))
    Path("full.png").symlink_to("/dev/full")
    output = terminal.refuses(1, "plot", "mine", "--out", "full.png")
    assert output.startswith("error: no space left to write: full.png. Free some space")


def test_plot_uses_the_local_node_by_default(terminal, node):
    run(node.root)
    node.root.rename("swarm-run")
    assert "rounds 1 to 6" in terminal.ok("plot", "--terminal")


def test_plot_takes_a_run_from_the_config_option(terminal, node):
    run(node.root)
    run(Path("other"))
    assert "rounds 1 to 6" in terminal.ok("plot", "--config", "node", "--terminal")
    terminal.ok("plot", "other", "-c", "node/node.toml", "--terminal")
    assert names(terminal) == ["other", "node"]
    assert "nowhere" in terminal.fails(1, "plot", "--config", "nowhere/node.toml", "--terminal")


def test_plot_follows_run_dir_of_the_node_config(terminal, node):
    run(Path("elsewhere"))
    set_keys(node.config, {"node.run_dir": "../elsewhere"})
    for given in ("node", "node/node.toml"):
        assert "rounds 1 to 6" in terminal.ok("plot", given, "--terminal")


def test_plot_skips_and_reports_other_files(terminal):
    run(Path("demo/node-1"))
    Path("demo/seed").mkdir()
    Path("demo/reward.png").touch()
    terminal.ok("plot", *map(str, sorted(Path("demo").iterdir())), "--terminal")
    output = [line.split(". ")[0] for line in terminal.err.splitlines()]
    others = ("demo/reward.png", "demo/seed")
    assert output == [f"skipped: not a run folder: {other}" for other in others]


def test_plot_sorts_runs_and_distinguishes_equal_names(terminal):
    for number in (10, 2, 1):
        run(Path(f"demo/node-{number}"))
    terminal.ok("plot", "demo", "--terminal")
    assert names(terminal) == ["node-1", "node-2", "node-10"]
    for demo in ("monday", "tuesday"):
        run(Path(demo, "node-1"))
    terminal.ok("plot", "monday", "tuesday", "monday/node-1", "--terminal")
    assert names(terminal) == ["monday/node-1", "tuesday/node-1"]


def test_plot_reads_repeated_rounds_once(terminal):
    run(Path("mine"), 4)
    again = [replace(RECORD, round=number, reward_local=0.125) for number in (5, 4, 5, 6)]
    with Path("mine/metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(record.to_dict()) + "\n" for record in again)
        file.write('{"round": 7, "rew')
    assert "rounds 1 to 6" in terminal.ok("plot", "mine", "--terminal", "--smooth", "1")
    assert own_reward(terminal)[-3:] == ["0.250", "0.125", "0.750"]


def test_plot_smooths_over_the_requested_rounds(terminal):
    run(Path("mine"), 40)
    for window, highest in (("1", "1.000"), ("80", "0.512")):
        terminal.ok("plot", "mine", "--terminal", "--smooth", window)
        assert own_reward(terminal)[-1] == highest


@pytest.mark.parametrize(
    ("given", "status", "cause"),
    [
        (["nowhere"], 2, "there is no run folder: nowhere. Name a run folder"),
        (["mine", "nowhere"], 2, "there is no run folder: nowhere. Name a run folder"),
        (["empty"], 1, "not a run folder: empty. Name a folder with a metrics.jsonl"),
        (["file.txt"], 1, "not a run folder: file.txt. Name a folder with a metrics.jsonl"),
        (["young"], 1, "no recorded round in: young. Wait until its node finishes a round"),
        (["mine", "--out", "x.jpg"], 2, "--out: x.jpg. Name a file that ends in .png, .svg, .pdf."),
    ],
)
def test_plot_reports_errors_in_one_line_with_a_fix(terminal, given, status, cause):
    run(Path("mine"))
    run(Path("young"), 0)
    Path("empty").mkdir()
    Path("file.txt").touch()
    assert terminal.refuses(status, "plot", *given).startswith(f"error: {cause}")


def test_plot_reports_a_node_without_recorded_rounds(terminal, node):
    output = f"error: no recorded round in: {node.root}."
    assert terminal.fails(1, "plot", "node", "--terminal").startswith(output)


READS_ONLY = """
import builtins, io, os, sys
def watched(event, arguments):
    if event == "open" and str(arguments[0]).startswith(sys.argv[1]):
        mode, flags = arguments[1], arguments[2]
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT), arguments
    if event in ("os.mkdir", "os.rename", "os.remove", "os.chmod", "os.utime"):
        assert not str(arguments[0]).startswith(sys.argv[1]), (event, arguments)
sys.addaudithook(watched)
from node.cli.main import run
from node.monitor import output
output.LONG_WAIT_SECONDS = 600.0  # where the machine is busy
sys.argv = ["swarm-node", "plot", sys.argv[1], "--out", sys.argv[2]]
run()
"""


def test_plot_only_reads_the_run(tmp_path):
    folder, chart = run(tmp_path / "mine"), tmp_path / "chart.svg"
    for path in (folder / "metrics.jsonl", folder):
        path.chmod(path.stat().st_mode & 0o555)
    drawing = python(READS_ONLY, str(folder), str(chart))
    folder.chmod(0o700)
    assert (drawing.returncode, drawing.stderr) == (0, "") and chart.exists()
    assert [path.name for path in folder.iterdir()] == ["metrics.jsonl"]
