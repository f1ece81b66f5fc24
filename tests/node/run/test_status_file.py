"""What a node's status file says from its start to its end."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.monitor.present_status import present_status
from node.run.status import StatusFile
from node.storage.run_folder import RunFolder
from protocol.profile import Profile
from swarm.member import PeerInfo
from swarm.reputation import Account
from swarm.transport.transport import Reach
from tests.node.monitor.test_monitor import RECORD

PEER = PeerInfo(
    peer_id="12D3KooWlarry",
    author=b"larry",
    connected=True,
    policy_step=1,
    groups=0,
    heard=1.7e9,
)


class Accounts:
    """Of one whose groups were admitted, and of nobody else."""

    def get(self, author: bytes) -> Account:
        if author == b"larry":
            return Account(author, admitted=3, admitted_at=1.6e9)
        return Account(author)

    def banned(self, author: bytes) -> bool:
        return False


class Member:
    """A membership with one peer, or some."""

    swarm_id = b"s" * 32
    manifest = SimpleNamespace(name="sums")
    accounts = Accounts()

    def __init__(self, *peers: PeerInfo) -> None:
        self._peers = peers or (PEER,)

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(
            peer_id="12D3KooWme",
            addresses=("/ip4/127.0.0.1",),
            peers=self._peers,
            reach=Reach("relayed", "no peer could dial it", "open a port"),
        )


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
        assert told["reach"] == {
            "way": "relayed",
            "cause": "no peer could dial it",
            "remedy": "open a port",
        }
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


def test_when_a_peer_was_heard_and_admitted_last_is_told_in_unix_time(folder):
    with folder.locked():
        StatusFile(folder).run(Member())
    (peer,) = present_status(folder)["peers"]
    assert (peer["heard"], peer["admitted_at"]) == (1.7e9, 1.6e9)


@pytest.mark.parametrize(
    ("changes", "seed"),
    [
        ({"policy_step": 0}, True),
        ({"policy_step": 0, "groups": 2}, False),
        ({"policy_step": 0, "author": b"larry"}, False),
        ({"policy_step": 1}, False),
        ({"policy_step": None}, False),
    ],
)
def test_who_announces_and_never_shared_anything_is_shown_as_a_bootstrap_node(
    folder, changes, seed
):
    with folder.locked():
        StatusFile(folder).run(Member(replace(PEER, **{"author": b"silent", **changes})))
    assert present_status(folder)["peers"][0]["bootstrap"] is seed


def test_what_a_peer_says_of_itself_is_told_beside_its_id_and_null_where_it_does_not(folder):
    ben = Profile("ben", "", "tiny", "0.1.0", 1.7e9)
    named = replace(PEER, peer_id="12D3KooWben", profile=ben)
    with folder.locked():
        StatusFile(folder).run(Member(PEER, named))
    silent, told = present_status(folder)["peers"]
    keys = ("peer_id", "name", "line", "model", "version")
    assert [silent[key] for key in keys] == ["12D3KooWlarry", None, None, None, None]
    assert [told[key] for key in keys] == ["12D3KooWben", "ben", None, "tiny", "0.1.0"]
