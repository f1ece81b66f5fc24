"""What a node's status file says from its start to its end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.run.status_file import StatusFile, present_status
from node.storage.run_folder import RunFolder
from swarm.member import PeerInfo
from tests.node.monitor.test_monitor import RECORD

PEER = PeerInfo(peer_id="12D3KooWlarry", author=b"larry", connected=True, policy_step=1, groups=0)


class Accounts:
    """Knows nobody."""

    def get(self, author: bytes) -> SimpleNamespace:
        return SimpleNamespace(
            author=author, bytes_in=0, bytes_out=0, admitted=0, refused={}, strikes=0.0
        )

    def banned(self, author: bytes) -> bool:
        return False


class Member:
    """A membership with one peer."""

    swarm_id = b"s" * 32
    manifest = SimpleNamespace(name="sums")
    accounts = Accounts()

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(peer_id="12D3KooWme", addresses=("/ip4/127.0.0.1",), peers=(PEER,))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_every_state_of_a_run_is_told_and_the_last_record_outlives_it(folder):
    with folder.locked():
        status = StatusFile(folder)
        status.start()
        assert not folder.status.exists(), "there is nothing to say yet"
        assert present_status(folder)["state"] == "starting"
        status.run(Member())
        told = present_status(folder)
        assert (told["state"], told["pid"], told["record"]) == ("running", os.getpid(), None)
        assert told["peers"][0]["connected"] and told["age_s"] < 60.0
        status.write(RECORD)
        status.stop()
        assert present_status(folder)["state"] == "stopping"
        status.write(RECORD)
        assert present_status(folder)["state"] == "stopping", "a round that was on its way"
        status.end()
        status.stop()
    told = present_status(folder)
    assert (told["state"], told["running"]) == ("stopped", False)
    assert not told["peers"][0]["connected"]
    with folder.locked():
        again = StatusFile(folder)
        again.start()
        told = present_status(folder)
        assert (told["state"], told["record"]) == ("starting", RECORD.to_dict())
        again.run(Member())
    told = present_status(folder)
    assert (told["state"], told["record"]) == ("crashed", RECORD.to_dict())
