import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from node.tasks.scorer import Answered, Move, Moved
from node.tasks.sources.jsonl import file_digest
from node.tasks.task_set import Allowed
from node.tasks.verifier.verifier import Verifier, VerifierPool
from node.tasks.verifier.worker_process import WorkerLimits
from protocol.manifest import EnvSpec, canonical_json
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.verification import TrajectoryTexts, VerifierError
from tests.node import programs
from tests.node.programs import until

FILE = Path(__file__).with_name("turn_environments.py")
NAMES = (
    *("plain", "hanging", "waiting", "blocking", "meeting"),
    *("breaking", "burning", "passing", "dice"),
)
LENIENT = WorkerLimits(wall_seconds=60.0, cpu_seconds=30)
STRICT = WorkerLimits(wall_seconds=2.0, cpu_seconds=1)


class Played:
    """A verifier of all environments, and the file ``gate`` that some wait for."""

    def __init__(self, folder: Path, limits: WorkerLimits = LENIENT) -> None:
        self.counters = Counters()
        self.gate = folder / "gate"
        levels = (canonical_json({"gate": str(self.gate)}),)
        parts = "environment", file_digest(FILE), levels, "{question}", "text"
        specs = [EnvSpec(name, *parts) for name in NAMES]
        files, read = dict.fromkeys(NAMES, FILE), {name: [str(folder)] for name in NAMES}
        allowed = Allowed(files=files, read=read)
        kwargs = {"outside": False, "limits": limits, "counters": self.counters}
        self.verifier = Verifier(specs, allowed, **kwargs)

    def each(self, *moves: Move) -> list[Future[Moved]]:
        return self.verifier.play_each(moves)

    def one(self, move: Move) -> Future[Moved]:
        (outcome,) = self.each(move)
        return outcome

    def text(self, move: Move) -> str:
        return obs(self.one(move))


@pytest.fixture
def playing(tmp_path):
    with ExitStack() as stack:

        def opener(limits: WorkerLimits = LENIENT) -> Played:
            made = Played(tmp_path, limits)
            stack.callback(made.verifier.close)
            return made

        yield opener


@pytest.fixture
def played(playing):
    return playing()


def turn(key: int, name: str, *actions: str, final: bool = False) -> Move:
    return Move(key, TaskRef(name, 0, key), actions, final)


def obs(outcome: Future[Moved]) -> str:
    moved = outcome.result(60)
    assert isinstance(moved, Answered), moved
    return moved.observation


def reason(outcome: Future[Moved]) -> str:
    moved = outcome.result(60)
    assert isinstance(moved, VerifierError), moved
    return moved.reason


_others: list[psutil.Process] = []


@pytest.fixture(autouse=True)
def others():
    """Record workers that other tests left running, such as a shared verifier's."""
    _others[:] = programs.workers()


def workers() -> list[psutil.Process]:
    """Return the workers of this process that started during the test."""
    return [x for x in programs.workers() if x not in _others]


def turns(name: str, count: int, *actions: str) -> Sequence[Move]:
    return [turn(100 + number, name, *actions) for number in range(count)]


def test_hanging_turn_does_not_block_others_and_completes_later(played):
    hanging = played.one(turn(1, "hanging", "hang"))
    quick = played.verifier.play([*turns("plain", 20, "a"), *turns("waiting", 20, "a")])
    assert [each.observation for each in quick if isinstance(each, Answered)] == ["1 a"] * 40
    assert not hanging.done()
    played.gate.touch()
    assert obs(hanging) == "1 hang"
    assert played.text(turn(1, "hanging", "hang", "b")) == "2 b"
    assert played.counters.snapshot() == {}


def test_other_worker_continues_a_hanging_workers_trajectories(played):
    for move in turns("plain", 5, "a"):
        assert played.text(move) == "1 a"
    waiting = played.one(turn(1, "waiting", "a", "b", "wait"))
    hanging = played.one(turn(2, "hanging", "hang"))
    assert [obs(each) for each in played.each(*turns("plain", 5, "a", "b"))] == ["2 b"] * 5
    assert not hanging.done() and not waiting.done()
    played.gate.touch()
    assert (obs(waiting), obs(hanging)) == ("3 wait", "1 hang")


def test_only_the_turn_that_never_returns_times_out(playing):
    played = playing(STRICT)
    assert played.text(turn(1, "plain", "a")) == "1 a"
    outcomes = played.each(turn(2, "hanging", "hang"), *turns("plain", 5, "a"))
    assert [obs(each) for each in outcomes[1:]] == ["1 a"] * 5 and reason(outcomes[0]) == "timeout"
    assert played.text(turn(1, "plain", "a", "b")) == "2 b"
    assert played.counters.snapshot() == {"verifier_restarts{reason=timeout}": 1.0}
    until(lambda: len(workers()) == 1)


def test_unreplayable_trajectory_stays_with_its_worker(played):
    first = played.text(turn(1, "passing", "a"))
    blocking = played.one(turn(2, "blocking", "hang"))
    again = played.one(turn(1, "passing", "a", "b"))
    another = played.one(turn(3, "passing", "a"))
    assert obs(another) != first
    assert [obs(each) for each in played.each(*turns("plain", 5, "a"))] == ["1 a"] * 5
    assert not blocking.done() and not again.done()
    played.gate.touch()
    assert obs(again) == f"2 b {first.split()[-1]}" and obs(blocking) == "1 hang"


def test_unreplayable_trajectory_is_lost_with_its_worker(playing):
    played = playing(STRICT)
    assert played.text(turn(1, "passing", "a"))
    blocking = played.one(turn(2, "blocking", "hang"))
    again = played.one(turn(1, "passing", "a", "b"))
    assert (reason(blocking), reason(again)) == ("timeout", "not_replayed")
    ended = played.one(turn(1, "passing", "a", final=True))
    assert reason(ended) == "not_replayed", "a replay would give another first turn"


def test_one_worker_runs_waiting_environments_concurrently(played):
    first = played.one(turn(1, "meeting", "a"))
    assert played.text(turn(2, "plain", "a")) == "1 a"
    assert not first.done()
    second = played.one(turn(3, "meeting", "b"))
    assert (obs(first), obs(second)) == ("1 a", "1 b")
    assert played.verifier.waiting >= {"meeting", "waiting"}
    assert not played.verifier.waiting & {"plain", "hanging"}
    assert len(workers()) == 1


def test_waiting_turn_times_out_without_a_worker_restart(playing):
    played = playing(STRICT)
    outcomes = played.each(turn(1, "waiting", "wait"), turn(2, "passing", "a"))
    first = obs(outcomes[1])
    assert reason(outcomes[0]) == "timeout"
    assert played.text(turn(2, "passing", "a", "b")).split()[-1] == first.split()[-1]
    assert played.counters.snapshot() == {}


def test_worker_crash_fails_its_turn_but_not_waiting_turns(played):
    waiting = played.each(*turns("waiting", 5, "a", "wait"))
    assert played.text(turn(1, "breaking", "a")) == "1 a"
    assert reason(played.one(turn(1, "breaking", "a", "break"))) == "crashed"
    assert not any(each.done() for each in waiting)
    played.gate.touch()
    assert [obs(each) for each in waiting] == ["2 wait"] * 5
    assert played.counters.snapshot() == {"verifier_restarts{reason=crashed}": 1.0}


@pytest.mark.parametrize(("deed", "refused"), [("burn", "cpu_limit"), ("glow", "timeout")])
def test_busy_turn_hits_its_limit_but_waiting_turn_continues(playing, deed, refused):
    played = playing(WorkerLimits(wall_seconds=60.0, cpu_seconds=1))
    waiting = played.one(turn(1, "waiting", "wait"))
    assert reason(played.one(turn(2, "burning", deed))) == refused
    played.gate.touch()
    assert obs(waiting) == "1 wait"


def test_killed_worker_loses_only_its_current_turn(played):
    waiting = played.one(turn(1, "waiting", "a", "wait"))
    assert played.text(turn(2, "plain", "a")) == "1 a"
    (worker,) = workers()
    hanging = played.one(turn(3, "hanging", "hang"))
    until(lambda: len(workers()) == 2)
    assert played.text(turn(2, "plain", "a", "b")) == "2 b"
    worker.kill()
    assert reason(hanging) == "worker_lost"
    played.gate.touch()
    assert obs(waiting) == "2 wait"
    assert played.counters.snapshot() == {"verifier_restarts{reason=worker_lost}": 1.0}


def test_worker_killed_while_its_turns_wait_loses_no_turn(played):
    first = played.one(turn(1, "meeting", "a"))
    assert played.text(turn(2, "plain", "a")) == "1 a"
    for number in (1, 2):
        (worker,) = workers()
        # It has answered its current turn, and the other turn waits.
        worker.kill()
        lost = {"verifier_restarts{reason=idle}": number}
        until(lambda lost=lost: played.counters.snapshot() == lost)
        assert played.text(turn(2, "plain", "a", "b")) == "2 b"
    second = played.one(turn(3, "meeting", "b"))
    assert (obs(first), obs(second)) == ("1 a", "1 b")


def test_verifier_starts_no_third_worker_if_turns_hang(played):
    hanging = played.each(*(turn(number, "hanging", "hang") for number in range(6)))
    quick = played.each(*turns("plain", 5, "a"))
    until(lambda: len(workers()) == 2)
    time.sleep(1.5)
    assert len(workers()) == 2
    assert not any(each.done() for each in hanging)
    played.gate.touch()
    assert [obs(each) for each in [*hanging, *quick]] == ["1 hang"] * 6 + ["1 a"] * 5


def test_close_refuses_pending_turns_and_ends_every_process(played):
    assert played.text(turn(1, "plain", "a")) == "1 a"
    others = [*turns("waiting", 3, "wait"), *turns("plain", 3, "a")]
    outcomes = played.each(turn(2, "hanging", "hang"), *others)
    played.verifier.close()
    assert {reason(each) for each in outcomes} == {"unavailable"}
    assert reason(played.one(turn(3, "plain", "a"))) == "unavailable"
    assert workers() == []


def test_close_does_not_await_first_turn(played):
    outcome = played.one(turn(1, "plain", "a"))
    played.verifier.close()
    assert outcome.done() and workers() == []


def test_results_keep_the_move_order(played):
    names = ("meeting", "plain", "waiting", "nothing", "meeting", "plain")
    moves = [turn(number, name, f"{number}") for number, name in enumerate(names)]
    results = [getattr(each, "observation", "refused") for each in played.verifier.play(moves)]
    assert results == ["1 0", "1 1", "1 2", "refused", "1 4", "1 5"]


def test_verifier_starts_turn_worker_at_the_first_turn(played):
    played.verifier.start()
    assert played.verifier.prompts([TaskRef("plain", 0, 1)])
    assert len(workers()) == 1
    assert played.text(turn(1, "plain", "a")) == "1 a"
    assert len(workers()) == 2


def test_slow_verification_and_slow_turn_do_not_block_each_other(played):
    ref = TaskRef("hanging", 0, 1)
    hangs = [TrajectoryTexts(("hang", "1 hang", "stop"), truncated=False)]
    with VerifierPool([played.verifier]) as pool, ThreadPoolExecutor(1) as executor:
        verdict = executor.submit(pool.verify, ref, hangs)
        until(verdict.running)
        assert obs(pool.play_each([turn(1, "plain", "a")])[0]) == "1 a"
        assert not verdict.done()
        played.gate.touch()
        assert verdict.result(60).rewards == (0.5,)
        played.gate.unlink()
        hanging = played.one(turn(2, "hanging", "hang"))
        assert pool.verify(ref, [TrajectoryTexts(("stop",), truncated=False)]).rewards == (0.5,)
        assert not hanging.done()
        played.gate.touch()
        assert obs(hanging) == "1 hang"


def test_verifier_reproduces_trajectories_played_concurrently(played):
    texts = {number: [] for number in range(8)}
    for count in range(1, 5):
        moves = [turn(number, "dice", *"abcd"[:count]) for number in texts]
        for number, moved in enumerate(played.verifier.play(moves)):
            texts[number] += ["abcd"[count - 1], moved.observation]
    for number, each in texts.items():
        group = [TrajectoryTexts(tuple(each[:-1]), truncated=False)]
        assert played.verifier.verify(TaskRef("dice", 0, number), group).rewards == (0.5,)


def test_verifier_answers_more_turns_than_a_worker_can_hold(played):
    moves = [turn(number, "plain", "a") for number in range(2000)]
    assert {each.observation for each in played.verifier.play(moves)} == {"1 a"}


def test_verifier_refuses_turn_above_the_message_limit(played):
    refused, taken = played.each(turn(1, "plain", "x" * (33 << 20)), turn(2, "plain", "a"))
    assert reason(refused) == "crashed" and obs(taken) == "1 a"


MODULE = "node.tasks.verifier.worker_process.WORKER"


@pytest.fixture
def bent(played, monkeypatch):
    monkeypatch.setattr(MODULE, "tests.node.tasks.bent_worker")
    return played


@pytest.mark.parametrize("word", ["unasked", "nobody", "nowhere", "no text", "no end", "much"])
def test_malformed_reply_fails_only_current_turn(bent, word):
    outcomes = bent.each(turn(1, "plain", word), turn(2, "plain", "a"))
    assert reason(outcomes[0]) == "crashed" and obs(outcomes[1]) == "1 bent"
    assert bent.counters.snapshot() == {"verifier_restarts{reason=crashed}": 1.0}


def test_turn_fails_if_its_workers_exit_before_they_start_it(bent):
    assert reason(bent.one(turn(1, "plain", "leave"))) == "crashed"
    assert bent.text(turn(2, "plain", "a")) == "1 bent"


def test_verifier_ignores_a_duplicate_answer(bent):
    words = ("twice", "a", "blame", "a")
    outcomes = bent.each(*(turn(number, "plain", word) for number, word in enumerate(words)))
    assert [obs(outcomes[n]) for n in (0, 1, 3)] == ["1 bent"] * 3
    assert reason(outcomes[2]) == "crashed"


def test_verifier_refuses_turns_if_no_worker_starts(played, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(MODULE, "node.tasks.no_such_worker")
        assert reason(played.one(turn(1, "plain", "a"))) == "unavailable"
    assert played.text(turn(1, "plain", "a")) == "1 a"
