"""Scoring of texts that may run as code: each in a copy of the worker, which ends with it."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from node.tasks.sandbox.confine import load_seccomp
from node.tasks.sandbox.namespaces import die_with_parent
from node.tasks.scorer import MOST_FAULT, GroupRewards, score
from node.tasks.task import ScoringError, Task, TaskSource

_REPLY_BYTES = 4096
_REPLY = 3


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits of a copy: its seccomp program, CPU time and wall time.

    An answer that takes ``slow_seconds`` of CPU time is slow (:func:`node.tasks.scorer.score`).
    """

    program: bytes
    cpu_seconds: int
    wall_seconds: float
    slow_seconds: float


def score_apart(
    source: TaskSource, task: Task, texts: Sequence[str], limits: CopyLimits
) -> GroupRewards:
    """Score like :func:`node.tasks.scorer.score`, for text that may run as code.

    A copy of this process scores each text. It cannot affect other texts, and can reply only for
    its own; one that exceeds its ``limits`` or ends its copy is wrong. Raises ScoringError: a text
    left another reply than a reward; OSError: this machine had no process for it, or ended it.
    """
    replies = [_scored_in_fork(source, task, text, limits) for text in texts]
    results = [reply or (0.0, True, "", True) for reply in replies]
    rewards, unreadable = [reward for reward, *_ in results], sum(bad for _, bad, *_ in results)
    slow = [number for number, (*_, is_slow) in enumerate(results) if is_slow]
    return GroupRewards(rewards, unreadable, slow, next((f for _, _, f, _ in results if f), ""))


def _scored_in_fork(
    source: TaskSource, task: Task, text: str, limits: CopyLimits
) -> tuple[float, bool, str, bool] | None:
    """Return reward, unreadable, error and slow; None if its copy ended or hangs."""
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if not child:
        _score_as_fork(source, task, text, limits, writer)
    os.close(writer)
    try:
        reply = _read_reply(reader, limits.wall_seconds)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    cpu_time = usage.ru_utime + usage.ru_stime
    if reply is None:
        return None  # it sleeps, or waits for what does not come
    if not reply:
        # A text that runs as code may ignore the first signal.
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if signum == signal.SIGKILL and cpu_time < limits.cpu_seconds:
            raise OSError("the operating system ended the process of a text")
        return None  # for example an endless loop or recursion, or ``sys.exit()``
    try:  # what its text may have written
        reward, unreadable, fault = json.loads(reply)
    except (ValueError, TypeError, RecursionError) as error:
        raise ScoringError("a text left no reward") from error
    if type(reward) is not float or not 0.0 <= reward <= 1.0 or unreadable not in (0, 1):
        raise ScoringError("a text gave a result that is not a reward")
    fault = f"{fault:.{MOST_FAULT}}" if isinstance(fault, str) else ""
    return reward, bool(unreadable), fault, cpu_time >= limits.slow_seconds


def _read_reply(fd: int, seconds: float) -> bytes | None:
    """Return what a copy wrote until it ended, empty if nothing; None if it has not ended."""
    reply, deadline, poller = b"", time.monotonic() + seconds, select.poll()
    poller.register(fd, select.POLLIN)
    while poller.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
        chunk = os.read(fd, _REPLY_BYTES - len(reply))
        reply += chunk
        if not chunk or len(reply) == _REPLY_BYTES:
            return reply
    return None


def _score_as_fork(
    source: TaskSource, task: Task, text: str, limits: CopyLimits, fd: int
) -> NoReturn:
    import resource  # not on Windows, where scoring evaluates no text

    try:
        os.dup2(fd, _REPLY)
        os.closerange(_REPLY + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 1))
        load_seccomp(limits.program)
        scores = score(source, task, [text])
        os.write(_REPLY, json.dumps([scores.rewards[0], scores.unreadable, scores.fault]).encode())
    finally:
        os._exit(0)
