"""The conformance command passes a real member and reports a faulty one."""

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from node.conformance.streams import CASES, IDENTIFY, address_of, look_at
from protocol import messages
from protocol.codec import encode
from protocol.identity import Identity
from protocol.manifest import sign_manifest, swarm_id
from protocol.messages import (
    DIAL_BACK_STREAM,
    GOSSIP_STREAM,
    MANIFEST_STREAM,
    PROFILE_STREAM,
    PULL_STREAM,
    DialledBack,
    encode_dial_back_response,
)
from protocol.profile import Profile, sign_profile
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport import protobuf
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.transport import HandlerLimits
from tests.swarm.network_parts import CREATOR, Node, manifest
from tests.swarm.transport.over import APART_LIBP2P, key_of, started

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
SLOPPY = HandlerLimits(1 << 32, 64, 64)
PROFILE = Profile("anna", "Two old laptops.", "tiny", "0.1.0", 1.7e9)


@asynccontextmanager
async def sharing(kind, folder, **options):
    """Start a member that shares groups and yield its address."""
    counters = Counters()
    transport = kind(key_of(folder, "anna"), listen=LISTEN, counters=counters)
    anna = Node("anna", transport, SystemClock(), counters, manifest(), **options)
    async with started(transport):
        anna.publish(3)
        await anna.member.step()
        yield transport.addresses()[0]


@pytest.mark.parametrize("kind", [HivemindTransport, APART_LIBP2P])
@pytest.mark.processes
async def test_member_with_groups_passes_every_case(kind, tmp_path):
    async with sharing(kind, tmp_path, profile=PROFILE) as address:
        (tmp_path / "opened").mkdir()
        findings = await look_at(address, tmp_path / "opened", "hivemind")
    assert [f for f in findings if f.outcome != "ok"] == [] and len(findings) == len(CASES)


@pytest.mark.skipif(not find_spec("libp2p"), reason="needs pip install 'swarm-node[libp2p]'")
@pytest.mark.parametrize("kind", [HivemindTransport, APART_LIBP2P])
@pytest.mark.processes
async def test_member_passes_every_case_with_libp2p_client(kind, tmp_path):
    async with sharing(kind, tmp_path) as address:
        run = await run_command(address, "--transport", "libp2p")
    assert run.returncode == 0, run.stdout + run.stderr
    findings = json.loads(run.stdout)
    assert {finding["outcome"] for finding in findings} == {"ok"} and len(findings) == len(CASES)


async def run_command(address, *options):
    """Run the command in a separate process, because transports cannot share one."""
    command = [sys.executable, "-m", "node.cli.main", "conformance", "--json", "--peers", address]
    how = {"capture_output": True, "text": True, "timeout": 600}
    return await asyncio.to_thread(subprocess.run, [*command, *options], **how)


async def test_errors_are_reported_in_one_line():
    absent = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.generate().peer_id}"
    cases = {("--transport", "pigeons"): (2, "pigeons"), (): (1, "no case was run")}
    for options, (status, error) in cases.items():
        run = await run_command(absent, *options)
        assert (run.returncode, run.stderr.count("\n")) == (status, 1), run.stderr
        assert error in run.stderr


def answering(folder, answers, limits=SLOPPY):
    """Return a peer that stores any record and has a fixed answer per protocol."""
    transport = HivemindTransport(key_of(folder, "sloppy"), listen=LISTEN)
    transport.use_validator(lambda record: True)
    for protocol, answer in answers.items():
        transport.handle(protocol, AsyncMock(return_value=answer), limits)
    return transport


@pytest.mark.processes
async def test_noncompliant_peer_fails_only_the_expected_cases(tmp_path):
    signed = sign_manifest(manifest(), CREATOR)
    answers = {
        MANIFEST_STREAM: signed,
        PULL_STREAM: bytes([messages.PullStatus.OK]) + bytes(200),
        GOSSIP_STREAM: encode([b"no announcement", b"none either"]),
        PROFILE_STREAM: sign_profile(PROFILE, CREATOR, swarm_id(signed)),
        DIAL_BACK_STREAM: encode_dial_back_response(DialledBack("127.0.0.1", (), False)),
    }
    (tmp_path / "opened").mkdir()
    async with started(answering(tmp_path, answers)) as sloppy:
        findings = await look_at(sloppy.addresses()[0], tmp_path / "opened", "hivemind")
    by_case = {finding.says: finding for finding in findings}
    broken = {says for says, finding in by_case.items() if finding.outcome == "fail"}
    assert broken == {
        "stores a whole dictionary with one result",
        "stores no record that does not hold",
        "refuses a request for a manifest that is not empty",
        "closes a stream whose length is over the limit",
        "answers that a frame is not there, or that it is busy",
        "refuses content ids of another length",
        "gossips announcements that hold",
        "gossips no more records than asked for",
        "gossips only later time slots than it is asked for",
        "gossips nothing that the request says is known",
        "refuses malformed requests for gossip",
        "offers frames that match their offers",
        "serves a profile that holds and is its own, or none",
        "is found and pulled from by a peer that knows its identify",
        "refuses malformed requests to dial back",
        "dials back, and takes only its asker's port for open",
    }
    assert "under another author's name" in by_case["stores no record that does not hold"].found
    assert "another author" in by_case["serves a profile that holds and is its own, or none"].found
    assert "bad_magic" in by_case["gossips announcements that hold"].found
    dialed = by_case["dials back, and takes only its asker's port for open"]
    assert "is not open to it" in dialed.found


@pytest.mark.skipif(not find_spec("libp2p"), reason="needs pip install 'swarm-node[libp2p]'")
@pytest.mark.processes
async def test_peer_without_identify_fails_the_dial_clauses(tmp_path):
    (over,) = APART_LIBP2P.values
    transport = over(key_of(tmp_path, "mute"), listen=LISTEN, counters=Counters())
    transport.handle(IDENTIFY, AsyncMock(return_value=b""), SLOPPY)
    ben = Node("ben", transport, SystemClock(), Counters(), manifest())
    async with started(transport):
        await ben.member.step()
        (tmp_path / "opened").mkdir()
        results = await look_at(transport.addresses()[0], tmp_path / "opened", "hivemind")
    failed = {(each.clause, each.says) for each in results if each.outcome == "fail"}
    assert {clause for clause, _ in failed} == {"10.2", "10.3"}, failed


def test_each_case_names_a_protocol_clause() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    clauses = set(re.findall(r"^\*\*(\d+\.\d+)\*\* ", page, flags=re.MULTILINE))
    assert {case.clause for case in CASES} <= clauses


def test_multiaddress_parser_matches_the_library() -> None:
    multiaddr = pytest.importorskip("multiaddr").Multiaddr
    peer = Identity.generate().peer_id
    for address in (
        "/ip4/192.0.2.7/tcp/31337",
        "/ip6/2001:db8::7/tcp/4001",
        "/dns4/peer.example/tcp/443",
        f"/ip4/192.0.2.7/tcp/31337/p2p/{peer}/p2p-circuit",
    ):
        assert address_of(multiaddr(address).to_bytes()) == address
    for other in (multiaddr("/ip4/192.0.2.7/udp/1/quic-v1").to_bytes(), b"\x04\x01", b"\xff" * 9):
        assert address_of(other) == ""


@pytest.mark.processes
async def test_command_prints_findings_and_fails_on_violations(tmp_path):
    answers = {MANIFEST_STREAM: sign_manifest(manifest(), CREATOR)}
    async with started(answering(tmp_path, answers, HandlerLimits(0, 4, 4))) as broken:
        run = await run_command(broken.addresses()[0], "--bytes")
    assert run.returncode == 1, run.stderr
    findings = json.loads(run.stdout)
    sent = {finding["says"]: finding["sent"] for finding in findings}
    assert sent["serves its manifest"] == [{"stream": MANIFEST_STREAM, "bytes": "00000000"}]
    outcomes = Counter(finding["outcome"] for finding in findings)
    assert outcomes["fail"] > 5 < outcomes["ok"]


def test_protobuf_codec_matches_hivemind():
    from hivemind.proto.dht_pb2 import NodeInfo, StoreRequest

    lists = {"keys": [b"a" * 200, b""], "values": [b"v"], "in_cache": [False, True]}
    theirs = StoreRequest(**lists, expiration_time=[1.5, 2.5], peer=NodeInfo(node_id=b"n"))
    ours = {2: [b"a" * 200, b""], 4: [b"v"], 5: [1.5, 2.5], 6: [False, True]}
    data = protobuf.encode({**ours, 7: protobuf.encode({1: b"n"})})
    assert data == theirs.SerializeToString()
    fields = protobuf.decode(data)
    assert (fields[2], protobuf.varints(fields[6])) == ([b"a" * 200, b""], [0, 1])
    for torn in (data[:3], b"\xff" * 20, b"\x0b"):
        with pytest.raises(ValueError, match=r"field|number|wire"):
            protobuf.decode(torn)
