"""Slow sam's texts use up sam's own verification time; others do not wait long."""

import asyncio
from collections.abc import Sequence

import pytest

from node.tasks.verifier.verifier import Verifier
from node.tasks.verifier.worker_process import WorkerLimits
from protocol.announcement import task_seed
from swarm import verification
from swarm.groups import TaskRef
from swarm.reputation import PROVEN
from swarm.verification import Scores, VerifierError
from tests.hostile.deeds import GOOD
from tests.hostile.test_texts_that_burn import STRANGE, TASK
from tests.node.packages import declare
from tests.swarm.admission_parts import EPOCH_SECONDS, NOW, Gate, Peer, SumVerifier

KEYS, GROUPS = 8, 6
LIMITS = WorkerLimits(cpu_seconds=5, wall_seconds=60.0)


class SlowVerifier(SumVerifier):
    """Verifies sums itself; a real worker runs slow texts in part of their time."""

    def __init__(self, verifier: Verifier, part: float = 1.0) -> None:
        super().__init__()
        self.verifier = verifier
        self.part = part
        self.asked: list[int] = []

    def verify(self, task: TaskRef, texts: Sequence[str], *, seconds: float | None = None):
        self.asked.append(task.seed)
        elapsed = None
        if texts[0] in ("doze", "sleep", "burn_in_c"):
            assert seconds is not None
            elapsed = self.verifier.verify(TASK, texts[:1], seconds=seconds * self.part).seconds
        result = super().verify(task, texts)
        return Scores(result.prompt, result.rewards, elapsed)


@pytest.fixture
def gate(tmp_path, monkeypatch, request) -> Gate:
    declare(monkeypatch, tmp_path, "strange", "tests.hostile.strange_tasks:Strange")
    monkeypatch.chdir(tmp_path)
    # In a time slot of a minute: 6 s for all authors, of which 1.5 s for unproven ones.
    monkeypatch.setattr(verification, "USED", 0.1)
    limits = getattr(request, "param", LIMITS)
    with Verifier([STRANGE], outside=True, limits=limits) as verifier:
        assert verifier.verify(TASK, [GOOD]).rewards == (1.0,)
        yield Gate(verifier=SlowVerifier(verifier))


def slow_frame(peer: Peer, text: str = "doze", count: int = GROUPS) -> bytes:
    return peer.frame(*(peer.group(i, [text, "right"]) for i in range(count)))


async def test_proven_author_waits_for_one_slow_request_only(gate):
    anna, keys = Peer(gate), [Peer(gate) for _ in range(KEYS)]
    gate.accounts.prove([(anna.author, 1.0)] * 4)
    assert gate.accounts.reputation(anna.author) >= PROVEN
    admit = gate.admission.admit
    slow = [asyncio.create_task(admit(slow_frame(key), key.author)) for key in keys]
    while not gate.verifier.asked:
        await asyncio.sleep(0.01)
    before = len(gate.verifier.asked)
    frame = anna.frame(*map(anna.group, range(4)))
    assert len(await admit(frame, anna.author)) == 4
    await asyncio.gather(*slow)
    order = [gate.verifier.asked.index(task_seed(anna.author, NOW, i)) for i in range(4)]
    # Opening anna's frame may take until the current request ends; then one more can begin.
    assert order[0] <= before + 1
    assert order == list(range(order[0], order[0] + 4))
    spent = sum(gate.accounts.get(key.author).seconds for key in keys)
    assert spent < 1.5 + 0.6 + 0.5
    assert gate.refused()["over_budget"] >= KEYS * GROUPS - 5
    assert not any(gate.accounts.banned(key.author) for key in keys)


def test_hanging_text_uses_up_its_frame_time(gate):
    sam = Peer(gate)
    assert gate.admit(slow_frame(sam, "sleep", 2), sam.author) == []
    # The first group used up the frame's second, so none was left for the other one.
    assert gate.refused() == {"timeout": 1, "over_budget": 1}
    assert gate.accounts.get(sam.author).seconds > 0.9


async def test_slow_machine_does_not_penalize_honest_authors(gate):
    gate.verifier.part = 0.1
    authors, slots = [Peer(gate) for _ in range(2)], 6
    for slot in range(slots):
        for author in authors:
            groups = (author.group(i, ["doze", "right"], epoch=NOW + slot) for i in range(3))
            gate.admit(author.frame(*groups, sequence=slot + 1), author.author)
        await gate.clock.advance(EPOCH_SECONDS)
    # These would cause a ban if they counted.
    assert gate.refused()["timeout"] >= 10 * len(authors)
    for author in authors:
        account = gate.accounts.get(author.author)
        assert (account.penalties, account.barred) == (0.0, False)


@pytest.mark.parametrize("gate", [WorkerLimits(cpu_seconds=1, wall_seconds=600.0)], indirect=True)
def test_text_at_the_cpu_limit_penalizes_its_author(gate, monkeypatch):
    monkeypatch.setattr(verification, "USED", 100.0)
    gate.open(gate.journal)
    sam = Peer(gate)
    assert gate.admit(slow_frame(sam, "burn_in_c", 1), sam.author) == []
    assert gate.refused() == {"cpu_limit": 1}
    assert 0.0 < gate.accounts.get(sam.author).penalties <= 0.5


def test_repeated_cpu_limits_ban_an_author_but_one_does_not():
    gate = Gate()
    sam, anna = Peer(gate), Peer(gate)
    gate.admit(anna.frame(anna.group(0, ["refuse:cpu_limit", "x"])), anna.author)
    assert 0.0 < gate.accounts.get(anna.author).penalties < 1.0
    for number in range(10):
        group = sam.group(number, ["refuse:cpu_limit", "x"])
        gate.admit(sam.frame(group, sequence=number + 1), sam.author)
    assert gate.accounts.banned(sam.author)
    assert not gate.accounts.banned(anna.author)


def test_request_ends_within_its_time_limit(gate):
    with pytest.raises(VerifierError) as refused:
        gate.verifier.verifier.verify(TASK, ["sleep"], seconds=0.3)
    assert refused.value.reason == "timeout"
    assert refused.value.seconds is not None
    assert 0.3 <= refused.value.seconds < 15.0
