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
from swarm.verification import JudgeRefused, TrajectoryTexts
from tests.node import programs
from tests.node.programs import until

FILE = Path(__file__).with_name("turn_environments.py")
NAMES = (
    *("plain", "hanging", "waiting", "blocking", "meeting"),
    *("breaking", "burning", "passing", "dice"),
)
PATIENT = WorkerLimits(wall_seconds=60.0, cpu_seconds=30)
HASTY = WorkerLimits(wall_seconds=2.0, cpu_seconds=1)


class Played:
    """A verifier of all of them, and the file that those wait for which wait: the gate."""

    def __init__(self, folder: Path, limits: WorkerLimits = PATIENT) -> None:
        self.counters = Counters()
        self.gate = folder / "gate"
        levels = (canonical_json({"gate": str(self.gate)}),)
        parts = "environment", file_digest(FILE), levels, "{question}", "text"
        specs = [EnvSpec(name, *parts) for name in NAMES]
        files, read = dict.fromkeys(NAMES, FILE), {name: [str(folder)] for name in NAMES}
        allowed = Allowed(files=files, read=read)
        how = {"outside": False, "limits": limits, "counters": self.counters}
        self.verifier = Verifier(specs, allowed, **how)

    def each(self, *moves: Move) -> list[Future[Moved]]:
        return self.verifier.play_each(moves)

    def one(self, move: Move) -> Future[Moved]:
        (outcome,) = self.each(move)
        return outcome

    def text(self, move: Move) -> str:
        return told(self.one(move))


@pytest.fixture
def playing(tmp_path):
    with ExitStack() as stack:

        def opener(limits: WorkerLimits = PATIENT) -> Played:
            made = Played(tmp_path, limits)
            stack.callback(made.verifier.close)
            return made

        yield opener


@pytest.fixture
def played(playing):
    return playing()


def turn(key: int, name: str, *actions: str, final: bool = False) -> Move:
    return Move(key, TaskRef(name, 0, key), actions, final)


def told(outcome: Future[Moved]) -> str:
    moved = outcome.result(60)
    assert isinstance(moved, Answered), moved
    return moved.observation


def reason(outcome: Future[Moved]) -> str:
    moved = outcome.result(60)
    assert isinstance(moved, JudgeRefused), moved
    return moved.reason


_others: list[psutil.Process] = []


@pytest.fixture(autouse=True)
def others():
    """What other tests of this process have left running, as a verifier that several share."""
    _others[:] = programs.workers()


def workers() -> list[psutil.Process]:
    """Those of this process that run since the test began."""
    return [x for x in programs.workers() if x not in _others]


def crowd(name: str, count: int, *actions: str) -> Sequence[Move]:
    return [turn(100 + number, name, *actions) for number in range(count)]


def test_what_hangs_delays_nobody_and_is_answered_when_it_has_returned(played):
    hanging = played.one(turn(1, "hanging", "hang"))
    quick = played.verifier.play([*crowd("plain", 20, "a"), *crowd("waiting", 20, "a")])
    assert [each.observation for each in quick if isinstance(each, Answered)] == ["1 a"] * 40
    assert not hanging.done()
    played.gate.touch()
    assert told(hanging) == "1 hang"
    assert played.text(turn(1, "hanging", "hang", "b")) == "2 b"
    assert played.counters.snapshot() == {}


def test_trajectories_of_a_worker_that_hangs_go_on_where_they_were(played):
    for move in crowd("plain", 5, "a"):
        assert played.text(move) == "1 a"
    waiting = played.one(turn(1, "waiting", "a", "b", "wait"))
    hanging = played.one(turn(2, "hanging", "hang"))
    assert [told(each) for each in played.each(*crowd("plain", 5, "a", "b"))] == ["2 b"] * 5
    assert not hanging.done() and not waiting.done()
    played.gate.touch()
    assert (told(waiting), told(hanging)) == ("3 wait", "1 hang")


def test_what_never_returns_is_lost_in_its_time_and_nothing_else(playing):
    played = playing(HASTY)
    assert played.text(turn(1, "plain", "a")) == "1 a"
    outcomes = played.each(turn(2, "hanging", "hang"), *crowd("plain", 5, "a"))
    assert [told(each) for each in outcomes[1:]] == ["1 a"] * 5 and reason(outcomes[0]) == "timeout"
    assert played.text(turn(1, "plain", "a", "b")) == "2 b"
    assert played.counters.snapshot() == {"verifier_restarts{reason=timeout}": 1.0}
    until(lambda: len(workers()) == 1)


def test_what_cannot_be_played_again_stays_with_the_worker_that_has_it(played):
    first = played.text(turn(1, "passing", "a"))
    blocking = played.one(turn(2, "blocking", "hang"))
    again = played.one(turn(1, "passing", "a", "b"))
    another = played.one(turn(3, "passing", "a"))
    assert told(another) != first
    assert [told(each) for each in played.each(*crowd("plain", 5, "a"))] == ["1 a"] * 5
    assert not blocking.done() and not again.done()
    played.gate.touch()
    assert told(again) == f"2 b {first.split()[-1]}" and told(blocking) == "1 hang"


def test_what_cannot_be_played_again_is_lost_with_its_worker(playing):
    played = playing(HASTY)
    assert played.text(turn(1, "passing", "a"))
    blocking = played.one(turn(2, "blocking", "hang"))
    again = played.one(turn(1, "passing", "a", "b"))
    assert (reason(blocking), reason(again)) == ("timeout", "not_replayed")
    ended = played.one(turn(1, "passing", "a", final=True))
    assert reason(ended) == "not_replayed", "its first turn would be another one"


def test_environments_that_wait_go_on_side_by_side_however_they_were_asked_for(played):
    first = played.one(turn(1, "meeting", "a"))
    assert played.text(turn(2, "plain", "a")) == "1 a"
    assert not first.done()
    second = played.one(turn(3, "meeting", "b"))
    assert (told(first), told(second)) == ("1 a", "1 b")
    assert played.verifier.waiting >= {"meeting", "waiting"}
    assert not played.verifier.waiting & {"plain", "hanging"}
    assert len(workers()) == 1


def test_what_waits_too_long_is_refused_and_costs_no_worker(playing):
    played = playing(HASTY)
    outcomes = played.each(turn(1, "waiting", "wait"), turn(2, "passing", "a"))
    first = told(outcomes[1])
    assert reason(outcomes[0]) == "timeout"
    assert played.text(turn(2, "passing", "a", "b")).split()[-1] == first.split()[-1]
    assert played.counters.snapshot() == {}


def test_what_breaks_its_worker_is_lost_and_those_that_wait_there_go_on(played):
    waiting = played.each(*crowd("waiting", 5, "a", "wait"))
    assert played.text(turn(1, "breaking", "a")) == "1 a"
    assert reason(played.one(turn(1, "breaking", "a", "break"))) == "crashed"
    assert not any(each.done() for each in waiting)
    played.gate.touch()
    assert [told(each) for each in waiting] == ["2 wait"] * 5
    assert played.counters.snapshot() == {"verifier_restarts{reason=crashed}": 1.0}


@pytest.mark.parametrize(("deed", "refused"), [("burn", "cpu_limit"), ("glow", "timeout")])
def test_what_burns_is_out_of_time_and_those_that_wait_go_on(playing, deed, refused):
    played = playing(WorkerLimits(wall_seconds=60.0, cpu_seconds=1))
    waiting = played.one(turn(1, "waiting", "wait"))
    assert reason(played.one(turn(2, "burning", deed))) == refused
    played.gate.touch()
    assert told(waiting) == "1 wait"


def test_a_worker_that_is_killed_loses_the_turn_that_it_is_at_and_no_other(played):
    waiting = played.one(turn(1, "waiting", "a", "wait"))
    assert played.text(turn(2, "plain", "a")) == "1 a"
    (worker,) = workers()
    hanging = played.one(turn(3, "hanging", "hang"))
    until(lambda: len(workers()) == 2)
    assert played.text(turn(2, "plain", "a", "b")) == "2 b"
    worker.kill()
    assert reason(hanging) == "worker_lost"
    played.gate.touch()
    assert told(waiting) == "2 wait"
    assert played.counters.snapshot() == {"verifier_restarts{reason=worker_lost}": 1.0}


def test_a_worker_that_is_killed_while_its_turns_wait_loses_none(played):
    first = played.one(turn(1, "meeting", "a"))
    assert played.text(turn(2, "plain", "a")) == "1 a"
    for number in (1, 2):
        (worker,) = workers()
        # It has answered the turn that it was at, and the other one waits.
        worker.kill()
        lost = {"verifier_restarts{reason=idle}": number}
        until(lambda lost=lost: played.counters.snapshot() == lost)
        assert played.text(turn(2, "plain", "a", "b")) == "2 b"
    second = played.one(turn(3, "meeting", "b"))
    assert (told(first), told(second)) == ("1 a", "1 b")


def test_however_much_hangs_there_are_two_workers_at_most(played):
    hanging = played.each(*(turn(number, "hanging", "hang") for number in range(6)))
    quick = played.each(*crowd("plain", 5, "a"))
    until(lambda: len(workers()) == 2)
    time.sleep(1.5)
    assert len(workers()) == 2
    assert not any(each.done() for each in hanging)
    played.gate.touch()
    assert [told(each) for each in [*hanging, *quick]] == ["1 hang"] * 6 + ["1 a"] * 5


def test_closing_refuses_what_is_under_way_and_ends_every_process(played):
    assert played.text(turn(1, "plain", "a")) == "1 a"
    others = [*crowd("waiting", 3, "wait"), *crowd("plain", 3, "a")]
    outcomes = played.each(turn(2, "hanging", "hang"), *others)
    played.verifier.close()
    assert {reason(each) for each in outcomes} == {"unavailable"}
    assert reason(played.one(turn(3, "plain", "a"))) == "unavailable"
    assert workers() == []


def test_closing_waits_for_no_first_turn(played):
    outcome = played.one(turn(1, "plain", "a"))
    played.verifier.close()
    assert outcome.done() and workers() == []


def test_results_are_in_the_order_of_the_moves_whoever_is_answered_first(played):
    names = ("meeting", "plain", "waiting", "nothing", "meeting", "plain")
    moves = [turn(number, name, f"{number}") for number, name in enumerate(names)]
    found = [getattr(each, "observation", "refused") for each in played.verifier.play(moves)]
    assert found == ["1 0", "1 1", "1 2", "refused", "1 4", "1 5"]


def test_there_is_no_process_for_turns_before_the_first_one(played):
    played.verifier.start()
    assert played.verifier.prompts([TaskRef("plain", 0, 1)])
    assert len(workers()) == 1
    assert played.text(turn(1, "plain", "a")) == "1 a"
    assert len(workers()) == 2


def test_a_verdict_that_takes_long_holds_up_no_turn_and_no_turn_a_verdict(played):
    ref = TaskRef("hanging", 0, 1)
    hangs = [TrajectoryTexts(("hang", "1 hang", "stop"), cut=False)]
    with VerifierPool([played.verifier]) as pool, ThreadPoolExecutor(1) as aside:
        verdict = aside.submit(pool.judge, ref, hangs)
        until(verdict.running)
        assert told(pool.play_each([turn(1, "plain", "a")])[0]) == "1 a"
        assert not verdict.done()
        played.gate.touch()
        assert verdict.result(60).rewards == (0.5,)
        played.gate.unlink()
        hanging = played.one(turn(2, "hanging", "hang"))
        assert pool.judge(ref, [TrajectoryTexts(("stop",), cut=False)]).rewards == (0.5,)
        assert not hanging.done()
        played.gate.touch()
        assert told(hanging) == "1 hang"


def test_trajectories_that_wait_side_by_side_are_judged_as_they_were_played(played):
    texts = {number: [] for number in range(8)}
    for count in range(1, 5):
        moves = [turn(number, "dice", *"abcd"[:count]) for number in texts]
        for number, moved in enumerate(played.verifier.play(moves)):
            texts[number] += ["abcd"[count - 1], moved.observation]
    for number, each in texts.items():
        told_of = [TrajectoryTexts(tuple(each[:-1]), cut=False)]
        assert played.verifier.judge(TaskRef("dice", 0, number), told_of).rewards == (0.5,)


def test_many_more_turns_than_a_worker_has_at_a_time_are_all_taken(played):
    moves = [turn(number, "plain", "a") for number in range(2000)]
    assert {each.observation for each in played.verifier.play(moves)} == {"1 a"}


def test_a_turn_that_is_larger_than_any_message_is_refused(played):
    refused, taken = played.each(turn(1, "plain", "x" * (33 << 20)), turn(2, "plain", "a"))
    assert reason(refused) == "crashed" and told(taken) == "1 a"


MODULE = "node.tasks.verifier.worker_process.WORKER"


@pytest.fixture
def bent(played, monkeypatch):
    monkeypatch.setattr(MODULE, "tests.node.tasks.bent_worker")
    return played


@pytest.mark.parametrize("word", ["unasked", "nobody", "nowhere", "no text", "no end", "much"])
def test_a_bent_worker_costs_the_turn_that_it_is_at(bent, word):
    outcomes = bent.each(turn(1, "plain", word), turn(2, "plain", "a"))
    assert reason(outcomes[0]) == "crashed" and told(outcomes[1]) == "1 bent"
    assert bent.counters.snapshot() == {"verifier_restarts{reason=crashed}": 1.0}


def test_a_turn_whose_workers_die_before_they_begin_it_is_given_up(bent):
    assert reason(bent.one(turn(1, "plain", "leave"))) == "crashed"
    assert bent.text(turn(2, "plain", "a")) == "1 bent"


def test_an_answer_that_comes_twice_counts_once(bent):
    words = ("twice", "a", "blame", "a")
    outcomes = bent.each(*(turn(number, "plain", word) for number, word in enumerate(words)))
    assert [told(outcomes[n]) for n in (0, 1, 3)] == ["1 bent"] * 3
    assert reason(outcomes[2]) == "crashed"


def test_where_no_worker_can_be_started_turns_are_refused(played, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(MODULE, "node.tasks.no_such_worker")
        assert reason(played.one(turn(1, "plain", "a"))) == "unavailable"
    assert played.text(turn(1, "plain", "a")) == "1 a"
