"""A network of two sides that can be cut, and a disk that can be filled.

The run has its own network, mount and process namespaces, so nothing outlasts it. It does not need
root if the system lets users create namespaces. Without namespaces, the run skips the events that
need them and prints a notice.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

MARK = "SWARM_CHAOS_NAMESPACES"
HERE, THERE = "10.77.0.1", "10.77.0.2"
LOOPBACK = "127.0.0.1"
ROOT, TMP = Path(__file__).parents[2], Path("/tmp")
DISK_MIB = 96
_INIT = ("sh", "-c", '"$@"; exit $?', "sh")
"""The first process of a namespace must reap all orphans; a shell does so."""
_SPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def enter(arguments: list[str]) -> None:
    """Restart the program in its own namespaces; return if that is done or impossible."""
    if MARK in os.environ:
        return
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    command = ["unshare", *user, *_SPACES]
    if not shutil.which("unshare") or not shutil.which("ip") or not _works(command):
        print("NOT POSSIBLE HERE: no namespaces; no partition, no full disk, and nothing said of")
        print("lost processes, sockets and temporary files", flush=True)
        os.environ[MARK] = "no"
        return
    os.environ[MARK] = "yes"
    os.execvp(command[0], [*command, *_INIT, sys.executable, "-m", "tests.chaos", *arguments])


def _works(command: list[str]) -> bool:
    need = "ip link set lo up && ip link add probe type veth && mount -t tmpfs none /tmp"
    probe = [*command, "sh", "-c", f"{need} && unshare --net true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


class World:
    """The two sides of the network and the small disk; no cuts unless ``whole``."""

    def __init__(self, folder: Path) -> None:
        self.whole = os.environ.get(MARK) == "yes"
        self._folder = folder
        self._there: subprocess.Popen[bytes] | None = None
        if self.whole:
            self._own_tmp()
            self._two_sides()

    def address(self, side: int) -> str:
        return (HERE, THERE)[side] if self.whole else LOOPBACK

    def prefix(self, side: int) -> list[str]:
        if side == 0 or self._there is None:
            return []
        return ["nsenter", f"--net=/proc/{self._there.pid}/ns/net"]

    def cut(self) -> None:
        """Block all packets between the two sides."""
        _run("ip", "link", "set", "side-a", "down")

    def heal(self) -> None:
        _run("ip", "link", "set", "side-a", "up")

    def small_disk(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self.whole:
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(folder))

    def close(self) -> None:
        if self._there:
            self._there.kill()
            self._there.wait()

    def _own_tmp(self) -> None:
        """Mount a private /tmp to find leftovers, with what the run needs of the old one."""
        tmp = self._folder / "tmp"
        tmp.mkdir()
        for needed in _below(TMP, ROOT, self._folder, Path(sys.prefix), Path(sys.base_prefix)):
            place = tmp / needed.relative_to(TMP)
            place.mkdir(parents=True)
            _run("mount", "--rbind", str(needed), str(place))
        _run("mount", "--rbind", str(tmp), str(TMP))
        os.environ["TMPDIR"] = str(TMP)
        os.chdir(Path.cwd())

    def _two_sides(self) -> None:
        _run("ip", "link", "set", "lo", "up")
        self._there = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        theirs, ours = Path(f"/proc/{self._there.pid}/ns/net"), Path("/proc/self/ns/net")
        while theirs.stat().st_ino == ours.stat().st_ino:
            time.sleep(0.01)
        peer = ["type", "veth", "peer", "name", "side-b", "netns", str(self._there.pid)]
        _run("ip", "link", "add", "side-a", *peer)
        _run("ip", "addr", "add", f"{HERE}/24", "dev", "side-a")
        _run("ip", "link", "set", "side-a", "up")
        for words in ("link set lo up", f"addr add {THERE}/24 dev side-b", "link set side-b up"):
            _run(*self.prefix(1), "ip", *words.split())


def _below(top: Path, *folders: Path) -> list[Path]:
    """Return the folders below ``top`` that lie in none of the others."""
    inside = sorted({each.resolve() for each in folders if each.resolve().is_relative_to(top)})
    return [each for each in inside if not set(each.parents) & set(inside)]


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
