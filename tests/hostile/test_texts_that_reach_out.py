"""Mallory's text runs as code in a worker, and affects only its own reward."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from node.tasks.sandbox.namespaces import landlock_version
from node.tasks.sandbox.sandbox import SandboxSupport, sandbox_support
from node.tasks.task_set import Allowed, open_envs
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import EnvSpec
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.verification import VerifierError
from tests.hostile.deeds import DEEDS
from tests.node.packages import declare

PROBE = Path(__file__).with_name("deeds_probe.py")
ROOT = Path(__file__).parents[2]
ORDINARY = 65534
STOPPED = [0.0, 1.0, 0.0]

linux = pytest.mark.skipif(sys.platform != "linux", reason="this sandbox needs Linux")


@pytest.fixture(scope="module", params=["bubblewrap", "namespaces"])
def kind(request) -> str:
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return request.param


@pytest.fixture(scope="module", params=["as it is", "ordinary"])
def done(request, kind) -> dict:
    user = os.getuid() if request.param == "as it is" else ORDINARY
    if request.param == "ordinary" and os.getuid() != 0:
        pytest.skip("this is an ordinary user already")
    above = (ROOT, *ROOT.parents, *Path(sys.prefix).parents, *Path(sys.base_prefix).parents)
    shut = [path for path in above if not path.stat().st_mode & 0o001]
    if request.param == "ordinary" and shut:
        pytest.skip(f"{shut[0]} is closed to an ordinary user")
    process = subprocess.run(
        [sys.executable, str(PROBE), kind, str(user)],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout.splitlines()[-1])
    if results["walls"] != kind:
        pytest.skip(f"this machine has no {kind} for user {user}")
    assert results["user"] == user
    return results


@linux
@pytest.mark.parametrize("env", ["deeds", "deeds_once"])
def test_sandbox_stops_every_escape(done, env):
    assert done["whole"]
    results = done["found"][env]
    assert len(results) >= len(DEEDS)
    assert {name: verdict for name, verdict in results.items() if verdict != STOPPED} == {}
    assert done["noticed"] == []
    assert done["victim_lives"] and done["intact"]


@linux
def test_text_affects_only_its_own_reward_or_group(done):
    after = done["after"]
    assert after["patch"][1:] == [0.0, 0.0, 1.0]
    assert after["leave"][1:] == [0.0, 1.0]
    assert after["forge"] == "crashed" or after["forge"][1:] == [0.0, 0.0]
    assert after["after"] == [0.0, 1.0]
    assert after["memory"] == [0.0, 0.0]
    assert after["much_memory"] == [0.0, 0.0]
    assert after["left"] == [0.0, 0.0, 1.0]
    assert after["cpu"] == [0.0, 0.0]
    assert after["more_cpu"] == [0.0, 0.0]


@pytest.fixture
def no_walls(monkeypatch):
    sandbox_support.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "one that nobody knows")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    yield
    monkeypatch.undo()
    sandbox_support.cache_clear()


def spec(name: str, source: str = "reasoning-gym", version: str = "0.1.25") -> EnvSpec:
    return EnvSpec(name, source, version, ("{}",), "{question}", "text")


@pytest.mark.usefixtures("no_walls")
def test_code_execution_without_sandbox_is_refused_and_logged(caplog):
    counters = Counters()
    specs = [spec("gcd"), spec("binary_matrix")]
    allowed = Allowed(code_execution=["binary_matrix"])
    with Verifier(specs, allowed, outside=True, counters=counters) as verifier:
        assert verifier.start() == ("gcd",)
        assert verifier.verify(TaskRef("gcd", 0, 1), ["?"]).rewards == (0.0,)
        with pytest.raises(VerifierError, match="this machine has no sandbox for that") as refusal:
            verifier.verify(TaskRef("binary_matrix", 0, 1), ["?"])
    assert refusal.value.reason == "evaluates_text"
    assert "not enough for tasks that evaluate completions" in caplog.text
    assert "env 'binary_matrix' evaluates the text of completions, and this machine" in caplog.text
    assert counters.snapshot() == {"verifier_unsandboxed{sandbox=none}": 1.0}


def test_partial_sandbox_is_not_whole():
    for kind, seccomp in (("sandbox-exec", True), ("none", True), ("bubblewrap", False)):
        assert not SandboxSupport(kind, landlock=True, seccomp=seccomp).whole


def test_code_execution_package_needs_a_sandbox(tmp_path, monkeypatch):
    declare(monkeypatch, tmp_path, "deeds_once", "tests.hostile.deeds:DeedsOnce")
    specs = [spec("deeds_once", "plugin", "1")]
    for allowed in (Allowed(), Allowed(code_execution=["deeds_once"], sandboxed=False)):
        sources, closed = open_envs(specs, allowed)
        assert sources == {}
        assert "evaluates the text of completions" in closed["deeds_once"]


@linux
def test_only_the_allowed_task_reads_files_and_uses_network(tmp_path, monkeypatch):
    for name in ("deeds", "curious"):
        declare(monkeypatch, tmp_path, name, "tests.hostile.deeds:Deeds")
    given = tmp_path / "given"
    given.write_text("read me")
    specs = [spec(name, "plugin", "1") for name in ("deeds", "curious")]
    read = f"assert open({str(given)!r}).read() == 'read me'"
    write = f"open({str(given)!r}, 'a')"
    connect = "import socket; socket.socket()"
    discard, discards = "open('/dev/null', 'w').write('x')", float(landlock_version() >= 3)
    allowed = Allowed(read={"curious": [str(given)]}, network=["curious"])
    with Verifier(specs, allowed, outside=True) as verifier:
        assert verifier.start() == ("deeds", "curious")
        texts = [read, connect, discard, write]
        curious = verifier.verify(TaskRef("curious", 0, 1), texts)
        assert curious.rewards == (1.0, 1.0, discards, 0.0)
        others = verifier.verify(TaskRef("deeds", 0, 1), texts)
        assert others.rewards == (0.0, 0.0, discards, 0.0)


@linux
def test_sandbox_hides_a_key_next_to_an_import_folder(tmp_path, monkeypatch):
    declare(monkeypatch, tmp_path, "deeds", "tests.hostile.deeds:Deeds")
    (tmp_path / "identity.key").write_text("secret")
    monkeypatch.syspath_prepend(tmp_path)
    with Verifier([spec("deeds", "plugin", "1")], outside=True) as verifier:
        text = f"open({str(tmp_path / 'identity.key')!r})"
        assert verifier.verify(TaskRef("deeds", 0, 1), [text]).rewards == (0.0,)
