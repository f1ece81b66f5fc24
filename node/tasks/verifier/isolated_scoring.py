"""Scoring by evaluation, with one process per text, and CPU time limits."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from node.environments.own_file import NotReplayed
from node.tasks.sandbox import seccomp
from node.tasks.scorer import GroupRewards, OverLimit, score
from node.tasks.task import ScoringError, Task, TaskError, TaskSource
from swarm.verification import CRASHED, NOT_REPLAYED, TIMEOUT, UNKNOWN_ENV

_REPLY_BYTES = 4096
_REPLY = 3


class OutOfTime(Exception):  # noqa: N818 - what happened
    """A turn used up its CPU time."""


def score_apart(
    source: TaskSource, task: Task, texts: Sequence[str], program: bytes, cpu_seconds: int
) -> GroupRewards:
    """Score like :func:`node.tasks.scorer.score`, for text that may run as code.

    A copy of this process scores each text, under the seccomp ``program``. It cannot affect other
    texts, and can reply only for its own; one that exceeds its CPU time is wrong. Raises
    ScoringError: a text left no reward.
    """
    replies = [_ask(source, task, text, program, cpu_seconds) for text in texts]
    return GroupRewards([reward for reward, _ in replies], sum(tripped for _, tripped in replies))


def _ask(
    source: TaskSource, task: Task, text: str, program: bytes, cpu_seconds: int
) -> tuple[float, bool]:
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        _answer(source, task, text, program, cpu_seconds, theirs)
    os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as end:
            reply = end.read(_REPLY_BYTES)
    finally:
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not reply and status == -signal.SIGXCPU:
        return 0.0, True
    try:  # what its text may have written
        reward, unreadable = json.loads(reply)
    except (ValueError, TypeError, RecursionError) as error:
        raise ScoringError("a text left no reward") from error
    if type(reward) is not float or not 0.0 <= reward <= 1.0 or unreadable not in (0, 1):
        raise ScoringError("a text left something that is no reward")
    return reward, bool(unreadable)


def _answer(
    source: TaskSource, task: Task, text: str, program: bytes, cpu_seconds: int, end: int
) -> NoReturn:
    import resource  # not on Windows, where scoring evaluates no text

    try:
        os.dup2(end, _REPLY)
        os.closerange(_REPLY + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        seccomp.die_with_parent()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        seccomp.load(program)
        scores = score(source, task, [text])
        os.write(_REPLY, json.dumps([scores.rewards[0], scores.unreadable]).encode())
    finally:
        os._exit(0)


def allow_cpu(seconds: float) -> None:
    """Have the kernel end this process after ``seconds`` more (whole) CPU seconds."""
    if os.name != "posix":
        return  # the node ends it by wall time
    import resource

    used = math.ceil(sum(os.times()[:2]))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + math.ceil(seconds), hard))


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise OverLimit in this process's main thread after ``seconds`` of its CPU time."""
    if not hasattr(signal, "setitimer"):
        yield  # the node ends this process by wall time
        return

    def stop(*_: object) -> NoReturn:
        raise OverLimit(f"an answer took more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    # Again and again: an exception in a finalizer is lost.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def refused(error: Exception) -> dict[str, Any]:
    match error:
        case OutOfTime() | TimeoutError():
            reason = TIMEOUT
        case NotReplayed():
            reason = NOT_REPLAYED
        case TaskError():
            reason = UNKNOWN_ENV
        case _:
            # Recursion limits differ between interpreters, so they must not decide a result.
            reason = CRASHED
    return {"refused": reason, "detail": str(error)}
