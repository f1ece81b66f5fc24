"""The harness knows what its nodes are at."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.crew import ChaosNode
from tests.chaos.swarm_parts import wait_for


class OneSide:
    """A network that nothing is special about."""

    def prefix(self, side: int) -> list[str]:
        """Before every command: one that does nothing but last."""
        return [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_node_is_at_work_once_it_has_done_a_round_of_its_present_life(tmp_path: Path) -> None:
    node = ChaosNode(OneSide(), tmp_path / "node", "node", 0)
    node.run_folder.mkdir()
    records = node.run_folder / "metrics.jsonl"
    records.write_bytes(b"1\n2\n3, and killed")
    node.start()
    try:
        assert not node.at_work
        os.truncate(records, 4)
        os.utime(records, (time.time() + 60, time.time() + 60))
        assert not node.at_work
        with records.open("ab") as file:
            file.write(b"3")
            file.flush()
            assert not node.at_work
            file.write(b"\n")
        assert node.at_work
        node.kill()
        assert not node.at_work
    finally:
        node.close()


def test_who_ends_instead_of_coming_up_is_named_at_once_with_its_last_words(
    tmp_path: Path,
) -> None:
    (tmp_path / "output.log").write_text("TypeError: missing argument\n")
    with pytest.raises(RuntimeError, match="ended with 1:\nTypeError: missing argument"):
        wait_for(lambda: False, lambda: 1, tmp_path)
