import io
import json
import stat
from collections import deque
from dataclasses import asdict, replace

import pytest

from node.errors import NodeError
from node.monitor.groups import (
    KEPT,
    LONGEST,
    SECONDS,
    RolloutsFile,
    ShownRollout,
    in_full,
    read_rollouts,
    shortened,
)
from node.monitor.record import Terminal
from tests.node.monitor.test_monitor import RECORD
from tests.node.monitor.test_output import ACTS

PEER = "12D3KooWGBdmqRrDHgBDbZnuBFUxGwHrqDvR6ChvVx6ZBXyzwrQf"
OWN = ShownRollout(7, "sums", 1, "Calculate 3 + 4.\nAnswer:", " 7", 1.0, truncated=False)
THEIRS = replace(
    OWN, completion="\x1b[2J 8\nround 9, own", reward=0.25, truncated=True, author=PEER
)


def drawn(thing, width=100):
    terminal = Terminal()
    terminal.file, terminal.width = io.StringIO(), width
    terminal.print(thing)
    return terminal.file.getvalue().splitlines()


@pytest.mark.parametrize("most", [30, 31, 100])
def test_shortened_keeps_both_ends(most):
    text = "begin" + 10_000 * "x" + "end"
    short = shortened(text, most)
    assert len(short) == most
    assert short[0] == "b" and short.endswith("d") and "(10008 characters)" in short
    assert shortened("short", 5) == "short"


def test_rollouts_round_trip_in_a_private_file(tmp_path):
    path, last = tmp_path / "rollouts.jsonl", deque(maxlen=KEPT)
    last.extend([OWN, replace(THEIRS, completion=ACTS + "\u2028")])
    RolloutsFile(path, last).write(RECORD)
    assert read_rollouts(path) == [*last] and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_rollouts_file_size_is_bounded(tmp_path):
    path, last = tmp_path / "rollouts.jsonl", deque(maxlen=KEPT)
    long = shortened(10**6 * "\U0001f642", LONGEST)
    last.extend(2 * KEPT * [replace(THEIRS, prompt=long, completion=long)])
    RolloutsFile(path, last).write(RECORD)
    assert len(read_rollouts(path)) == KEPT and path.stat().st_size < 3_000_000


def test_sink_batches_short_rounds_and_flushes_on_close(tmp_path):
    path, last, now, written = tmp_path / "rollouts.jsonl", deque(maxlen=KEPT), [0.0], []
    sink = RolloutsFile(path, last, lambda: now[0])
    for number, now[0] in enumerate((0.0, SECONDS / 2, SECONDS, SECONDS * 1.5), 1):
        last.extend([replace(OWN, round=number)])
        sink.write(RECORD)
        written.append(len(read_rollouts(path)))
    assert written == [1, 1, 3, 3]
    sink.close()
    assert len(read_rollouts(path)) == 4
    before = path.stat().st_ino
    sink.close()
    assert path.stat().st_ino == before, "a second close writes nothing"


def test_missing_or_invalid_rollouts_file_is_reported(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    with pytest.raises(NodeError, match=r"no rollouts yet in: .*first round"):
        read_rollouts(path)
    for content in ('{"round": 7}', "[1]", "{half", '"\xff"'):
        path.write_text(f"{json.dumps(asdict(OWN))}\n{content}\n", encoding="latin-1")
        with pytest.raises(NodeError, match=r"not a file of rollouts: .*Delete it"):
            read_rollouts(path)


def test_in_full_indents_every_line_of_peer_text():
    lines = drawn(in_full([OWN, THEIRS]))
    assert [line.rstrip() for line in lines if not line.startswith(" ")] == [
        "round 7, local, sums level 1, reward 1.000",
        "round 7, by peer 12D3KooWGBdmqRrD…, sums level 1, reward 0.250, truncated",
    ]
    assert "".join(lines).isprintable()
    assert any(line.rstrip().endswith(r"\x1b[2J 8") for line in lines)
    text = 50 * "so " + "round 9, own, sums level 1, reward 1.000"
    narrow = drawn(in_full([replace(THEIRS, completion=text)]), 60)
    assert len([line for line in narrow if line.startswith("round")]) == 1
