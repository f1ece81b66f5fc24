"""Chaos checks find planted faults and accept correct runs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from node.network.creation import create_swarm
from protocol.announcement import offer_of, task_seed
from protocol.frame import seal
from protocol.identity import Identity
from protocol.manifest import open_manifest, swarm_id
from protocol.rollout import Batch, Group
from swarm.groups import TaskRef
from swarm.verification import Scores
from tests.chaos.checks import Result, all_results, flat
from tests.chaos.evidence import Evidence
from tests.swarm.experience_parts import group

DIED = 1000.0


class LastDigit:
    """Rewards only the last digit of the seed."""

    def verify(self, task: TaskRef, texts: Sequence[str]) -> Scores:
        return Scores("?", tuple(float(text == str(task.seed % 10)) for text in texts))


class Run:
    """A short correct run: two nodes, one killed once, which used groups of alice."""

    def __init__(self, folder: Path) -> None:
        self.evidence = Evidence(folder / "evidence.sqlite")
        made = [Identity.create(folder / name) for name in ("alice", "bob", "larry")]
        self.alice, self.bob, self.larry = made
        self.signed = create_swarm(self.alice, name="test")
        self.records = {"alice": [(1, 1), (2, 2)], "bob": [(1, 1), (2, 2), (3, 3), (2, 2), (3, 3)]}
        self.evidence.add("nodes", ("alice", self.alice.author, 0), ("bob", self.bob.author, 1))
        self.life("alice", 1, 0.0, 2 * DIED, "stopped", 2, 2, 2)
        self.life("bob", 1, 0.0, DIED, "killed", 3, 1, 1)
        self.life("bob", 2, DIED, 2 * DIED, "stopped", 5, 3, 3)
        self.frame(10, self.group(0), self.group(1))
        self.frame(1, self.group(3, lie=True, author=self.larry), author=self.larry, held=False)
        self.use("bob", 1, self.alice.author, 5, 0)
        self.use("bob", 2, b"", 5, 0)

    def life(self, node: str, life: int, began: float, ended: float, *rest: object) -> None:
        how, *counts = rest
        self.evidence.add("lives", (node, life, began, ended, how, None, 100, 2, *counts, "ok"))
        self.evidence.add("drawn", (node, life, 5, 100))

    def group(self, index: int, lie: bool = False, author: Identity | None = None) -> Group:
        seed = task_seed((author or self.alice).author, 5, index)
        rewards, texts = (0.0 if lie else 1.0, 0.0), (str(seed % 10), "x")
        return group(index, rewards, epoch=5, env="gcd", texts=texts, tokens=False)

    def frame(
        self, sequence: int, *groups: Group, author=None, heard: float = DIED - 5, held: bool = True
    ) -> None:
        author = author or self.alice
        batch = Batch(sequence, 1, 0.0, "m", bytes(32), 1.0, 8, groups)
        frame = seal(batch, author, swarm_id(self.signed))
        name = offer_of(frame, batch, open_manifest(self.signed)).content_id
        self.evidence.add("frames", (name, frame))
        self.evidence.add("offers", (author.author, name, heard))
        if held:
            self.evidence.add("held", ("alice", 1, name))

    def use(self, *row: object) -> None:
        self.evidence.add("uses", row)

    def use_alices(self, number: int) -> None:
        self.use("bob", 3, self.alice.author, 5, number)

    def announce(self, sequence: int, what: bytes, heard: float = DIED - 5) -> None:
        digest = sha256(what).digest()
        self.evidence.add("announcements", (self.alice.author, sequence, digest, heard, what))

    def violated(self) -> set[str]:
        results = all_results(self.evidence, self.signed, LastDigit(), self.records)
        return {result.name for result in results if result.violations}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_correct_run_has_no_violations(run: Run) -> None:
    run.announce(11, b"one")
    run.announce(12, b"two")
    assert run.violated() == set()


def test_check_reports_a_false_reward_only_after_its_use(run: Run) -> None:
    run.frame(20, run.group(7, lie=True))
    assert run.violated() == set()
    run.use_alices(7)
    assert run.violated() == {"nothing unverified was trained on"}


def test_check_fails_without_a_lying_peer(run: Run) -> None:
    run.evidence.add("nodes", ("larry", run.larry.author, 0))
    assert "others lied, for nodes to refuse" in run.violated()


VERIFIED, MISSING = (
    "nothing unverified was trained on",
    "nothing announced is missing at its author",
)
TWICE, NUMBER = "nothing was trained on twice", "no sequence number was used twice"
REMEMBERS, SOUND = "a killed node remembers its numbers", "every journal is sound"
RESUMES = "a killed node goes on"


def never_back(run: Run) -> None:
    run.records["bob"] = run.records["bob"][:3]
    run.evidence.rows("UPDATE lives SET records=3 WHERE node='bob'")


def updated(statement: str) -> Callable[[Run], object]:
    return lambda run: run.evidence.rows(f"UPDATE {statement}")


PLANTED: dict[str, tuple[str, Callable[[Run], object]]] = {
    "a used group that nobody shared": (VERIFIED, lambda run: run.use_alices(99)),
    "an own group used twice": (TWICE, lambda run: run.use("bob", 3, b"", 5, 0)),
    "another's group used twice": (TWICE, lambda run: run.use_alices(0)),
    "a draw in two frames": (
        "no draw was told twice",
        lambda run: run.frame(20, replace(run.group(1), level=0, env="lcm")),
    ),
    "a number of two announcements": (
        NUMBER,
        lambda run: [run.announce(11, what) for what in (b"one", b"another")],
    ),
    "a number of an announcement and a frame": (NUMBER, lambda run: run.announce(10, b"one")),
    "an offered frame that nobody saw": (
        MISSING,
        lambda run: run.evidence.add("offers", (run.alice.author, bytes(32), 1.0)),
    ),
    "an offered frame that its author does not have": (
        MISSING,
        lambda run: run.evidence.add("pulls", (run.alice.author, bytes(32), "not_found", 1.0)),
    ),
    "an offer that a death has lost": (
        MISSING,
        lambda run: run.frame(20, run.group(9), heard=2 * DIED - 1, held=False),
    ),
    "a journal that forgot a number": (REMEMBERS, lambda run: run.announce(101, b"one")),
    "a journal that forgot a draw": (REMEMBERS, updated("drawn SET next=1 WHERE node='alice'")),
    "a use forgotten": (SOUND, updated("lives SET last_use=1 WHERE node='bob' AND life=2")),
    "a damaged journal": (SOUND, updated("lives SET sound='row 7 is missing' WHERE life=2")),
    "a node that began anew": (
        RESUMES,
        lambda run: run.records.update(bob=[*run.records["bob"][:3], (1, 0), (2, 1)]),
    ),
    "a node that never came back": (RESUMES, never_back),
    "a policy that went backward within a life": (
        "the policy's step only grows",
        lambda run: run.records.update(alice=[(1, 2), (2, 1)]),
    ),
    "a frame that its author did not sign": (
        "frames are signed and whole",
        lambda run: run.evidence.add("frames", (bytes(32), bytes(200))),
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_checker_reports_only_the_planted_fault(run: Run, planted: str) -> None:
    violated, plant = PLANTED[planted]
    plant(run)
    assert run.violated() == {violated}


def test_check_reports_an_unexpected_exit(run: Run) -> None:
    run.evidence.rows("UPDATE lives SET how='ended: error: three rounds failed' WHERE life=2")
    assert "no node ended by itself" in run.violated()


@pytest.mark.parametrize("seconds", [None, 140.0])
def test_check_reports_a_partition_not_healed_in_time(run: Run, seconds: float | None) -> None:
    run.evidence.add("heals", (1.0, "bob", 119.0, 0.0), (1.0, "alice", 130.0, 15.0))
    assert run.violated() == set()
    run.evidence.add("heals", (1.0, "alice", seconds, 15.0))
    assert run.violated() == {"a partition heals within 2 epochs"}


def sampled(run: Run, **last: float) -> list[Result]:
    """Return violations if the second half of the samples has other values."""
    for second in range(100):
        figures = {"memory": 300.0, "fds": 60, "sockets": 20, "threads": 30}
        figures |= last if second >= 50 else {}
        row = (float(second), "bob", 30.0 + second, *figures.values(), 5.0, 1.0)
        run.evidence.add("samples", row)
        run.evidence.add("machine", (float(second), 0, 4, 2, 3))
    return [result for result in flat(run.evidence) if result.violations]


@pytest.mark.parametrize("figures", [[], ["memory"], ["fds"], ["sockets"], ["threads"]])
def test_check_reports_only_the_resources_that_grow(run: Run, figures) -> None:
    found = sampled(run, **dict.fromkeys(figures, 400.0))
    assert [result.name for result in found] == [f"{figure} flat" for figure in figures]


def test_check_finds_process_and_socket_leaks(run: Run) -> None:
    sampled(run)
    run.evidence.add("machine", (time.time(), 1, 90, 2, 99))
    names = {result.name for result in flat(run.evidence) if result.violations}
    assert names == {"no process is lost", "unix sockets flat", "temporary files flat"}
