import io
import json
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from node.config.config import Config
from node.errors import NodeError
from node.monitor.history import read_history
from node.monitor.live import LivePanel, PlainLines
from node.monitor.loggers import TensorBoard
from node.monitor.record import BARS, PLAIN_BARS, RoundRecord, one_line, sparkline
from node.monitor.sinks import Figures, JsonLinesFile, exposition, open_sinks
from node.storage.run_folder import RunFolder
from tests.node.programs import python

LIMIT = 1 << 20
RECORD = RoundRecord(
    round=7,
    policy_step=6,
    time=1.7e9,
    reward_local=0.25,
    reward_external=0.5,
    informative_local=0.75,
    groups_local=5,
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
    **dict.fromkeys(("reward_local", "reward_external", "informative_local", "tokens_per_s")),
    **dict.fromkeys(("mean_length", "truncated")),
)
DASHES = ["– per second, – per completion, – truncated", "– of local groups", "peers –, held-out –"]
MEASURED = ["1,234 per second, 4.2 per completion, 50% truncated", "75% of local groups"]


def rounds(count):
    return [replace(RECORD, round=n, reward_local=n / count) for n in range(1, count + 1)]


def test_record_round_trips_and_scalars_skip_missing_values():
    assert RoundRecord.from_dict(json.loads(json.dumps(RECORD.to_dict()))) == RECORD
    other = {"reward_local": 1.0, "charm": 3, "round": 1, "policy_step": 0, "time": 2.0}
    assert RoundRecord.from_dict(other) == RoundRecord(1, 0, 2.0, 1.0)
    scalars = RECORD.scalars()
    assert scalars["loss"] == -0.01 and scalars["seconds_generate"] == 0.9
    assert "reward_eval" not in scalars and "refused" not in scalars


def test_json_lines_append_and_drop_a_partial_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for number in (7, 8):
        with closing(JsonLinesFile(path, LIMIT)) as file:
            file.write(replace(RECORD, round=number))
        assert [r.round for r in read_history(tmp_path)] == list(range(7, number + 1))
        with path.open("a") as half:
            half.write('{"round": 8, "poli')
        assert read_history(tmp_path)[0] == RECORD


def test_sparkline_follows_its_values_and_fits_its_width():
    assert sparkline([0.0, 0.5, 1.0], 10) == BARS[0] + BARS[4] + BARS[7] and sparkline([], 10) == ""
    assert sparkline([0.0, 0.0], 10) == BARS[0] * 2
    long = sparkline([n / 1000 for n in range(1000)], 24)
    assert len(long) <= 24 and long == "".join(sorted(long))


def panel_of(*records, title="bench", rounds=20, console=None):
    """Return what a panel shows after these rounds."""
    console = console or Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    panel = LivePanel(title, rounds, console)
    for record in records:
        panel.write(record)
    panel.close()
    console.file.seek(0)
    return console.file.read()


def test_panel_shows_figures_and_the_last_evaluation():
    shown = panel_of(replace(RECORD, reward_eval=0.125), replace(RECORD, round=8))
    expected = "bench", "8 of 20", "held-out 0.125", "3 of 4", "1,234", "generate 60%", "2.5 MB"
    for text in (*expected, "expired 5, reward_mismatch 2", "512 MB"):
        assert text in shown
    for record, texts in (
        (replace(RECORD, mean_length=4.25, truncated=0.5), MEASURED),
        (UNMEASURED, DASHES),
        (replace(RECORD, peers=1), ["1 peer, in"]),
        (replace(RECORD, peers=3), ["3 peers, in"]),
    ):
        shown = panel_of(record)
        assert [text for text in texts if text not in shown] == []


def test_round_prints_one_line_without_a_terminal():
    lines = PlainLines(0, console := Console(file=io.StringIO(), width=20))
    for record in rounds(3):
        lines.write(record)
    *_, last = shown = console.file.getvalue().splitlines()
    assert len(shown) == 3
    assert last.startswith("round 3 | reward 1.000 | peers' reward 0.500 (3 of 4)")
    start = "round 7 | reward – | peers' reward – (3 of 4) | informative – | – tokens/s"
    assert one_line(UNMEASURED).startswith(start)
    assert "informative 75% | 1234 tokens/s" in one_line(RECORD)


def test_panel_uses_ascii_bars_for_a_limited_encoding():
    file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="backslashreplace")
    console = Console(file=file, force_terminal=True, width=100, height=40)
    climb = [replace(each, reward_local=(each.round - 1) / 7) for each in rounds(8)]
    assert PLAIN_BARS in panel_of(*climb, rounds=0, console=console)


def test_prometheus_gets_figures_and_totals():
    text = exposition(Figures.of_round(RECORD))[0].decode()
    assert "swarm_node_round 7.0" in text
    assert 'swarm_node_refused_total{reason="reward_mismatch"} 2.0' in text
    assert 'swarm_node_events_total{event="rounds_failed"} 1.0' in text


def test_prometheus_omits_unmeasured_values():
    measured, unmeasured = (
        exposition(Figures.of_round(replace(UNMEASURED, logprob_mismatch=gap)))[0].decode()
        for gap in (0.0, None)
    )
    assert "swarm_node_logprob_mismatch 0.0" in measured and "logprob_mismatch" not in unmeasured
    assert "reward_local" not in measured and "swarm_node_loss" in unmeasured


def test_tensorboard_files_hold_the_figures_by_round(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with closing(TensorBoard(folder := RunFolder(tmp_path))) as board:
        for record in rounds(3):
            board.write(record)
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    rewards = [(e.step, round(e.value, 3)) for e in events.Scalars("reward_local")]
    assert rewards == [(1, 0.333), (2, 0.667), (3, 1.0)]
    assert events.Scalars("refused/expired")[0].value == 5


def test_open_sinks_follows_the_config(tmp_path, capsys):
    for sink in open_sinks(Config(), RunFolder(tmp_path), json=True):
        sink.write(RECORD)
        sink.close()
    assert read_history(tmp_path) == [RECORD]
    assert RoundRecord.from_dict(json.loads(capsys.readouterr().out)) == RECORD


def test_failed_sink_releases_the_other_sinks(tmp_path, monkeypatch):
    closed = []
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr(JsonLinesFile, "close", lambda lines: closed.append(lines))
    config = Config.with_overrides({"monitor.loggers": ["tensorboard"]})
    with pytest.raises(NodeError, match="tensorboard"):
        open_sinks(config, RunFolder(tmp_path))
    (lines,) = closed
    lines.file.close()


def test_lines_are_written_after_the_disk_has_space_again(tmp_path):
    script = """
import pytest, resource, sys
from pathlib import Path
from node.errors import DiskFullError
from node.monitor.groups import GroupsFile
from node.monitor.sinks import JsonLinesFile
from tests.node.monitor.test_groups_file import GROUP
from tests.node.monitor.test_monitor import rounds
lines = JsonLinesFile(Path(sys.argv[1]), 1 << 20)
groups = GroupsFile(Path(sys.argv[1]).with_name("groups.jsonl"), lambda: [GROUP] * 20, 1 << 20)
first, second, third, fourth = rounds(4)
lines.write(first)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (lines.file.tell() + 100, most))
for write in (lambda: lines.write(second), lambda: lines.write(third), groups.close):
    with pytest.raises(DiskFullError):
        write()
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
lines.write(fourth)
"""
    path = tmp_path / "metrics.jsonl"
    python(script, str(path), check=True)
    assert read_history(tmp_path) == rounds(4)
    assert not (tmp_path / "groups.jsonl").stat().st_size, "no part of a group is left"
