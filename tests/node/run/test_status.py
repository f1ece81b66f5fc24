import os
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from node.run.status import MOST_PEERS, StatusFile
from node.storage.run_folder import RunFolder, present_status
from protocol.profile import Profile
from swarm.common.clock import SystemClock
from swarm.journal import Journal
from swarm.member import PeerInfo
from swarm.reputation import PENALTY_HALF_LIFE_S, Account, Accounts, Reputation
from swarm.transport.transport import Reach
from tests.node.monitor.test_monitor import RECORD

PEER = PeerInfo("12D3KooWlarry", b"larry", True, policy_step=1, groups=0, heard=1.7e9)


def member(*peers):
    """Return a membership with peers; only groups of larry were admitted."""
    admitted = [Account(b"larry", admitted=3, admitted_at=1.6e9)]
    status = SimpleNamespace(
        peer_id="12D3KooWme",
        addresses=("/ip4/127.0.0.1",),
        peers=peers or (PEER,),
        reach=Reach("relayed", "no peer could dial it", "open a port"),
    )
    return SimpleNamespace(
        swarm_id=b"s" * 32,
        manifest=SimpleNamespace(name="sums"),
        accounts=SimpleNamespace(snapshot=lambda: admitted, ignored=frozenset),
        status=lambda: status,
    )


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_status_reports_each_state_and_keeps_the_last_record(folder):
    def told():
        found = present_status(folder)
        return found["state"], found["record"]

    with folder.locked():
        status = StatusFile(folder)
        status.start()
        assert not folder.status.exists(), "a starting node writes no status"
        assert present_status(folder)["state"] == "starting"
        status.run(member())
        running = present_status(folder)
        assert (*told(), running["pid"]) == ("running", None, os.getpid())
        (peer,) = running["peers"]
        assert peer["connected"] and running["age_s"] < 60.0
        assert (peer["heard"], peer["admitted_at"]) == (1.7e9, 1.6e9), "Unix timestamps"
        reach = {"way": "relayed", "cause": "no peer could dial it", "remedy": "open a port"}
        assert running["reach"] == reach
        status.write(RECORD)
        status.stop()
        assert told()[0] == "stopping"
        status.write(RECORD)
        assert told()[0] == "stopping", "a late round keeps the state"
        status.end()
        status.stop()
    stopped = present_status(folder)
    assert (stopped["state"], stopped["running"]) == ("stopped", False)
    assert not stopped["peers"][0]["connected"]
    with folder.locked():
        again = StatusFile(folder)
        again.start()
        assert told() == ("starting", RECORD.to_dict())
        again.run(member())
    assert told() == ("crashed", RECORD.to_dict())


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
def test_peer_without_groups_or_steps_is_a_bootstrap_node(folder, changes, seed):
    with folder.locked():
        StatusFile(folder).run(member(replace(PEER, **{"author": b"silent", **changes})))
    assert present_status(folder)["peers"][0]["bootstrap"] is seed


def test_journal_reads_do_not_grow_with_the_peer_count(folder):
    journal = Journal(":memory:", SystemClock())
    accounts, authors = Accounts(journal, SystemClock()), [b"number %d" % i for i in range(100)]
    accounts.blocked = frozenset(authors[7:8])
    accounts.admit(authors[3], 2)

    def reads(count):
        found = member(*(replace(PEER, author=author) for author in authors[:count]))
        found.accounts = accounts
        with patch.object(journal, "read", wraps=journal.read) as read, folder.locked():
            StatusFile(folder).run(found)
        return read.call_count

    assert reads(1) == reads(100)
    shown = present_status(folder)["peers"]
    assert [i for i, peer in enumerate(shown) if peer["banned"]] == [7]
    assert [peer["admitted"] for peer in shown[2:5]] == [0, 2, 0]


def test_sybils_do_not_displace_useful_peers_in_the_status(folder):
    said = Profile("\U0001f642" * 36, "\U0001f642" * 120, "m" * 64, "v" * 32, 1.7e9)
    sybils = [
        replace(PEER, peer_id=f"{i:052}", author=b"%032d" % i, connected=False, profile=said)
        for i in range(3 * MOST_PEERS)
    ]
    sybils[5], sybils[7] = replace(sybils[5], connected=True), replace(sybils[7], heard=1.8e9)
    useful = Account(sybils[9].author, reputation=Reputation(1.0, 1.7e9))
    membership = member(*sybils)
    membership.accounts.snapshot = lambda: [useful]
    with folder.locked():
        StatusFile(folder).run(membership)
        found = present_status(folder)
    shown = [peer["peer_id"] for peer in found["peers"]]
    assert len(shown) == MOST_PEERS and found["peers_more"] == 2 * MOST_PEERS
    assert shown == sorted(shown)
    assert {sybils[n].peer_id for n in (5, 7, 9)} <= set(shown)
    assert folder.status.stat().st_size < 1 << 20


def test_status_shows_decayed_penalties(folder):
    at = time.time() - 10 * PENALTY_HALF_LIFE_S
    penalized = Account(b"larry", penalties=4.0, penalized_at=at)
    membership = member()
    membership.accounts.snapshot = lambda: [penalized]
    status = StatusFile(folder)
    status.run(membership)
    (peer,) = present_status(folder)["peers"]
    assert 0.0 < peer["strikes"] <= 4.0 / 2**10


def test_status_includes_peer_profiles_or_null(folder):
    ben = replace(PEER, peer_id="12D3KooWben", profile=Profile("ben", "", "tiny", "0.1.0", 1.7e9))
    with folder.locked():
        StatusFile(folder).run(member(PEER, ben))
    keys = ("peer_id", "name", "line", "model", "version")
    silent, said = ([told[key] for key in keys] for told in present_status(folder)["peers"])
    assert silent == ["12D3KooWlarry", None, None, None, None]
    assert said == ["12D3KooWben", "ben", None, "tiny", "0.1.0"]
