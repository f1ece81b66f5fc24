import asyncio
import logging
import socket
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest

from experiments.memory_transport import MemoryNetwork, MemoryTransport
from node.config.config import Config
from node.config.registry import TRANSPORTS
from node.demo.run import SEED, DemoSettings
from node.errors import ConfigError, NodeError, UsageError
from node.network import membership as module
from node.network.creation import create_swarm
from node.network.membership import MIB, Membership, check_work
from node.network.pinned_manifest import enter, request_manifest
from node.network.transports import check_transport, why_not_free
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import AllowList, Open, ProofOfWork, swarm_id
from swarm.admission import Admission
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.journal import MEMORY, Journal
from swarm.member import Experience, assemble
from swarm.pool import Pool
from swarm.transport.transport import PeerUnreachable, own_ports
from tests.swarm.experience_parts import group
from tests.swarm.network_parts import ORIGIN

FRIEND = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{FRIEND}"
HERE, THERE = (create_swarm(Identity.generate(), name=name) for name in ("here", "there"))


class FakeVerifier:
    """Replaces a verifier, whose processes take seconds to start."""

    entered = False

    def __init__(self, *arguments, outside, **options):
        self.outside = outside

    def __enter__(self):
        self.entered = True
        return self

    def __exit__(self, *error):
        self.entered = False


class Parts:
    """A membership with an in-memory network."""

    def __init__(self, monkeypatch, folder, *, takes=True, journal=None, profile=None, **network):
        clock, self.counters, self.folder = SystemClock(), Counters(), RunFolder(folder)
        self.network = MemoryNetwork(clock)
        if not self.folder.identity.exists():
            self.folder.create()
            Identity.create(self.folder.identity)
        self.told: dict[str, object] = {}
        overrides = {f"network.{name}": value for name, value in network.items()}
        overrides |= {f"profile.{name}": text for name, text in (profile or {}).items()}
        config = Config.with_overrides(overrides)
        self.journal = journal or Journal(MEMORY, clock)
        pool = Pool(self.journal, 8, 60.0, clock, self.counters)
        self.experience = Experience.around(pool)
        parts = config, self.folder, self.experience, self.counters
        self.membership = Membership(*parts, takes=takes, model="tiny" if takes else "")
        kinds = SimpleNamespace(open=lambda name, options: self)
        monkeypatch.setattr(module, "TRANSPORTS", kinds)
        monkeypatch.setattr(module, "Verifier", FakeVerifier)
        monkeypatch.setattr(module, "Admission", self._admission)
        monkeypatch.setattr(module, "assemble", self._assemble)

    def open(self, *arguments, beside):
        """Open a transport, as a transport backend does."""
        self.told["beside"] = beside
        return MemoryTransport(self.network, "12D3anna", self.counters)

    def _admission(self, manifest, swarm, verifier, *rest, **options):
        self.told["verifier"] = verifier
        return Admission(manifest, swarm, verifier, *rest, **options)

    def _assemble(self, *arguments, **options):
        self.told |= options
        return assemble(*arguments, **options)


@pytest.fixture
def parts(monkeypatch, tmp_path):
    return partial(Parts, monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


def test_node_creates_a_swarm_serves_and_cleans_up(parts):
    before = set(threading.enumerate())
    made = parts(upload_mib_per_s=2.0, pulls_per_epoch=5, gossip_peers=4)
    with made.membership as here:
        assert list(made.network.members) == ["12D3anna"]
        assert here.status().peer_id == "12D3anna"
        assert "created a swarm" in here.notes[0] and len(here.notes) == 1
        assert made.told["upload_rate"] == 2.0 * MIB
        assert (made.told["limits"].pulls_per_epoch, made.told["limits"].gossip_peers) == (5, 4)
        assert made.told["beside"] is True and made.told["profile"] is None, "it has no name"
        assert made.told["verifier"].outside and made.told["verifier"].entered
    assert made.network.members == {} and not made.told["verifier"].entered
    assert not [each for each in set(threading.enumerate()) - before if each.name == "network"]
    assert here.failure is None
    assert made.counters.snapshot().get("member_stopped", 0) == 0


@pytest.mark.parametrize("takes", [False, True])
def test_bootstrap_node_publishes_no_model_and_pulls_nothing(parts, takes):
    made = parts(takes=takes, profile={"name": "Anna’s cellar"}, pulls_per_epoch=5)
    with made.membership:
        entry = made.told["profile"]
        assert made.told["limits"].pulls_per_epoch == 5 * takes and made.told["beside"] is takes
    assert (entry.name, entry.line, entry.model) == ("Anna’s cellar", "", "tiny" if takes else "")
    assert entry.made > 1.7e9


@pytest.mark.parametrize("met", [False, True])
def test_node_notes_absent_peers_and_the_manifest_source(parts, met, monkeypatch):
    post = create_swarm(Identity.generate(), name="test"), ("the manifest came by post",)
    made = parts(peers=[ADDRESS])
    monkeypatch.setattr(module, "pinned_manifest", AsyncMock(return_value=post))
    if met:
        made.network.add(MemoryTransport(made.network, FRIEND))
    with made.membership as here:
        assert here.notes[0] == "the manifest came by post" and len(here.notes) == 2 - met
        assert any("no named peer answers" in note for note in here.notes) != met


@pytest.mark.parametrize("other", ["identity", "swarm"])
def test_a_journal_of_another_identity_or_swarm_is_refused(parts, other):
    first = parts()
    for each in (first, parts(journal=first.journal)):
        with each.membership:
            pass
    if other == "identity":
        first.folder.identity.unlink()
        Identity.create(first.folder.identity)
    else:
        first.folder.manifest.write_bytes(create_swarm(Identity.generate(), name="other"))
    second = parts(journal=first.journal)
    with pytest.raises(NodeError, match=f"belongs to another {other} than"), second.membership:
        pass
    assert second.network.members == {}


def test_publish_queues_groups_or_only_the_policy_step(parts):
    made = parts()
    outbox = made.experience.outbox
    made.membership.publish([group(1), group(2)], ORIGIN)
    made.membership.publish([], replace(ORIGIN, policy_step=9))
    assert [each.group for each in outbox.take(1 << 20)] == [group(1), group(2)]
    assert outbox.policy_step == 9


class Working:
    """A running member that reports its status."""

    failure: Exception | None = None
    looks = 0
    stopped = False

    def __init__(self, error=None):
        self._error = error

    def status(self):
        self.looks += 1
        return self.looks

    async def run(self):
        if self._error:
            raise self._error
        try:
            await asyncio.sleep(60)
        finally:
            self.stopped = True


async def test_failed_member_is_reported_and_counted(parts):
    made = parts()
    await made.membership.follow(Working(OSError("the disk is gone")))
    assert str(made.membership.failure) == "the disk is gone"
    assert made.counters.snapshot() == {"member_stopped": 1}


async def test_membership_mirrors_failures_and_stops_the_member(parts):
    made, member = parts(), Working()
    here = made.membership
    watching = asyncio.ensure_future(here.follow(member))
    for failure in (None, OSError("no route"), None):
        member.failure, looks = failure, member.looks
        async with asyncio.timeout(120):
            while member.looks < looks + 2:
                await asyncio.sleep(0.001)
        assert here.failure is failure and here.status() >= looks
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await asyncio.sleep(0)
    assert member.stopped
    assert made.counters.snapshot() == {}


def left_before(folder, swarm, signed):
    """Add a swarm that the node left; return its manifest's path."""
    path = folder.swarms / swarm / folder.manifest.name
    path.parent.mkdir(parents=True)
    path.write_bytes(signed)
    return path


def test_prefix_of_current_and_earlier_swarm_is_ambiguous(tmp_path):
    folder, here = RunFolder(tmp_path), swarm_id(HERE).hex()
    left = here[:8] + ("0" if here[8] == "f" else "f") * 56
    folder.manifest.write_bytes(HERE)
    left_before(folder, left, THERE)
    with pytest.raises(UsageError) as refused:
        enter(Config(), folder, here[:8])
    assert here in str(refused.value) and left in str(refused.value)
    for prefix in ("", here[:9], here):
        assert enter(Config(), folder, prefix) == ()
    assert folder.manifest.read_bytes() == HERE


def test_node_must_leave_a_swarm_of_an_old_protocol_version(tmp_path):
    folder, there = RunFolder(tmp_path), swarm_id(THERE).hex()
    earlier = HERE[:7] + b"1" + HERE[8:]
    left = swarm_id(earlier).hex()
    assert left == swarm_id(HERE).hex()
    folder.manifest.write_bytes(earlier)
    left_before(folder, there, THERE)
    with pytest.raises(NodeError, match=r"version 1 of the protocol.*join --swarm ID"):
        enter(Config(), folder, "")
    (note,) = enter(Config(), folder, there[:12])
    assert f"moved from swarm {left[:16]}" in note and folder.manifest.read_bytes() == THERE
    assert (folder.swarms / left / folder.manifest.name).read_bytes() == earlier


def test_missing_transport_package_error_names_the_fix(monkeypatch):
    monkeypatch.setattr("node.network.transports.find_spec", lambda package: None)
    for name in ("hivemind", "libp2p"):
        with pytest.raises(ConfigError, match=rf"network.transport: '{name}'.*'\.\[libp2p\]'"):
            check_transport(Config.with_overrides({"network.transport": name}).network)


@pytest.mark.skipif(not find_spec("libp2p"), reason="needs libp2p: pip install '.[libp2p]'")
async def test_node_listens_on_the_port_of_its_last_run_if_free(tmp_path):
    folder, local = RunFolder(tmp_path).create(), ("/ip4/127.0.0.1/tcp/0",)
    Identity.create(folder.identity)
    network = Config.with_overrides({"network.listen": list(local)}).network
    ports = []
    for held in (False, False, True):
        with socket.create_server(("127.0.0.1", ports[0])) if held else nullcontext():
            kind = TRANSPORTS.open("libp2p", {})
            transport = kind.open(network, folder, Counters(), beside=True)
            await transport.start()
            ports += own_ports(transport.addresses())
            folder.write_status({"addresses": list(transport.addresses())})
            await transport.close()
    assert ports[0] == ports[1] != ports[2]


def test_mixed_demo_alternates_between_both_transports():
    assert set(TRANSPORTS.builtin) == {"hivemind", "libp2p"}
    mixed = DemoSettings(nodes=4, transport="mixed")
    assert mixed.transport_of(SEED) == "hivemind"
    assert [mixed.transport_of(n) for n in range(4)] == ["libp2p", "hivemind"] * 2
    assert DemoSettings(transport="libp2p").transport_of(SEED) == "libp2p"


def test_unsupported_address_family_is_reported(monkeypatch):
    no_family = Mock(side_effect=OSError(97, "Address family not supported by protocol"))
    monkeypatch.setattr("swarm.transport.node.socket.socket", no_family)
    assert why_not_free("/ip6/::1/tcp/31337") == "Address family not supported by protocol"


def test_excessive_proof_of_work_is_refused_with_its_cost():
    with pytest.raises(NodeError, match=r"work: 40 bits, about .*--set network\.work_seconds=\d"):
        check_work(ProofOfWork(40), 600.0)
    assert "1 bits, about 1 " in "".join(check_work(ProofOfWork(1), 600.0))
    assert check_work(Open(), 0.0) == ()


@pytest.mark.parametrize(("listed", "takes"), [(True, True), (False, True), (False, False)])
def test_only_a_training_node_reports_allow_list_exclusion(parts, listed, takes):
    made = parts(takes=takes)
    own = Identity.load(made.folder.identity)
    rule = AllowList(((own if listed else Identity.generate()).author,))
    made.folder.manifest.write_bytes(create_swarm(Identity.generate(), name="s", admission=rule))
    with made.membership as here:
        assert [own.peer_id in note for note in here.notes] == [True] * (takes and not listed)


async def test_refused_connection_is_logged_and_in_the_final_error(monkeypatch, caplog):
    monkeypatch.setattr("node.network.pinned_manifest.RETRY_SECONDS", 0.0)
    answers = iter([PeerUnreachable("connection refused"), PeerUnreachable("connection refused")])

    async def connect(address: str) -> str:
        if failure := next(answers, None):
            raise failure
        return await asyncio.Future()

    transport = MemoryTransport(MemoryNetwork(SystemClock()), FRIEND, Counters())
    monkeypatch.setattr(transport, "connect", connect)
    config = Config.with_overrides({"network.peers": [ADDRESS], "network.start_timeout": 1.0})
    with pytest.raises(NodeError, match=r"no peer answered within 1 seconds.*connection refused"):
        await request_manifest(config, transport, "")
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warned == ["connection refused; trying again for 1 s"]
