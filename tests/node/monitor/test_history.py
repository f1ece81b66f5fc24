import json
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.config import Config
from node.errors import NodeError
from node.monitor.history import Line, read_history, read_records, thinned
from node.monitor.sinks import JsonLinesFile, open_sinks
from node.storage.run_folder import RunFolder
from tests.node.monitor.test_monitor import RECORD
from tests.node.programs import python
from tests.swarm.test_journal import killed_after

EVERY = 10
"""Rounds between two evaluations; the first one is in round 1."""
LINE = len(json.dumps(replace(RECORD, round=10_000, reward_eval=0.5).to_dict())) + 1
"""Maximum bytes per record."""


def record(number):
    return replace(RECORD, round=number, reward_eval=0.5 if number % EVERY == 1 else None)


def lines(folder, most_lines):
    return closing(JsonLinesFile(folder / "metrics.jsonl", most_lines * LINE))


def write(file, numbers):
    for number in numbers:
        file.write(record(number))


def rounds(folder):
    return [record.round for record in read_history(folder)]


def size(folder):
    return sum(each.stat().st_size for each in folder.iterdir())


def keep(folder, most_lines, numbers):
    with lines(folder, most_lines) as file:
        write(file, numbers)


def test_history_file_stays_bounded_and_spans_the_run(tmp_path):
    with lines(tmp_path, 200) as file:
        for number in range(1, 3001):
            file.write(record(number))
            assert size(tmp_path) <= 200 * LINE
    history, kept = read_history(tmp_path), rounds(tmp_path)
    assert kept[0] == 1
    assert kept[-25:] == list(range(2976, 3001)), "the newest rounds are complete"
    gaps = [later - earlier for earlier, later in pairwise(kept)]
    assert max(gaps) <= 1024, "no long part of the run is missing"
    assert history == [record(each.round) for each in history], "remaining records are unchanged"
    old = [each for each in history if each.round < 1500]
    assert len(old) >= 4 and all(each.reward_eval is not None for each in old), "evaluations stay"
    assert (tmp_path / "metrics.jsonl").stat().st_mode & 0o077 == 0


def test_100000_rounds_fit_one_mebibyte_and_span_the_run(tmp_path):
    last = 100_000
    with closing(JsonLinesFile(tmp_path / "metrics.jsonl", 1 << 20)) as file:
        write(file, range(1, last + 1))
    assert size(tmp_path) <= 1 << 20
    kept = rounds(tmp_path)
    assert (kept[0], kept[-100:]) == (1, list(range(last - 99, last + 1)))
    for begin in range(0, last, last // 8):
        assert sum(begin <= number < begin + last // 8 for number in kept) >= 4


def test_resumed_run_is_thinned_to_a_smaller_limit(tmp_path):
    keep(tmp_path, 1000, range(1, 901))
    keep(tmp_path, 100, [901])
    assert size(tmp_path) <= 100 * LINE and rounds(tmp_path)[0] == 1 and rounds(tmp_path)[-1] == 901


def test_repeated_rounds_replace_earlier_and_later_records(tmp_path):
    with lines(tmp_path, 100) as file:
        write(file, range(1, 16))
        for number in (11, 12):
            file.write(replace(record(number), reward_local=0.75))
        assert rounds(tmp_path) == list(range(1, 13))
        assert [each.reward_local for each in read_history(tmp_path)[-3:]] == [0.25, 0.75, 0.75]
        assert len(read_records(tmp_path)) == 17
        write(file, range(13, 200))
    assert read_history(tmp_path) == read_records(tmp_path), "thinning deletes replaced records"


def test_reader_skips_a_partial_line_and_names_a_damaged_one(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    assert read_history(tmp_path) == []
    keep(tmp_path, 100, [1, 2])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 3, "poli')
    assert rounds(tmp_path) == [1, 2]
    changes = {"round": "x"}, {"bytes_in": 10**400}, {"reward_local": "x"}, {"seconds": 5}
    lines_of = [json.dumps(record(3).to_dict() | each).encode() + b"\n" for each in changes]
    for damage in (b"\0\0\0\n", b"[]\n", b'{"round": 3}\n', b"\xff\n", *lines_of):
        path.write_bytes(whole + damage)
        with pytest.raises(NodeError, match=r"line 3 is not a record.*metrics\.jsonl.*Delete that"):
            read_history(tmp_path)
    path.unlink()
    with lines(tmp_path, 10) as file:
        write(file, range(1, 9))
        path.write_bytes(path.read_bytes().replace(b'{"round": 3', b"gone"))
    keep(tmp_path, 10, range(9, 13))
    assert 3 not in rounds(tmp_path) and rounds(tmp_path)[-1] == 12
    assert "damaged line" in caplog.text


def test_thinning_loses_no_line_on_a_full_disk(tmp_path):
    script = """
import resource, signal, sys
from pathlib import Path
from node.errors import NodeError
from tests.node.monitor.test_history import LINE, lines, record, rounds, write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
with lines(folder, 20) as file:
    write(file, range(1, 21))
    before = rounds(folder)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * LINE, most))
    for number in range(21, 25):
        try:
            file.write(record(number))
        except NodeError:
            assert rounds(folder) == before
            assert [each.name for each in folder.iterdir()] == ["metrics.jsonl"]
        else:
            raise AssertionError("there was no room")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    file.write(record(25))
"""
    python(script, str(tmp_path), check=True)
    assert rounds(tmp_path)[-5:] == list(range(21, 26))


@pytest.mark.parametrize("count", [1, 39, 58, 300])
def test_killed_process_loses_no_line(tmp_path, count):
    script = """
        import sys
        from pathlib import Path
        from tests.node.monitor.test_history import lines, record
        with lines(Path(sys.argv[1]), 40) as file:
            for number in range(1, 10**9):
                file.write(record(number))
                print(number, flush=True)
    """
    printed = [int(line) for line in killed_after(count, script, tmp_path)]
    assert rounds(tmp_path)[0] == 1 and rounds(tmp_path)[-1] in (printed[-1], printed[-1] + 1)
    keep(tmp_path, 40, [10**9])
    assert rounds(tmp_path)[-1] == 10**9


def test_metrics_mib_limits_the_file_size(tmp_path):
    config = Config.with_overrides({"monitor.metrics_mib": 1, "monitor.live": False})
    large = replace(RECORD, counters={"x" * 1000: 1.0})
    sinks = open_sinks(config, RunFolder(tmp_path))
    for number in range(1, 1200):
        sinks[0].write(replace(large, round=number))
    for sink in sinks:
        sink.close()
    assert size(tmp_path) <= 1 << 20
    assert 300 < len(rounds(tmp_path)) < 1100 and rounds(tmp_path)[0] == 1


@given(
    st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=300),
    st.integers(0, 300),
)
def test_thinning_is_bounded_stable_and_keeps_the_last_round(found, most):
    all_of = [Line(place, *each, 1) for place, each in enumerate(found)]
    kept = thinned(all_of, most)
    last = [line for line in all_of if all(n > line.round for n, _ in found[line.number + 1 :])]
    assert kept == sorted(kept) and set(kept) <= set(last) and len(kept) <= max(most, 24)
    assert kept[-1] == all_of[-1]
    assert thinned(kept, most) == kept or len(kept) > most
    if len(last) <= most:
        assert kept == last
