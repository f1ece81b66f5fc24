import json
import math
import time
from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest

from node.errors import NodeError
from node.monitor import groups as module
from node.monitor.groups import GroupsFile, ShownCompletion, ShownGroup, ShownTokens
from swarm.verification import PENALTIES
from tests.node.monitor.test_monitor import RECORD

RIGHT = ShownCompletion("2", 1.0, 0.5, False, ShownTokens(("2", "."), (-0.5, -1.0), (3, 3)))
WRONG = ShownCompletion("3", 0.0, -0.5, True)
GROUP = ShownGroup(1, 1.7e9, "own", "sums", 0, None, "1 + 1", True, None, (RIGHT, WRONG))


def write(path, *rounds, most_bytes=4 << 20):
    """Write one round after another, with clock times an hour apart."""
    hours, pending = count(step=3600), list(rounds)
    file = GroupsFile(
        path, lambda: pending.pop(0) if pending else [], most_bytes, now=lambda: float(next(hours))
    )
    with closing(file):
        while pending:
            file.write(RECORD)
            time.sleep(0.001)


def groups(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_group_ids_continue_after_a_restart(tmp_path):
    path = tmp_path / "groups.jsonl"
    write(path, [GROUP, GROUP])
    write(path, [GROUP])
    assert [each["id"] for each in groups(path)] == [1, 2, 3]
    completions = groups(path)[0]["completions"]
    tokens = {"text": ["2", "."], "logprob": [-0.5, -1.0], "version": [3, 3], "entropy": []}
    assert completions[0]["tokens"] == tokens
    assert [each["finish"] for each in completions] == ["stop", "length"]
    assert path.stat().st_mode & 0o077 == 0


def test_refused_groups_do_not_displace_local_ones(tmp_path):
    path, most = tmp_path / "groups.jsonl", 100_000
    refused = replace(GROUP, origin="refused", prompt="x" * 500)
    write(path, [GROUP] * 10, *([refused] * 50 for _ in range(20)), most_bytes=most)
    stored = groups(path)
    assert path.stat().st_size <= most
    assert [each["id"] for each in stored if each["origin"] == "own"] == list(range(1, 11))
    assert stored[-1]["id"] == 1010, "the newest group is stored"


def test_full_file_keeps_the_newest_of_each_origin(tmp_path):
    path, most = tmp_path / "groups.jsonl", 200_000
    external = replace(GROUP, origin="external", author="ab")
    write(path, *([GROUP, external] * 50 for _ in range(8)), most_bytes=most)
    numbers = [each["id"] for each in groups(path)]
    assert numbers == sorted(numbers) and numbers[-1] == 800 and len(numbers) >= module.KEPT_GROUPS


def test_partial_line_damages_no_other_group(tmp_path):
    path = tmp_path / "groups.jsonl"
    write(path, [GROUP])
    with path.open("ab") as file:
        file.write(b'{"id": 2, "round": 1, "ti')
    write(path, [GROUP])
    lines = path.read_text().splitlines()
    assert [json.loads(lines[n])["id"] for n in (0, 2)] == [1, 2]


def test_long_groups_lose_tokens_and_fit_the_size_limit():
    long = ShownTokens(("word",) * 500, (-1.0,) * 500, (1,) * 500)
    answers = tuple(ShownCompletion("y" * 10_000, 1.0, 0.0, False, long) for _ in range(64))
    line = replace(GROUP, completions=answers).line(1)
    entry = json.loads(line)
    assert len(line) <= module.MAX_GROUP_BYTES and len(entry["completions"]) == 16
    assert all(each["tokens"]["text"] == [] for each in entry["completions"])
    wide = replace(GROUP, prompt="\N{SNOWMAN}" * 10_000, completions=answers[:15])
    assert len(wide.line(1)) <= module.MAX_GROUP_BYTES


def test_file_stores_nan_as_null_and_any_text_in_one_line():
    odd = ShownCompletion("x", math.nan, math.inf, False, ShownTokens(("x",), (-math.inf,), (0,)))
    (entry,) = json.loads(replace(GROUP, completions=(odd,)).line(1))["completions"]
    assert (entry["reward"], entry["advantage"], entry["tokens"]["logprob"]) == (None, None, [None])
    line = replace(GROUP, prompt="\ud800\u2028\n\x00").line(1)
    assert line.count(b"\n") == 1 and json.loads(line)["prompt"] == "\ud800\u2028\n\x00"


def test_unwritable_folder_is_reported_on_write(tmp_path):
    with pytest.raises(NodeError, match="cannot write"):
        write(tmp_path / "no" / "groups", [GROUP])


def test_every_penalty_has_a_description():
    assert set(module.WORDS) == set(PENALTIES)
