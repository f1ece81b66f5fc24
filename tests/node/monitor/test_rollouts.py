import io
from dataclasses import replace

import pytest

from node.errors import NodeError
from node.monitor.groups import ShownRollout, in_full, read_rollouts, shortened
from node.monitor.record import Terminal
from protocol.identity import Identity, peer_id_of
from tests.node.monitor.test_groups_file import GROUP, RIGHT, WRONG, write

PEER = "12D3KooWGBdmqRrDHgBDbZnuBFUxGwHrqDvR6ChvVx6ZBXyzwrQf"
AUTHOR = Identity.generate().author
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


def test_rollouts_are_the_ends_of_a_group_per_round_and_origin(tmp_path):
    path = tmp_path / "groups.jsonl"
    useless = replace(GROUP, reason="All equal.", completions=(WRONG, WRONG))
    theirs = replace(GROUP, origin="external", author=AUTHOR.hex(), completions=(RIGHT, WRONG))
    refused = replace(theirs, origin="refused", in_update=False)
    write(path, [useless, GROUP, theirs, refused], [replace(useless, round=2)], [GROUP])
    rollouts = [(r.round, r.author, r.completion, r.reward) for r in read_rollouts(path)]
    peer = peer_id_of(AUTHOR)
    assert rollouts == [
        *((1, None, "3", 0.0), (1, None, "2", 1.0)),
        *((1, peer, "3", 0.0), (1, peer, "2", 1.0), (2, None, "3", 0.0)),
        *((1, None, "3", 0.0), (1, None, "2", 1.0)),
    ]
    assert [r.truncated for r in read_rollouts(path)][:2] == [True, False]


def test_missing_or_invalid_groups_file_is_reported(tmp_path):
    path = tmp_path / "groups.jsonl"
    with pytest.raises(NodeError, match=r"no rollouts yet in: .*first round"):
        read_rollouts(path)
    path.write_text('{"id": 1, "origin": "own"}\n')
    with pytest.raises(NodeError, match=r"not a file of groups: .*Delete it"):
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
