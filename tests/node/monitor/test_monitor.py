from __future__ import annotations

import io
import json
import logging
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from node.config.config import Config
from node.errors import DiskFullError, NodeError
from node.monitor.history import read_history
from node.monitor.live import LivePanel, PlainLines
from node.monitor.loggers import TensorBoard
from node.monitor.logs import start_logging
from node.monitor.record import BARS, PLAIN_BARS, RoundRecord, one_line, sparkline
from node.monitor.rollouts import LastRollouts
from node.monitor.sinks import JsonLinesFile, Prometheus, open_sinks
from node.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[3]
MOST = 1 << 20
RECORD = RoundRecord(
    round=7,
    policy_step=6,
    time=1.7e9,
    reward_own=0.25,
    reward_external=0.5,
    informative_own=0.75,
    groups_own=5,
    groups_external=3,
    external_wanted=4,
    tokens_per_s=1234.0,
    seconds={"generate": 0.9, "verify": 0.05, "update": 0.5, "idle": 0.05, "total": 1.5},
    loss=-0.01,
    peers=3,
    bytes_in=2_500_000,
    bytes_out=900,
    refused={"reward_mismatch": 2, "expired": 5},
    counters={"rounds_failed": 1.0},
    rss_mb=512.0,
)


UNMEASURED = replace(
    RECORD,
    reward_own=None,
    reward_external=None,
    informative_own=None,
    tokens_per_s=None,
    mean_length=None,
    truncated=None,
)


def rounds(count: int) -> list[RoundRecord]:
    return [replace(RECORD, round=n, reward_own=n / count) for n in range(1, count + 1)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_record_survives_json() -> None:
    assert RoundRecord.from_dict(json.loads(json.dumps(RECORD.to_dict()))) == RECORD


def test_a_record_of_a_newer_version_is_read_without_its_new_keys() -> None:
    assert RoundRecord.from_dict({**RECORD.to_dict(), "charm": 3}) == RECORD


def test_scalars_leave_out_what_a_round_did_not_measure() -> None:
    scalars = RECORD.scalars()
    assert scalars["loss"] == -0.01
    assert scalars["seconds_generate"] == 0.9
    assert "reward_eval" not in scalars and "refused" not in scalars


def test_json_lines_are_appended_and_a_half_line_of_a_killed_process_is_dropped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonLinesFile(path, MOST)
    first.write(RECORD)
    first.close()
    with path.open("a") as file:
        file.write('{"round": 8, "poli')
    assert read_history(tmp_path) == [RECORD]
    second = JsonLinesFile(path, MOST)
    second.write(replace(RECORD, round=8))
    second.close()
    assert [r.round for r in read_history(tmp_path)] == [7, 8]


def test_a_full_disk_is_named_by_the_metrics_file(tmp_path: Path) -> None:
    lines = JsonLinesFile(tmp_path / "metrics.jsonl", MOST)
    lines.file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
    with pytest.raises(DiskFullError, match="Free some space"):
        lines.write(RECORD)
    lines.close()


def test_a_sparkline_rises_with_its_values_and_keeps_to_its_width() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10) == BARS[0] + BARS[4] + BARS[7]
    assert sparkline([], 10) == ""
    assert sparkline([0.0, 0.0], 10) == BARS[0] * 2
    long = sparkline([n / 1000 for n in range(1000)], 24)
    assert len(long) <= 24 and long == "".join(sorted(long))


def test_the_panel_shows_the_figures_and_keeps_the_last_evaluation() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    panel = LivePanel("bench", 20, LastRollouts(), console)
    panel.write(replace(RECORD, reward_eval=0.125))
    panel.write(replace(RECORD, round=8))
    panel.close()
    shown = console.file.getvalue()
    for expected in (
        "bench",
        "8 of 20",
        "held-out 0.125",
        "3 of 4",
        "1,234",
        "generate 60%",
        "2.5 MB",
        "expired 5, reward_mismatch 2",
        "512 MB",
    ):
        assert expected in shown


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            replace(RECORD, mean_length=4.25, truncated=0.5),
            ["1,234 a second, 4.2 a completion, 50% cut", "75% of own groups"],
        ),
        (
            UNMEASURED,
            ["– a second, – a completion, – cut", "– of own groups", "external –, held-out –"],
        ),
    ],
)
def test_the_panel_shows_a_dash_for_what_was_not_measured(record, expected) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    panel = LivePanel("bench", 20, LastRollouts(), console)
    panel.write(record)
    panel.close()
    assert [text for text in expected if text not in console.file.getvalue()] == []


def test_a_line_shows_a_dash_for_what_was_not_measured() -> None:
    line = one_line(UNMEASURED)
    assert line.startswith("round 7 | reward – | external – (3 of 4) | informative – | – tokens/s")
    assert "informative 75% | 1234 tokens/s" in one_line(RECORD)


def test_the_panel_has_plain_bars_where_the_encoding_lacks_the_others() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="backslashreplace")
    console = Console(file=file, force_terminal=True, width=100, height=40)
    panel = LivePanel("bench", 0, LastRollouts(), console)
    for record in rounds(8):
        panel.write(replace(record, reward_own=(record.round - 1) / 7))
    panel.close()
    file.seek(0)
    assert PLAIN_BARS in file.read()


@pytest.mark.parametrize(("peers", "told"), [(1, "1 peer, in"), (3, "3 peers, in")])
def test_the_panel_tells_one_peer_from_several(peers: int, told: str) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    panel = LivePanel("bench", 20, LastRollouts(), console)
    panel.write(replace(RECORD, peers=peers))
    panel.close()
    assert told in console.file.getvalue()


def test_where_there_is_no_terminal_each_round_is_one_line() -> None:
    console = Console(file=io.StringIO(), width=20)
    lines = PlainLines(0, console)
    for record in rounds(3):
        lines.write(record)
    shown = console.file.getvalue().splitlines()
    assert len(shown) == 3
    assert shown[2].startswith("round 3 | reward 1.000 | external 0.500 (3 of 4)")


def test_prometheus_serves_the_newest_record_until_closed() -> None:
    metrics = Prometheus(free_port())
    url = f"http://127.0.0.1:{metrics.port}/metrics"
    metrics.write(RECORD)
    metrics.write(replace(RECORD, round=8))
    text = urllib.request.urlopen(url, timeout=60).read().decode()
    assert "swarm_node_round 8.0" in text
    assert 'swarm_node_refused_total{reason="reward_mismatch"} 2.0' in text
    assert 'swarm_node_events_total{event="rounds_failed"} 1.0' in text
    metrics.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_prometheus_has_no_sample_of_what_the_newest_round_did_not_measure() -> None:
    metrics = Prometheus(free_port())
    url = f"http://127.0.0.1:{metrics.port}/metrics"
    served = []
    for gap in (0.0, None):
        metrics.write(replace(UNMEASURED, engine_gap=gap))
        served.append(urllib.request.urlopen(url, timeout=60).read().decode())
    metrics.close()
    assert ["swarm_node_engine_gap 0.0" in text for text in served] == [True, False]
    assert ["engine_gap" in text for text in served] == [True, False]
    assert "reward_own" not in served[0] and "swarm_node_loss" in served[1]


def test_a_taken_metrics_port_is_named_with_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NodeError, match=rf"prometheus_port = {port}\. Choose a free port"):
            Prometheus(port)


def test_tensorboard_files_hold_the_figures_by_round(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(folder := RunFolder(tmp_path))
    for record in rounds(3):
        board.write(record)
    board.close()
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [(e.step, round(e.value, 3)) for e in events.Scalars("reward_own")] == [
        (1, 0.333),
        (2, 0.667),
        (3, 1.0),
    ]
    assert events.Scalars("refused/expired")[0].value == 5


def test_a_missing_tensorboard_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(NodeError, match=r"pip install 'swarm-node\[tensorboard\]'"):
        TensorBoard(RunFolder(tmp_path))


def test_the_config_decides_what_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    config = Config.with_overrides({"monitor.prometheus_port": free_port()})
    sinks = open_sinks(config, folder, LastRollouts(), json=True)
    for sink in sinks:
        sink.write(RECORD)
        sink.close()
    assert read_history(tmp_path) == [RECORD]
    assert RoundRecord.from_dict(json.loads(capsys.readouterr().out)) == RECORD


def test_when_one_sink_cannot_open_the_others_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    port = free_port()
    config = Config.with_overrides(
        {"monitor.prometheus_port": port, "monitor.loggers": ["tensorboard"], "monitor.live": False}
    )
    with pytest.raises(NodeError, match="tensorboard"):
        open_sinks(config, RunFolder(tmp_path), LastRollouts())
    Prometheus(port).close()


@pytest.fixture
def loggers():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_traces_go_to_the_file_and_our_warnings_to_the_terminal_in_one_line(
    tmp_path: Path, loggers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    start_logging(tmp_path / "node.log", "info")
    log = logging.getLogger("node.run.training_loop")
    log.info("an ordinary message")
    try:
        raise ValueError("odd tensor")
    except ValueError:
        log.exception("round 3 failed")
    logging.getLogger("asyncio").error("a library's complaint")
    written = (tmp_path / "node.log").read_text()
    assert "an ordinary message" in written and "a library's complaint" in written
    assert "ValueError: odd tensor" in written
    shown = capsys.readouterr().err
    assert "round 3 failed" in shown
    assert "ordinary" not in shown and "library" not in shown and "Traceback" not in shown


def test_lines_that_found_no_room_are_written_whole_once_there_is_some(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from pathlib import Path
from node.errors import DiskFullError
from node.monitor.sinks import JsonLinesFile
from tests.node.monitor.test_monitor import rounds
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lines = JsonLinesFile(Path(sys.argv[1]), 1 << 20)
first, second, third, fourth = rounds(4)
lines.write(first)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (lines.file.tell() + 100, most))
for record in (second, third):
    try:
        lines.write(record)
    except DiskFullError:
        continue
    raise AssertionError("there was no room")
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
lines.write(fourth)
"""
    path = tmp_path / "metrics.jsonl"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, cwd=ROOT, timeout=300)
    assert read_history(tmp_path) == rounds(4)
