import errno
import importlib.metadata
import importlib.util
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from multiprocessing import synchronize
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
import torch

from node.config.config import Config
from node.doctor import checks
from node.doctor.checks import check_clock, check_daemon, check_device, check_key, check_network
from node.network.creation import create_swarm
from node.storage.run_folder import RunFolder
from node.threads import LoopThread
from protocol.identity import Identity
from protocol.manifest import swarm_id
from protocol.messages import MANIFEST_STREAM
from swarm.transport.transport import ClockSkew, HandlerLimits, PeerUnreachable

NOBODY = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


@pytest.fixture
def folder(tmp_path):
    Identity.create(tmp_path / "identity.key")
    return RunFolder(tmp_path)


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_doctor_shows_how_to_install_missing_packages(monkeypatch):
    required = ["pydantic>=2", "rich>=99", "no-such-package>=1", "pytest>=1; extra == 'test'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: required)
    old, missing = checks.check_packages()
    assert (old.level, missing.level) == ("warn", "fail")
    assert old.remedy == "Install it with: pip install 'rich>=99'"
    assert "no-such-package is missing" in missing.found
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["pydantic>=2"])
    assert [f.level for f in checks.check_packages()] == ["ok"]


def test_missing_daemon_is_a_failure(tmp_path, monkeypatch):
    assert check_daemon().level == "ok"
    elsewhere = ModuleSpec("hivemind", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: elsewhere)
    assert check_daemon().level == "fail"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "hivemind is not installed" in check_daemon().found


def test_missing_gpu_fails_only_if_requested():
    assert check_device("auto").level == "ok" and check_device("cuda:99").level == "fail"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have MPS")
def test_mps_device_fails_on_other_systems():
    finding = check_device("mps")
    assert finding.level == "fail" and "policy.device" in finding.remedy


def test_mps_device_is_not_called_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    finding = check_device("mps")
    assert finding.level == "ok" and "CPU" not in finding.found


def test_missing_engine_is_a_failure(monkeypatch):
    assert checks.check_engine("transformers").level == "ok"
    monkeypatch.setattr("node.engines.kinds.PACKAGES", ("a-package-that-is-nowhere",))
    finding = checks.check_engine("vllm")
    assert finding.level == "fail" and "make vllm" in finding.remedy


def test_full_shared_memory_is_a_failure(monkeypatch):
    assert checks.check_shared_memory().level == "ok"
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(synchronize, "Semaphore", full)
    finding = checks.check_shared_memory()
    assert finding.level == "fail" and "/dev/shm" in finding.found


def test_key_readable_by_others_is_a_failure(folder):
    assert check_key(folder).level == "ok"
    folder.identity.chmod(0o644)
    finding = check_key(folder)
    assert finding.level == "fail" and "chmod 600" in finding.remedy
    folder.identity.unlink()
    assert check_key(folder).level == "warn"


def test_low_disk_space_warns_and_no_space_fails(folder, monkeypatch):
    usage = namedtuple("usage", "total used free")
    for free, level in ((100 << 30, "ok"), (1 << 30, "warn"), (1 << 20, "fail")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage(0, 0, free))
        assert checks.check_disk(folder).level == level
    (folder.root / "file").touch()
    assert "run_dir" in checks.check_disk(RunFolder(folder.root / "file" / "run")).remedy


def test_doctor_finds_a_jumping_or_wrong_clock(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    steps = itertools.count(2e9, 10.0)
    monkeypatch.setattr(time, "time", lambda: next(steps))
    assert check_clock().level == "warn"
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert check_clock().level == "fail"


def test_used_port_fails_unless_this_node_uses_it(folder, taken_port):
    listen = [f"/ip4/127.0.0.1/tcp/{port}" for port in (0, taken_port)]
    config = Config.with_overrides({"network.listen": listen})
    findings = checks.check_ports(config, folder)
    assert [f.level for f in findings] == ["ok", "fail"]
    assert str(taken_port) in findings[1].found and findings[1].remedy
    with folder.locked():
        assert [f.level for f in checks.check_ports(config, folder)] == ["ok"]


def test_doctor_reports_reachability_of_a_running_node(folder):
    reach = {"way": "relayed", "cause": "no peer could dial 11.7.0.3", "remedy": "Open a port."}
    folder.write_status({"reach": reach})
    with folder.locked():
        entry = check_network(Config(), folder)[-1]
    assert (entry.check, entry.level, entry.remedy) == ("reach", "warn", "Open a port.")
    assert "relayed: no peer could dial 11.7.0.3" in entry.found
    findings = check_network(Config(), folder)
    assert all(f.check != "reach" for f in findings) and "--peers" in findings[-1].remedy


@pytest.mark.processes
def test_doctor_dials_peers_and_reports_dead_ones(folder):
    from swarm.transport.hivemind.transport import HivemindTransport

    loop = LoopThread("peer")
    transport = HivemindTransport(folder.identity, listen=("/ip4/127.0.0.1/tcp/0",))
    ours, theirs = (create_swarm(Identity.load(folder.identity), name=name) for name in "ab")
    folder.manifest.write_bytes(ours)
    answer = AsyncMock(return_value=theirs)
    transport.handle(MANIFEST_STREAM, answer, HandlerLimits(64, 8, 8))
    try:
        loop.call(transport.start())
        alive = transport.addresses()[0]
        another = f"{alive.rpartition('/')[0]}/{NOBODY}"
        dead = f"/ip4/127.0.0.1/tcp/1/p2p/{NOBODY}"
        config = Config.with_overrides({"network.peers": [alive, another, dead]})
        findings = check_network(config, folder)
    finally:
        loop.call(transport.close())
        loop.close()
    levels = {check: [f.level for f in findings if f.check == check] for check in ("peers", "dial")}
    assert levels == {"peers": ["ok", "ok", "fail"], "dial": ["ok", "fail", "fail"]}
    assert all(f.remedy and "\n" not in f.remedy for f in findings if f.level == "fail")
    for failed in [f for f in findings if (f.check, f.level) == ("dial", "fail")]:
        assert "no peer answers at" in failed.found, "the finding names the cause"
        assert "no peer answers at" not in failed.remedy
    assert [f.level for f in findings if f.check == "reach"] == ["ok"], "the host is open to itself"
    (elsewhere,) = [f for f in findings if f.check == "swarm"]
    assert elsewhere.level == "fail" and swarm_id(theirs).hex()[:16] in elsewhere.found


SKEW = "the clocks are 9 s apart; set the clock"


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (PeerUnreachable("no peer answers at A: it\nsays so; run this"), "says so", "Compare"),
        (TimeoutError(), f"no peer answers at /ip4/127.0.0.1/tcp/1/p2p/{NOBODY} within", "Compare"),
        (ClockSkew(SKEW), "the clocks are 9 s apart", "Set the clock."),
    ],
)
def test_failed_dial_separates_the_fix_from_the_cause(folder, monkeypatch, error, found, remedy):
    transport = AsyncMock(connect=AsyncMock(side_effect=error), addresses=Mock(return_value=()))
    kind = Mock(open=Mock(return_value=transport))
    monkeypatch.setattr(type(checks.TRANSPORTS), "open", lambda *arguments: kind)
    check = failed_dial([f"/ip4/127.0.0.1/tcp/1/p2p/{NOBODY}"], ["/ip4/127.0.0.1/tcp/0"], folder)
    assert check.level == "fail" and found in check.found
    assert check.remedy.startswith(remedy) and check.remedy not in check.found


def test_failed_network_start_has_its_own_cause_and_fix(folder, taken_port):
    listen = f"/ip4/127.0.0.1/tcp/{taken_port}"
    check = failed_dial([f"{listen}/p2p/{NOBODY}"], [listen], folder)
    assert f"another process uses port {taken_port}" in check.found
    assert check.remedy.startswith("Stop it, or choose another port")


def failed_dial(peers, listen, folder):
    config = Config.with_overrides({"network.peers": peers, "network.listen": listen})
    (check,) = [each for each in check_network(config, folder) if each.check == "dial"]
    return check


def test_doctor_exits_with_1_when_something_fails(terminal, taken_port):
    Identity.create(Path("identity.key"))
    assert {f["level"] for f in terminal.json("doctor")} <= {"ok", "warn"}
    assert terminal("doctor", "--set", f'network.listen=["/ip4/127.0.0.1/tcp/{taken_port}"]') == 1
    assert "fail" in terminal.out and "Stop the program that uses it" in terminal.out


def test_doctor_counts_families_and_lists_them_in_json(terminal, node):
    identity, options = Identity.load(node.identity), ("doctor", "--config", "node")
    node.manifest.write_bytes(create_swarm(identity, name="ours", task_set="working"))
    (whole,) = [each for each in terminal.json(*options) if each["check"] == "tasks"]
    assert "adding (4 levels of swarm-node), climbing" in whole["found"] and "brief" not in whole
    terminal(*options)
    assert "of the task set working" in terminal.out and "climbing" not in terminal.out


@contextmanager
def announced(number, swarm):
    """Announce nodes of a swarm on the loopback network."""
    words = "127.0.0.1", "127.0.0.1", str(number), swarm, "4999"
    command = [sys.executable, "-m", "tests.swarm.lan.announcing", *words]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **streams, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout.readline() == b"announced\n"
        yield
        process.stdin.close()


def lan_checks(folder, listen):
    config = Config.with_overrides({"network.lan": True, "network.listen": [listen]})
    findings = check_network(config, RunFolder(folder))
    return [(each.level, each.check, each.found) for each in findings if each.check != "ports"]


@pytest.mark.processes
def test_doctor_reports_swarms_announced_on_lan(tmp_path, monkeypatch, local_network):
    monkeypatch.setattr(checks, "HEAR_SECONDS", 10.0)
    with announced(3, "ab" * 32):
        ((level, check, text),) = lan_checks(tmp_path, "/ip4/127.0.0.1/tcp/0")
    assert (level, check) == ("ok", "lan")
    assert text.startswith("3 nodes announced") and 8 * "ab" in text


def test_doctor_reports_an_empty_lan(tmp_path, monkeypatch, local_network):
    monkeypatch.setattr(checks, "HEAR_SECONDS", 0.1)
    ((level, check, _),) = lan_checks(tmp_path, "/ip4/127.0.0.1/tcp/0")
    assert (level, check) == ("warn", "lan")
    ((level, check, text),) = lan_checks(tmp_path, "/ip4/203.0.113.77/tcp/0")
    assert (level, check) == ("fail", "lan") and "network.listen" in text


@pytest.mark.parametrize(
    ("gap", "dtype", "level"),
    [
        (5e-6, "float32", "ok"),
        (0.02, "float32", "warn"),
        (0.051, "bfloat16", "ok"),
        (0.5, "bfloat16", "warn"),
    ],
)
def test_mismatch_limit_depends_on_the_number_format(folder, gap, dtype, level):
    config = Config.with_overrides({"policy.dtype": dtype})
    assert checks.check_mismatch(config, folder).level == "ok", "no round is reported yet"
    folder.write_status({"record": {"logprob_mismatch": gap}})
    found = checks.check_mismatch(config, folder)
    assert found.level == level and f"{gap:.2g} nat" in found.found
