"""The checker of a chaos run finds what was planted, and nothing in what is right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from node.network.founding import found_swarm
from protocol.announcement import offer_of, task_seed
from protocol.frame import seal
from protocol.identity import Identity
from protocol.manifest import open_manifest, swarm_id
from protocol.rollout import Batch, Completion, Finish, Group, Segment, Writer
from swarm.groups import TaskRef
from swarm.verification import Verdict
from tests.chaos.checks import Result, all_results, flat
from tests.chaos.evidence import Evidence

DIED = 1000.0


class LastDigit:
    """Rewards the seed's last digit, and nothing else."""

    def judge(self, task: TaskRef, texts: Sequence[str]) -> Verdict:
        return Verdict("?", tuple(float(text == str(task.seed % 10)) for text in texts))


class Run:
    """A short run in which all is right: two nodes, one killed once, that took groups of alice."""

    def __init__(self, folder: Path) -> None:
        self.evidence = Evidence(folder / "evidence.sqlite")
        self.alice, self.bob, self.larry = (
            Identity.create(folder / name) for name in ("alice", "bob", "larry")
        )
        self.signed = found_swarm(self.alice, name="test")
        self.records = {"alice": [(1, 1), (2, 2)], "bob": [(1, 1), (2, 2), (3, 3), (2, 2), (3, 3)]}
        self.evidence.add("nodes", ("alice", self.alice.author, 0), ("bob", self.bob.author, 1))
        self.life("alice", 1, 0.0, 2 * DIED, "stopped", 2, 2, 2)
        self.life("bob", 1, 0.0, DIED, "killed", 3, 1, 1)
        self.life("bob", 2, DIED, 2 * DIED, "stopped", 5, 3, 3)
        self.frame(10, self.group(0), self.group(1))
        self.frame(1, self.group(3, lie=True, author=self.larry), author=self.larry, held=False)
        self.use("bob", 1, self.alice.author, 5, 0)
        self.use("bob", 2, b"", 5, 0)

    def life(
        self, node: str, life: int, began: float, ended: float, how: str, *counts: int
    ) -> None:
        row = (node, life, began, ended, how, None, 100, 2, *counts, "ok")
        self.evidence.add("lives", row)
        self.evidence.add("drawn", (node, life, 5, 100))

    def group(self, index: int, lie: bool = False, author: Identity | None = None) -> Group:
        seed = task_seed((author or self.alice).author, 5, index)
        texts = [str(seed % 10), "x"]
        rewards = (0.0 if lie else 1.0, 0.0)
        completions = tuple(
            Completion((Segment(Writer.POLICY, text),), reward, Finish.STOP)
            for text, reward in zip(texts, rewards, strict=True)
        )
        return Group("gcd", 0, 5, index, completions)

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

    def announce(self, sequence: int, what: bytes, heard: float = DIED - 5) -> None:
        digest = sha256(what).digest()
        self.evidence.add("announcements", (self.alice.author, sequence, digest, heard, what))

    def violated(self) -> set[str]:
        results = all_results(self.evidence, self.signed, LastDigit(), self.records)
        return {result.name for result in results if result.violations}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_run_in_which_all_is_right_violates_nothing(run: Run) -> None:
    run.announce(11, b"one")
    run.announce(12, b"two")
    assert run.violated() == set()


def test_a_group_whose_reward_is_a_lie_is_found_where_it_was_used(run: Run) -> None:
    run.frame(20, run.group(7, lie=True))
    assert run.violated() == set()
    run.use("bob", 3, run.alice.author, 5, 7)
    assert run.violated() == {"nothing unverified was trained on"}


def test_a_run_in_which_nobody_lied_has_shown_nothing(run: Run) -> None:
    run.evidence.add("nodes", ("larry", run.larry.author, 0))
    assert "others lied, for nodes to refuse" in run.violated()


def test_a_used_group_that_nobody_ever_shared_is_found(run: Run) -> None:
    run.use("bob", 3, run.alice.author, 5, 99)
    assert run.violated() == {"nothing unverified was trained on"}


@pytest.mark.parametrize("own", [True, False])
def test_a_group_that_was_used_twice_is_found(run: Run, own: bool) -> None:
    run.use("bob", 3, b"" if own else run.alice.author, 5, 0)
    assert run.violated() == {"nothing was trained on twice"}


def test_a_draw_in_two_frames_is_found(run: Run) -> None:
    run.frame(20, replace(run.group(1), level=0, env="lcm"))
    assert run.violated() == {"no draw was told twice"}


@pytest.mark.parametrize("numbers", [(11, 11), (10,)], ids=["two announcements", "and a frame"])
def test_a_sequence_number_that_was_used_twice_is_found(run: Run, numbers: list[int]) -> None:
    for number, what in zip(numbers, (b"one", b"another"), strict=False):
        run.announce(number, what)
    assert run.violated() == {"no sequence number was used twice"}


def test_an_offer_whose_frame_nobody_saw_is_found(run: Run) -> None:
    run.evidence.add("offers", (run.alice.author, bytes(32), 1.0))
    assert run.violated() == {"nothing announced is missing at its author"}


def test_an_author_who_does_not_have_what_it_offers_is_found(run: Run) -> None:
    run.evidence.add("pulls", (run.alice.author, bytes(32), "not_found", 1.0))
    assert run.violated() == {"nothing announced is missing at its author"}


def test_an_offer_that_a_death_has_lost_is_found(run: Run) -> None:
    run.frame(20, run.group(9), heard=2 * DIED - 1, held=False)
    assert run.violated() == {"nothing announced is missing at its author"}


def test_a_journal_that_forgot_a_number_is_found(run: Run) -> None:
    run.announce(101, b"one")
    assert run.violated() == {"a killed node remembers its numbers"}


@pytest.mark.parametrize(
    ("statement", "violated"),
    [
        ("drawn SET next=1 WHERE node='alice'", "a killed node remembers its numbers"),
        ("lives SET last_use=1 WHERE node='bob' AND life=2", "every journal is sound"),
        ("lives SET sound='row 7 missing from index' WHERE life=2", "every journal is sound"),
    ],
    ids=["forgot a draw", "forgot a use", "damaged"],
)
def test_a_journal_at_fault_is_found(run: Run, statement: str, violated: str) -> None:
    run.evidence.rows(f"UPDATE {statement}")
    assert run.violated() == {violated}


def test_a_node_that_began_anew_instead_of_going_on_is_found(run: Run) -> None:
    run.records["bob"][3:] = [(1, 0), (2, 1)]
    assert run.violated() == {"a killed node goes on"}


def test_a_node_that_never_came_back_is_found(run: Run) -> None:
    run.records["bob"] = run.records["bob"][:3]
    run.evidence.rows("UPDATE lives SET records=3 WHERE node='bob'")
    assert run.violated() == {"a killed node goes on"}


def test_a_policy_that_went_backward_within_a_life_is_found(run: Run) -> None:
    run.records["alice"] = [(1, 2), (2, 1)]
    assert run.violated() == {"the policy's step only grows"}


def test_a_node_that_ended_by_itself_is_found(run: Run) -> None:
    run.evidence.rows("UPDATE lives SET how='ended: error: three rounds failed' WHERE life=2")
    assert "no node ended by itself" in run.violated()


@pytest.mark.parametrize("seconds", [None, 140.0])
def test_a_partition_that_does_not_heal_in_time_is_found(run: Run, seconds: float | None) -> None:
    run.evidence.add("heals", (1.0, "bob", 119.0, 0.0), (1.0, "alice", 130.0, 15.0))
    assert run.violated() == set()
    run.evidence.add("heals", (1.0, "alice", seconds, 15.0))
    assert run.violated() == {"a partition heals within 2 epochs"}


def test_a_frame_that_is_not_what_its_author_signed_is_found(run: Run) -> None:
    run.evidence.add("frames", (bytes(32), bytes(200)))
    assert run.violated() == {"frames are signed and whole"}


def sampled(run: Run, **last: float) -> list[Result]:
    """What is found flat where the last half of the samples has other figures than the first."""
    for second in range(100):
        figures = {"memory": 300.0, "fds": 60, "sockets": 20, "threads": 30}
        figures |= last if second >= 50 else {}
        row = (float(second), "bob", 30.0 + second, *figures.values(), 5.0, 1.0)
        run.evidence.add("samples", row)
        run.evidence.add("machine", (float(second), 0, 4, 2, 3))
    return [result for result in flat(run.evidence) if result.violations]


@pytest.mark.parametrize("figure", ["memory", "fds", "sockets", "threads"])
def test_what_grows_during_a_run_is_named(run: Run, figure: str) -> None:
    (found,) = sampled(run, **{figure: 400.0})
    assert figure in found.name


def test_what_stays_as_it_was_is_flat(run: Run) -> None:
    assert sampled(run) == []


def test_lost_processes_and_sockets_are_found(run: Run) -> None:
    sampled(run)
    run.evidence.add("machine", (time.time(), 1, 90, 2, 99))
    names = {result.name for result in flat(run.evidence) if result.violations}
    assert names == {"no process is lost", "unix sockets flat", "temporary files flat"}
