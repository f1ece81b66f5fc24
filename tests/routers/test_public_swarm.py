"""The public swarm's guide and unit work as written, also behind a router.

The test types every command on a machine on the open network. A namespace has one user and shares
the machine's folders, so the test omits accounts and changes folders. It replaces the operator's
address, and the port stays."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.environment import build
from tests.documents.page import ROOT, blocks
from tests.routers.laboratory import Place

pytestmark = pytest.mark.processes

GUIDE = ROOT / "docs" / "guides" / "public_swarm.md"
UNIT = ROOT / "examples" / "public_swarm" / "swarm-seed.service"
PATIENCE = 300.0
OPERATORS = "203.0.113.7"
ACCOUNTS = ("useradd --system swarm\n", "sudo -u swarm ", "sudo ", "-o swarm ")
RESTART = "systemctl restart swarm-seed\n"
SEED, PROGRAM, BACKUP = "/var/lib/swarm-seed", "/opt/swarm-node", "/root/swarm-seed-backup"


class Machine:
    """A place with a shell in which a page is typed, and the processes it runs."""

    def __init__(self, place: Place, folder: Path, shell: dict[str, str]) -> None:
        folder.mkdir()
        self.place, self.folder = place, folder
        self._shell = {**shell, "PATH": f"{shell['PATH']}:/usr/sbin", "OMP_NUM_THREADS": "1"}
        self._left_running: list[subprocess.Popen[bytes]] = []

    def type(self, script: str, where: Path) -> str:
        """Return what a script prints; the script must succeed."""
        here = {"cwd": where, "env": self._shell, "check": False}
        done = subprocess.run(self._command(script), capture_output=True, text=True, **here)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def leave_running(self, script: str, where: Path, until: str) -> str:
        """Start a script that keeps running; return its first line that begins so."""
        log = self.folder / f"{len(self._left_running)}.log"
        with log.open("wb") as output:
            written = {"stdout": output, "stderr": subprocess.STDOUT, "env": self._shell}
            command = self._command(script)
            process = subprocess.Popen(command, cwd=where, start_new_session=True, **written)
        self._left_running.append(process)
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(f"^{until}.*$", log.read_text(), re.MULTILINE)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        return found[0]

    def stop(self) -> None:
        process = self._left_running.pop()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) is not None

    def close(self) -> None:
        for process in self._left_running:
            os.killpg(process.pid, signal.SIGINT)
        for process in self._left_running:
            assert process.wait(PATIENCE) is not None

    def _command(self, script: str) -> list[str]:
        return [*self.place.prefix, "bash", "-euo", "pipefail", "-c", script]


@pytest.fixture
def machines(village, tmp_path: Path) -> Iterator[tuple[Machine, Machine, Machine]]:
    shell = build(tmp_path)
    laboratory = village.laboratory
    home = laboratory.behind(laboratory.router("port-restricted"))
    places = laboratory.host(), laboratory.host(), home
    names = "in-the-open", "second", "behind-a-router"
    made = [Machine(each, tmp_path / n, shell) for each, n in zip(places, names, strict=True)]
    yield made[0], made[1], made[2]
    for machine in reversed(made):
        machine.close()


def typed(text: str, machine: Machine, program: Path) -> str:
    """Return a block as it is typed on a machine."""
    for account in ACCOUNTS:
        text = text.replace(account, "")
    text = text.replace(SEED, str(machine.folder / "seed")).replace(PROGRAM, str(program))
    text = text.replace(BACKUP, str(machine.folder / "backup")).replace(RESTART, "")
    return text.replace(OPERATORS, machine.place.ipv4)


def configured(machine: Machine, lines: str) -> None:
    """Replace the lines with the same keys in the bootstrap node's file."""
    file = machine.folder / "seed" / "node.toml"
    text = file.read_text()
    for line in lines.splitlines():
        key = line.split(" = ")[0]
        text, times = re.subn(rf"(?m)^{key} = .*$", lambda _, new=line: new, text)
        assert times == 1, f"{key} is not a key of {file}"
    file.write_text(text)


def wait_for(machine: Machine, script: str, words: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while words not in (printed := machine.type(script, machine.folder)):
        assert time.monotonic() < deadline, printed
        time.sleep(1.0)
    return printed


def test_guide_commands_create_a_swarm_that_a_node_joins(machines, tmp_path):
    first, second, home = machines
    tree, program, others = tmp_path / "tree", tmp_path / "program", tmp_path / "env"
    page = blocks(GUIDE.read_text())
    install, found, start, firewall, keep, put_back, upgrade, *_ = (
        each.text for each in page if each.language == "sh"
    )
    (addresses,) = (each.text for each in page if each.language == "toml")

    first.type(typed(install, first, program), tree)
    assert "created swarm" in first.type(typed(found, first, program), tree)
    configured(first, typed(addresses, first, program))
    line = first.leave_running(typed(start, first, program), tree, "others join with: ")
    assert f"/ip4/{first.place.ipv4}/tcp/31337/p2p/" in line

    *_, own = install.splitlines()
    second.type(typed(own, second, others), tree)
    manifest = (first.folder / "seed" / "manifest.swarm").read_bytes()
    (second.folder / "seed" / "manifest.swarm").write_bytes(manifest)
    configured(second, typed(addresses, second, program))
    configured(second, f'peers = ["{line.split()[-1]}"]')
    other = second.leave_running(typed(start, second, others), tree, "others join with: ")

    join = line.removeprefix("others join with: ") + f" {other.split()[-1]}"
    home.leave_running(f"{others}/bin/{join}", home.folder, "round 1 ")
    wait_for(home, f"{others}/bin/swarm-node status", "reach     relayed")
    status = typed(start, first, program).replace(" bootstrap ", " status ")
    printed = wait_for(first, status, "peers     2 connected, 2 present")
    assert "swarm     my-swarm" in printed and line.split()[-1] in printed
    peers = first.type(status.replace(" status ", " peers --json "), first.folder)
    for machine in (second, home):
        shown = re.search(r"^peer id +(\S+)$", who(machine, others), re.MULTILINE)
        assert shown and shown[1] in peers

    first.type(typed(firewall, first, program), tree)
    first.type(typed(keep, first, program), tree)
    first.stop()
    assert RESTART in upgrade
    first.type(typed(upgrade, first, program), tree)
    start_again = typed(start, first, program)
    assert line == first.leave_running(start_again, tree, "others join with: ")
    wait_for(first, status, "peers     2 connected, 2 present")

    first.stop()
    shutil.rmtree(first.folder / "seed")
    first.type(typed(own, first, program), tree)
    first.type(typed(put_back, first, program), tree)
    configured(first, typed(addresses, first, program))
    assert line == first.leave_running(start_again, tree, "others join with: ")
    wait_for(first, status, "peers     2 connected, 2 present")


def who(machine: Machine, program: Path) -> str:
    folder = "seed" if (machine.folder / "seed").exists() else "swarm-run"
    command = f"{program}/bin/swarm-node status --config {machine.folder / folder}"
    return machine.type(command, machine.folder)


def test_systemd_unit_runs_the_command_of_the_guide() -> None:
    page = blocks(GUIDE.read_text())
    by_hand = [each.text for each in page if each.language == "sh"][2].strip()
    lines = UNIT.read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert by_hand == f"sudo -u {unit['User']} {unit['ExecStart']}"
    assert unit["ReadWritePaths"] == unit["WorkingDirectory"] == SEED
