from __future__ import annotations

import threading

import pytest

from node.concurrency.threads import WorkThread


def test_work_is_done_in_turn_on_one_thread() -> None:
    worker = WorkThread("worker")
    done: list[int] = []
    results = [worker.submit(lambda n=n: done.append(n) or threading.get_ident()) for n in range(9)]
    (only,) = {result.result(20) for result in results}
    assert done == list(range(9))
    assert only != threading.get_ident()
    worker.close()


def test_an_error_is_raised_where_the_result_is_asked_for_and_the_next_work_is_done() -> None:
    worker = WorkThread("worker")
    failed = worker.submit(lambda: 1 / 0)
    assert worker.submit(lambda: 7).result(20) == 7
    with pytest.raises(ZeroDivisionError):
        failed.result(20)
    worker.close()
