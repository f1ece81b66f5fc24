"""What the node makes of a worker that has been bent: nothing, and it is at an end."""

from __future__ import annotations

import socket
import subprocess
import threading
from typing import Any

import pytest

from node.concurrency.channel import Channel
from node.tasks.verifier.dialogue import answers
from node.tasks.verifier.worker_process import WorkerDied, WorkerProcess
from swarm.groups import TaskRef
from swarm.verification import Asked, Judged, Verdict

GROUPS = [Asked(TaskRef("sums", 0, seed), ["1", "2"]) for seed in range(2)]
FIRST = {"prompt": "?", "rewards": [1.0, 0.0], "unreadable": 0, "last": False}
LAST = {**FIRST, "last": True}


def heard(*replies: dict[str, Any]) -> list[tuple[Judged, int]]:
    """What comes of a worker that gives these replies to two groups and ends."""
    ours, theirs = (Channel(end) for end in socket.socketpair())
    process = subprocess.Popen(["true"])
    worker = WorkerProcess(process, ours)

    def bent() -> None:
        theirs.receive()
        for reply in replies:
            theirs.send(reply)
        theirs.close()

    thread = threading.Thread(target=bent)
    thread.start()
    try:
        return list(answers(worker, GROUPS, each=20.0, together=60.0))
    finally:
        thread.join()
        worker.end()


def test_answers_are_taken_to_the_last_one():
    assert heard(FIRST, LAST) == [(Verdict("?", (1.0, 0.0)), 0)] * 2
    assert len(heard(LAST)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": 1},
        {"rewards": [1.0]},
        {"rewards": [1.0, 2.0]},
        {"rewards": [1.0, float("nan")]},
        {"rewards": [True, 0.0]},
        {"rewards": None},
        {"unreadable": 3},
        {"unreadable": True},
        {"last": False},
        {"last": 0},
    ],
)
def test_a_worker_that_answers_nonsense_or_goes_on_is_at_an_end(change):
    with pytest.raises(WorkerDied) as death:
        heard(FIRST, {**LAST, **change}, LAST)
    assert not death.value.ran_out_of_time


def test_a_worker_that_ends_too_early_is_at_an_end():
    with pytest.raises(WorkerDied):
        heard(FIRST)
