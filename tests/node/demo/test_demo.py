import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from node.demo import run as run_module
from node.demo import summary as module
from node.demo.node_process import NodeProcess, RecordTail
from node.demo.run import DemoSettings, node_overrides, opening
from node.demo.summary import LINE_SECONDS, SwarmView
from node.errors import ConfigError
from node.monitor.history import MEASURES, draw_runs
from node.monitor.record import RoundRecord, Terminal
from node.plan import machine
from node.plan.machine import GIB, Machine, by_data_sheet
from tests.node.monitor.test_monitor import RECORD

QUIET = [RoundRecord(number, 0, 0.0, None) for number in (1, 2)]
BUSY = [replace(QUIET[0], reward_local=0.25, informative_local=0.5, reward_eval=0.125), QUIET[1]]
LINES_BEFORE = 5
"""Lines for the run, how to join with an address on two lines, and where to look."""


def shown(what):
    console = Console(file=io.StringIO(), width=120)
    console.print(what)
    return console.file.getvalue()


def test_summary_omits_a_node_without_measurements(tmp_path):
    histories = {"a": QUIET, "b": BUSY}.items()
    nodes = [module.summarise_node(name, "", "tiny", rows) for name, rows in histories]
    summary = module.summarise_swarm("5eed" * 8, nodes, 1.0, tmp_path / "chart.png")
    told = json.loads(summary.as_json(), parse_constant=pytest.fail)
    assert told["nodes"][0]["reward_first"] is None
    assert (told["reward_first"], told["eval_last"]) == (0.25, 0.125)
    text = shown(module.table(summary))
    assert "– → –" in text and "0.25 → 0.25" in text and "0.12 → 0.12" in text


def test_live_view_averages_only_measured_rounds(tmp_path):
    text = shown(SwarmView(2, 2, Console(height=40)).render({"a": QUIET, "b": BUSY}))
    quiet, busy = (line.split() for line in text.splitlines() if line.strip()[:2] in ("a ", "b "))
    assert quiet[:6] == ["a", "2", "–", "–", "–", "–"]
    assert busy[:6] == ["b", "2", "0.250", "–", "0.125", "50%"]
    draw_runs({"a": QUIET, "b": BUSY}, 1, tmp_path / "chart.png", MEASURES[:2])
    assert (tmp_path / "chart.png").stat().st_size > 0


def test_node_stops_after_the_first_evaluation_past_its_time():
    evaluated, quiet = (replace(each, time=100.0) for each in BUSY)
    assert run_module.evaluated_since(99.0, [quiet, evaluated])
    assert not run_module.evaluated_since(99.0, [quiet])
    assert not run_module.evaluated_since(100.0, [quiet, evaluated])
    assert not run_module.evaluated_since(99.0, [])


class NeverEvaluated:
    """A node that trains until it is interrupted."""

    exit_code = None

    def __init__(self, folder):
        self.folder = folder

    def status(self):
        return None

    def interrupt(self):
        self.exit_code = 0


def test_demo_stops_a_node_without_a_timely_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "EVALUATION_SECONDS", 0.0)
    node, console = NeverEvaluated(tmp_path), Console(file=io.StringIO())
    run_module.watch({"node-1": node}, SwarmView(0, 1, console), console, minutes=1e-6)
    assert node.exit_code == 0


def line(number):
    return json.dumps(replace(RECORD, round=number).to_dict()) + "\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def rounds(followed):
    return [record.round for record in followed.look()]


def test_reader_waits_for_the_rest_of_a_partial_line(path):
    followed = RecordTail(path)
    assert rounds(followed) == []
    with path.open("a") as file:
        file.write(line(1) + line(2)[:9])
        file.flush()
        assert rounds(followed) == [1]
        file.write(line(2)[9:] + line(3))
        file.flush()
        assert rounds(followed) == [1, 2, 3]
    assert rounds(followed) == [1, 2, 3]


def test_reader_adds_only_new_rounds_of_a_replaced_file(path):
    followed = RecordTail(path)
    path.write_text(line(1))
    followed.look()
    with path.open("r+") as file:
        file.write("x")
        file.seek(0, 2)
        file.write(line(2) + line(3))
    assert rounds(followed) == [1, 2, 3]
    thinned = path.with_name("thinned")
    thinned.write_text(line(1) + line(3) + line(4))
    thinned.replace(path)
    assert rounds(followed) == [1, 2, 3, 4]


def test_reader_keeps_only_recent_rounds(path, monkeypatch):
    monkeypatch.setattr("node.demo.node_process.KEPT", 5)
    path.write_text("".join(map(line, range(1, 21))))
    assert rounds(RecordTail(path)) == [16, 17, 18, 19, 20]


def terminal():
    console = Terminal()
    console.file, console.width, console.height = io.StringIO(), 80, 24
    return console


def history(rounds, **changes):
    return [replace(RECORD, round=n, **changes) for n in range(1, rounds + 1)]


@pytest.mark.parametrize("nodes", [4, 12, 13, 64])
def test_view_fits_the_screen_for_any_number_of_nodes(nodes):
    console = terminal()
    records = {f"node-{n}": history(3) for n in range(1, nodes + 1)}
    console.print(SwarmView(0, nodes, console).render(records))
    lines = console.file.getvalue().splitlines()
    assert LINES_BEFORE + len(lines) <= console.height
    rows = [line for line in lines if line.strip().startswith("node-")]
    hidden = [line.strip() for line in lines if "more" in line]
    assert len(rows) == min(nodes, 12)
    assert hidden == ([f"{nodes - 12} more"] if nodes > 12 else [])


def test_status_line_summarizes_all_or_starting_nodes():
    busy = history(40, reward_local=0.25, reward_eval=0.5)
    other = history(44, reward_local=0.75, reward_external=None)
    records = {"node-1": busy, "node-2": other, "node-3": []}
    told = "reward 0.500 | peers' reward 0.500 (3.0 of 4) | held-out 0.500 | 2 of 3 running"
    assert SwarmView(150, 3, terminal()).line(records) == f"rounds 40 to 44 of 150 | {told}"
    assert "rounds 40 to 44 |" in SwarmView(0, 3, terminal()).line(records)
    assert SwarmView(150, 2, terminal()).line({"a": [], "b": []}) == "starting | 0 of 2 running"


def test_demo_prints_periodic_lines_without_a_terminal(monkeypatch):
    console, now = Console(file=io.StringIO(), width=80), [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with SwarmView(0, 2, console).shown() as show:
        for count, seconds in enumerate((0.0, 1.0, LINE_SECONDS, LINE_SECONDS + 1.0), 1):
            now[0] = 100.0 + seconds
            show({str(number): [] for number in range(count)})
    lines = console.file.getvalue().splitlines()
    assert lines == [f"starting | 0 of {count} running" for count in (1, 3)]


def test_pipe_gets_lines_and_terminal_gets_table():
    for tty, expected in ((False, "starting | 0 of 2 running"), (True, "reward by round")):
        console = Console(file=io.StringIO(), force_terminal=tty, width=80, height=24)
        with SwarmView(0, 2, console).shown() as show:
            show({"node-1": [], "node-2": []})
        assert expected in console.file.getvalue()


def test_opening_states_duration_and_nodes_evaluate_regularly():
    until, limited = (opening(DemoSettings(rounds=rounds), Path("here")) for rounds in (0, 30))
    assert until == "a swarm of 4 and a bootstrap node in here, until Ctrl-C"
    assert limited.endswith(", up to round 30; use --rounds 0 to run until Ctrl-C")
    timed = opening(DemoSettings(rounds=0, minutes=25.0), Path("here"))
    assert timed.endswith(", for about 25 minutes; use --rounds 0 to run until Ctrl-C")
    for rounds, every in {150: 10, 30: 2, 5: 1, 0: 10}.items():
        keys = node_overrides(DemoSettings(rounds=rounds), 0, 1)
        assert (keys["schedule.rounds"], keys["schedule.eval_every"]) == (rounds, every)


def test_demo_splits_gpu_memory_and_rejects_too_many_nodes(monkeypatch):
    own = replace(by_data_sheet("NVIDIA H100", 80 * GIB), usable=80 * GIB)
    with_gpu = Machine(8, 64 * GIB, 62 * GIB, 1 << 40, own)
    monkeypatch.setattr(machine, "this_machine", lambda device, folder: with_gpu)
    eight = DemoSettings(nodes=8, model="tiny", device="cuda")
    assert re.fullmatch(
        r"each node is planned with \S+ GB of main memory, and \S+ GB of its 10\.\d GB of the "
        "NVIDIA H100",
        run_module.memory_of(eight),
    )
    assert node_overrides(eight, 0, 1)["policy.device"] == "cuda"
    with pytest.raises(ConfigError, match=r"--nodes: 640\. For each of them: .*use a smaller"):
        run_module.memory_of(replace(eight, nodes=640))


UNTIL_EOF = """
import sys, time
from node.cli.join import interrupt_on_eof
sys.platform = "win32"
interrupt_on_eof()
try:
    print("begun", flush=True)
    for _ in range(600):
        time.sleep(0.05)
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_windows_node_stops_at_the_end_of_its_input(tmp_path, monkeypatch):
    command = [sys.executable, "-c", UNTIL_EOF]
    monkeypatch.setattr("node.demo.node_process.child_command", lambda *_: command)
    process = NodeProcess(["join"], tmp_path)
    try:
        while process.last_words() != "begun" and process.exit_code is None:
            process.wait(0.05)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", "win32")
            patch.delattr(subprocess.Popen, "send_signal")
            process.interrupt()
            process.interrupt()
        assert process.wait(60) == 7
    finally:
        process.close()
