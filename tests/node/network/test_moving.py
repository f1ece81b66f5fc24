"""Whether a node is to leave its swarm, by as much of an id as it was told."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config.config import Config
from node.errors import NodeError, UsageError
from node.network.founding import found_swarm
from node.network.moving import enter
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import swarm_id

HERE, THERE = (found_swarm(Identity.generate(), name=name) for name in ("here", "there"))


def test_a_beginning_of_this_swarm_and_of_one_left_before_is_refused_and_both_are_named(
    tmp_path: Path,
) -> None:
    folder, here = RunFolder(tmp_path), swarm_id(HERE).hex()
    left = here[:8] + ("0" if here[8] == "f" else "f") * 56
    folder.manifest.write_bytes(HERE)
    (folder.swarms / left).mkdir(parents=True)
    (folder.swarms / left / folder.manifest.name).write_bytes(THERE)
    with pytest.raises(UsageError) as refused:
        enter(Config(), folder, here[:8])
    assert here in str(refused.value) and left in str(refused.value)
    for wanted in ("", here[:9], here):
        assert enter(Config(), folder, wanted) == ()
    assert folder.manifest.read_bytes() == HERE


def test_a_node_leaves_a_swarm_of_an_earlier_version_and_else_is_told_to(tmp_path: Path) -> None:
    folder, there = RunFolder(tmp_path), swarm_id(THERE).hex()
    earlier = HERE[:7] + b"1" + HERE[8:]
    left = swarm_id(earlier).hex()
    assert left == swarm_id(HERE).hex()
    folder.manifest.write_bytes(earlier)
    (folder.swarms / there).mkdir(parents=True)
    (folder.swarms / there / folder.manifest.name).write_bytes(THERE)
    with pytest.raises(NodeError, match=r"version 1 of the protocol.*join --swarm ID"):
        enter(Config(), folder, "")
    (note,) = enter(Config(), folder, there[:12])
    assert f"moved from swarm {left[:16]}" in note
    assert folder.manifest.read_bytes() == THERE
    assert (folder.swarms / left / folder.manifest.name).read_bytes() == earlier
