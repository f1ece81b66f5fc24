"""What a node's run folder grows to."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.pool import LEAST_USES
from tests.end_to_end.commands import join
from tests.end_to_end.watching import journal_rows

pytestmark = pytest.mark.processes

LOCAL, ROUNDS, SAVED = 128, 60, 8
MANY = (
    f"--set=mixture.local={LOCAL}",
    "--set=mixture.external=0",
    "--set=engine.group_size=2",
    "--set=engine.max_new_tokens=2",
    f"--set=schedule.checkpoint_every={SAVED}",
    f"--rounds={ROUNDS}",
)


def test_with_each_checkpoint_a_node_forgets_the_uses_that_no_later_start_needs(
    tmp_path: Path,
) -> None:
    with join(tmp_path, *MANY) as node:
        assert node.wait() == 0, node.err
        ((rows, uses),) = journal_rows(node.run.root, "SELECT count(*), max(use) FROM used")
    assert uses == LOCAL * ROUNDS > LEAST_USES + 2 * SAVED * LOCAL
    assert rows <= LEAST_USES + SAVED * LOCAL
