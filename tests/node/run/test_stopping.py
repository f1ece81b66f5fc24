from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from node.concurrency.threads import LoopThread
from node.run.foreground import STOPS, stopping


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPS)
def test_before_the_work_a_signal_interrupts_at_once_with_a_word(number, capsys) -> None:
    with pytest.raises(KeyboardInterrupt), stopping():
        press(number)
    assert capsys.readouterr().out == f"stopping at once ({number.name})\n"


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_during_the_work_lets_the_round_end_and_the_closing_is_left_alone(
    number, capsys
) -> None:
    with stopping() as stop:
        with stop.working():
            press(number)
            assert stop.is_set()
        press(number)
    told = f"stopping in order; once more stops at once ({number.name})\n"
    assert capsys.readouterr().out == told


def test_the_second_signal_interrupts_the_round_once() -> None:
    with stopping() as stop:
        with pytest.raises(KeyboardInterrupt), stop.working():
            press()
            press()
        press()


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


def test_an_interrupted_wait_lasts_until_its_work_has_put_everything_back(
    loop: LoopThread,
) -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            threading.Timer(0.05, press).start()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            steps.append("put back")

    with pytest.raises(KeyboardInterrupt), stopping():
        loop.call(work())
    assert steps == ["put back"]


def test_an_error_of_the_work_is_passed_on_as_it_is(loop: LoopThread) -> None:
    async def work() -> None:
        raise TimeoutError("of the work itself")

    with pytest.raises(TimeoutError, match="of the work itself"):
        loop.call(work(), timeout=60)
