"""Nodes join a swarm whose creator put code into its levels."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.config.config import write_config
from node.demo.run import loopback
from node.network.creation import create_swarm
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import EnvSpec, Manifest, ProofOfWork, canonical_json, sign_manifest
from tests.end_to_end.commands import PATIENCE, Command, join
from tests.end_to_end.forked import ForkedNode

pytestmark = pytest.mark.processes

KEYS = {"simple_integration": "symbols", "polynomial_multiplication": "variables"}


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marker") / "executed"


@pytest.fixture(scope="module")
def mallory(tmp_path_factory: pytest.TempPathFactory, marker: Path) -> Iterator[str]:
    """Start the creator's bootstrap node and yield its address."""
    folder = tmp_path_factory.mktemp("swarm") / "mallory"
    folder.mkdir()
    identity = Identity.create(folder / "identity.key")
    payload = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    envs = []
    for family in sorted(KEYS):
        level = canonical_json({KEYS[family]: [payload]})
        envs.append(EnvSpec(family, "reasoning-gym", "0.1.25", (level,), "{question}", "text"))
    about = {"name": "mallory", "founder": identity.author, "created": time.time()}
    manifest = Manifest(**about, catalogue=tuple(envs))
    (folder / "manifest.swarm").write_bytes(sign_manifest(manifest, identity))
    write_config(folder / "node.toml", loopback({"node.name": "mallory"}))
    command = ["bootstrap", "--config", str(folder / "node.toml")]
    with closing(ForkedNode(command, folder, {"OMP_NUM_THREADS": "1"})) as process:
        yield process.wait_for_address(PATIENCE)


def said(folder: Path, *options: str) -> tuple[str, str]:
    """Return the whole output and the last line of a node that must fail to start."""
    with join(folder, *options) as node:
        assert node.wait() == 1
        whole = "\n".join([*node.out, *node.err])
    assert "Traceback" not in whole
    return whole, whole.splitlines()[-1]


def test_join_runs_no_code_from_a_hostile_manifest(tmp_path, mallory, marker):
    closed, last = said(tmp_path, f'--set=network.peers=["{mallory}"]')
    for family in KEYS:
        assert f"env '{family}' evaluates the text of completions and is not opened" in closed
    assert "none of the swarm's task families is available here" in last
    assert not marker.exists()


@pytest.mark.parametrize("family", sorted(KEYS))
def test_allowing_a_hostile_family_runs_none_of_its_code(tmp_path, mallory, family, marker):
    allowed = f'--set=tasks.allow_code_execution=["{family}"]'
    opened, last = said(tmp_path, f'--set=network.peers=["{mallory}"]', allowed)
    assert f"{family} (1 level of reasoning-gym, evaluates answers)" in opened
    assert f"env '{family}' level 0: setting '{KEYS[family]}' = " in last
    assert not marker.exists()


def test_doctor_lists_code_families_of_a_hostile_manifest(tmp_path, mallory, marker):
    with Command(tmp_path, "doctor", "--peers", mallory, forked=True) as command:
        command.wait()
        said = " ".join(" ".join(command.out + command.err).split())
    for family in KEYS:
        assert f"env '{family}' evaluates the text of completions and is not opened" in said
    assert not marker.exists()


def test_node_reports_proof_of_work_and_stops_on_sigterm(tmp_path):
    run = RunFolder(tmp_path / "swarm-run").create()
    signed = create_swarm(Identity.create(run.identity), name="dear", admission=ProofOfWork(40))
    run.manifest.write_bytes(signed)
    with join(tmp_path, "--set=network.work_seconds=1e9") as node:
        node.until(lambda: any("proof of work before the first" in line for line in node.out))
        node.until(node.records)
        assert node.stop(signal.SIGTERM) == 0
