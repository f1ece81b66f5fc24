"""Slow sam's texts take long to judge: he uses up his own time, and nobody waits for him twice."""

import asyncio
from collections.abc import Sequence

import pytest

from node.tasks.verifier.verifier import Verifier
from node.tasks.verifier.worker_process import WorkerLimits
from protocol.announcement import task_seed
from swarm import verification
from swarm.groups import TaskRef
from swarm.reputation import PROVEN
from swarm.verification import JudgeRefused, Verdict
from tests.hostile.deeds import GOOD
from tests.hostile.test_texts_that_burn import STRANGE, TASK
from tests.node.packages import declare
from tests.swarm.admission_parts import EPOCH_SECONDS, NOW, Gate, Peer, SumJudge

KEYS, GROUPS = 8, 6
LIMITS = WorkerLimits(cpu_seconds=5, wall_seconds=60.0)


class SlowJudge(SumJudge):
    """Sums in no time; deeds are done by a real verifier's worker, in a part of its time."""

    def __init__(self, verifier: Verifier, part: float = 1.0) -> None:
        super().__init__()
        self.verifier = verifier
        self.part = part
        self.asked: list[int] = []

    def judge(self, task: TaskRef, texts: Sequence[str], *, seconds: float | None = None):
        self.asked.append(task.seed)
        taken = None
        if texts[0] in ("doze", "sleep", "burn_in_c"):
            assert seconds is not None
            taken = self.verifier.judge(TASK, texts[:1], seconds=seconds * self.part).seconds
        found = super().judge(task, texts)
        return Verdict(found.prompt, found.rewards, taken)


@pytest.fixture
def gate(tmp_path, monkeypatch, request) -> Gate:
    declare(monkeypatch, tmp_path, "strange", "tests.hostile.strange_tasks:Strange")
    monkeypatch.chdir(tmp_path)
    # Of an epoch of a minute, six seconds in all and a second and a half for newcomers.
    monkeypatch.setattr(verification, "USED", 0.1)
    gate = Gate()
    limits = getattr(request, "param", LIMITS)
    with Verifier([STRANGE], outside=True, limits=limits) as verifier:
        assert verifier.judge(TASK, [GOOD]).rewards == (1.0,)
        gate.judge = SlowJudge(verifier)
        gate.open(gate.journal)
        yield gate


def slow_frame(peer: Peer, text: str = "doze", count: int = GROUPS) -> bytes:
    return peer.frame(*(peer.group(i, [text, "right"]) for i in range(count)))


async def test_a_proven_author_waits_for_one_request_of_eight_keys_with_slow_texts(gate):
    anna, keys = Peer(gate), [Peer(gate) for _ in range(KEYS)]
    gate.accounts.prove([(anna.author, 1.0)] * 4)
    assert gate.accounts.reputation(anna.author) >= PROVEN
    admit = gate.admission.admit
    slow = [asyncio.create_task(admit(slow_frame(key), key.author)) for key in keys]
    while not gate.judge.asked:
        await asyncio.sleep(0.01)
    before = len(gate.judge.asked)
    frame = anna.frame(*map(anna.group, range(4)))
    assert len(await admit(frame, anna.author)) == 4
    await asyncio.gather(*slow)
    hers = [gate.judge.asked.index(task_seed(anna.author, NOW, i)) for i in range(4)]
    # Reading her frame may take until the end of the request under way; then one more can begin.
    assert hers[0] <= before + 1
    assert hers == list(range(hers[0], hers[0] + 4))
    spent = sum(gate.accounts.get(key.author).seconds for key in keys)
    assert spent < 1.5 + 0.6 + 0.5
    assert gate.refused()["over_budget"] >= KEYS * GROUPS - 5
    assert not any(gate.accounts.banned(key.author) for key in keys)


def test_a_text_that_hangs_ends_with_what_is_left_of_its_frame(gate):
    sam = Peer(gate)
    assert gate.admit(slow_frame(sam, "sleep", 2), sam.author) == []
    # Of a frame's second nothing was left for the other group.
    assert gate.refused() == {"timeout": 1, "over_budget": 1}
    assert gate.accounts.get(sam.author).seconds > 0.9


async def test_on_a_machine_ten_times_too_slow_no_honest_author_is_penalized(gate):
    gate.judge.part = 0.1
    authors, slots = [Peer(gate) for _ in range(2)], 6
    for slot in range(slots):
        for author in authors:
            groups = (author.group(i, ["doze", "right"], epoch=NOW + slot) for i in range(3))
            gate.admit(author.frame(*groups, sequence=slot + 1), author.author)
        await gate.clock.advance(EPOCH_SECONDS)
    # Enough for a ban, if they counted.
    assert gate.refused()["timeout"] >= 10 * len(authors)
    for author in authors:
        account = gate.accounts.get(author.author)
        assert (account.penalties, account.barred) == (0.0, False)


@pytest.mark.parametrize("gate", [WorkerLimits(cpu_seconds=1, wall_seconds=600.0)], indirect=True)
def test_a_text_that_takes_its_whole_limit_of_cpu_time_is_penalized(gate, monkeypatch):
    monkeypatch.setattr(verification, "USED", 100.0)
    gate.open(gate.journal)
    sam = Peer(gate)
    assert gate.admit(slow_frame(sam, "burn_in_c", 1), sam.author) == []
    assert gate.refused() == {"cpu_limit": 1}
    assert 0.0 < gate.accounts.get(sam.author).penalties <= 0.5


def test_cpu_limits_of_one_author_add_up_and_one_on_a_slow_machine_does_not_ban(gate):
    sam, anna = Peer(gate), Peer(gate)
    gate.judge = SumJudge()
    gate.open(gate.journal)
    gate.admit(anna.frame(anna.group(0, ["refuse:cpu_limit", "x"])), anna.author)
    assert 0.0 < gate.accounts.get(anna.author).penalties < 1.0
    for number in range(10):
        group = sam.group(number, ["refuse:cpu_limit", "x"])
        gate.admit(sam.frame(group, sequence=number + 1), sam.author)
    assert gate.accounts.banned(sam.author)
    assert not gate.accounts.banned(anna.author)


def test_a_request_is_bounded_by_what_its_caller_has_left(gate):
    with pytest.raises(JudgeRefused) as refused:
        gate.judge.verifier.judge(TASK, ["sleep"], seconds=0.3)
    assert refused.value.reason == "timeout"
    assert refused.value.seconds is not None
    assert 0.3 <= refused.value.seconds < 15.0
