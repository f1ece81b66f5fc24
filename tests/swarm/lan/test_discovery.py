"""Nodes of a swarm find each other by multicast DNS, despite mallory's messages.

Each node, and mallory, is a process on the loopback network.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.swarm.network_parts import identity

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
PATIENCE = 300.0
OURS, OTHER = "aa" * 32, "bb" * 32


def peer_id(name: str) -> str:
    return identity(name).peer_id


class Street:
    """Processes that announce themselves on the loopback network."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.ports: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def node(self, name: str, swarm: str = OURS) -> None:
        self._start(name, "looking", name, swarm)
        self.wait(name, "\n")
        self.ports[name] = int(self.said(name).split()[1])

    def mallory(self, number, swarm=OURS, peer="", port=4999, host="127.0.0.66") -> None:
        arguments = "127.0.0.1", host, str(number), swarm, str(port), peer
        self._start("mallory", "announcing", *arguments)
        self.wait("mallory", "announced")

    def quiet(self, name: str) -> None:
        """Start a peer without announcements at the port of a running node."""
        self._start("quiet", "quiet", "quiet", str(self.ports[name]), OURS, peer_id(name))
        self.wait("quiet", "listening")

    def late(self, name: str) -> None:
        """Start a peer that sends no queries and misses a node's first messages."""
        self._start("late", "quiet", "late", peer_id(name))
        self.wait("late", "listening")

    def said(self, name: str) -> str:
        return (self._folder / name).read_text()

    def wait(self, name: str, words: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while words not in self.said(name):
            assert self._processes[name].poll() is None, self.said(name)
            assert time.monotonic() < deadline, f"{name} did not print {words}: {self.said(name)}"
            time.sleep(0.05)

    def end(self, name: str) -> str:
        """End the process, which must succeed, and return its output."""
        process = self._processes[name]
        assert process.stdin
        process.stdin.close()
        assert process.wait(PATIENCE) == 0, self.said(name)
        return self.said(name)

    def _start(self, name: str, module: str, *arguments: str) -> None:
        output = self._stack.enter_context((self._folder / name).open("wb"))
        command = [sys.executable, "-m", f"tests.swarm.lan.{module}", *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
        )
        self._stack.callback(lambda: (process.kill(), process.wait()))
        self._processes[name] = process


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    with ExitStack() as stack:
        yield Street(tmp_path, stack)


def both_meet(street: Street) -> None:
    """Start anna and bert, and wait until they meet."""
    for name in ("anna", "bert"):
        street.node(name)
    for name, other in (("anna", "bert"), ("bert", "anna")):
        street.wait(name, f"met {peer_id(other)}")


@pytest.mark.parametrize("names", [0, 1000])
def test_members_find_each_other_despite_many_announced_names(street, names):
    if names:
        street.mallory(names)
    both_meet(street)
    for name in ("anna", "bert"):
        assert "lan_failed" not in street.end(name)
        assert street.said(name).count("met ") == 1


def test_node_does_not_dial_other_swarms(street):
    street.node("stranger", OTHER)
    street.mallory(5, swarm=OTHER)
    both_meet(street)
    assert "met" not in street.said("stranger")
    for name in ("anna", "bert"):
        assert street.end(name).count("met ") == 1
        assert "lan_dials_failed" not in street.said(name)


def test_members_meet_despite_a_false_port_announcement(street):
    street.node("mallet")
    street.mallory(20, peer=peer_id("anna"), port=street.ports["mallet"], host="127.0.0.1")
    both_meet(street)


def test_node_counts_and_never_dials_a_disallowed_port(street):
    street.mallory(3, port=22)
    both_meet(street)
    said = street.end("anna")
    assert "lan_names_refused{reason=port}" in said and "lan_dials_failed" not in said


def test_node_repeats_its_announcement_for_late_listeners(street):
    street.node("anna")
    street.late("anna")
    street.wait("late", "heard")


def test_member_is_found_despite_lost_first_answers(street):
    street.node("anna", OTHER)
    street.quiet("anna")
    street.node("bert")
    street.wait("bert", f"met {peer_id('anna')}")
    assert "answering" in street.said("quiet")
