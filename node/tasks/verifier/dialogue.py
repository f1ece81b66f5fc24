"""Requests to a worker about groups, and checks of its replies.

The worker replies to each group when it is scored, so the node sees which one hangs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from node.tasks.task_set import evaluates
from node.tasks.verifier.worker_process import WorkerDied, WorkerProcess
from protocol.manifest import EnvSpec
from swarm.groups import TaskRef
from swarm.verification import (
    CRASHED,
    EVALUATES_TEXT,
    NOT_REPLAYABLE,
    NOT_REPLAYED,
    TIMEOUT,
    UNKNOWN_ENV,
    Answer,
    Asked,
    Judged,
    JudgeRefused,
    TrajectoryTexts,
    Verdict,
)

MOMENT_SECONDS = 0.05  # Then a worker begins no further group of a request: others may wait.
_MOST_GROUPS = 32
_MOST_CHARACTERS = 1 << 20


def wire(task: TaskRef) -> list[Any]:
    return [task.env, task.level, task.seed, task.split.value]


def admit(worker: WorkerProcess, specs: Mapping[str, EnvSpec], task: TaskRef) -> None:
    """Raise ``JudgeRefused`` if a worker does not serve a task's env or level."""
    env, level = task.env, task.level
    if env in worker.closed and evaluates(specs[env]):
        raise JudgeRefused(EVALUATES_TEXT, worker.closed[env], 0.0)
    if env not in worker.envs:
        closed = worker.closed.get(env, f"{env!r} is not served here")
        raise JudgeRefused(UNKNOWN_ENV, closed, 0.0)
    if not 0 <= level < worker.envs[env].levels:
        raise JudgeRefused(UNKNOWN_ENV, f"env {env!r} has no level {level}", 0.0)


def admitted(
    worker: WorkerProcess, specs: Mapping[str, EnvSpec], asked: Sequence[Asked]
) -> Sequence[Asked]:
    """Return the first groups that fit in one request: one of any length, or several.

    Raises ``JudgeRefused`` if the worker does not serve the first or cannot verify it.
    """
    length = 0
    for number, group in enumerate(asked[:_MOST_GROUPS]):
        length += sum(map(_length, group.texts))
        try:
            admit(worker, specs, group.task)
            if not worker.envs[group.task.env].replayable:
                why = f"env {group.task.env!r} never answers twice alike"
                raise JudgeRefused(NOT_REPLAYABLE, why, 0.0)
        except JudgeRefused:
            if number:
                return asked[:number]
            raise
        if number and length > _MOST_CHARACTERS:
            return asked[:number]
    return asked[:_MOST_GROUPS]


def answers(
    worker: WorkerProcess, groups: Sequence[Asked], *, each: float, together: float
) -> Iterator[tuple[Judged, int]]:
    """Yield the result of each of the first groups, and its count of unreadable texts.

    ``each`` is the timeout in seconds per group, ``together`` for all groups. The caller ends the
    worker unless it consumes all results. Raises WorkerDied: the worker was lost on the group in
    progress.
    """
    last = time.monotonic()
    end = last + together
    message = {
        "groups": [(wire(g.task), list(map(_encoded, g.texts))) for g in groups],
        # The last group has at least half of the time.
        "seconds": min(MOMENT_SECONDS, together / 2),
    }
    worker.send(message, min(each, together))
    for number, group in enumerate(groups, 1):
        reply = worker.receive(min(each, end - last))
        now = time.monotonic()
        found, last = _outcome(reply, group.texts, now - last), now
        over = reply.get("last")
        if not over and number == len(groups):
            raise nonsense("last answer is followed by another")
        yield found
        if over:
            return


def refusal(reply: dict[str, Any], seconds: float, *, played: bool = False) -> JudgeRefused | None:
    """Return a reply's refusal, if any; ``played``: the task is an environment."""
    if "refused" not in reply:
        return None
    # A compromised worker must choose neither counter names nor an author's fault, except what
    # follows from observations and rewards, which only the worker knows.
    claimed = reply["refused"]
    known = (UNKNOWN_ENV, TIMEOUT, NOT_REPLAYED) if played else (UNKNOWN_ENV, TIMEOUT)
    reason = claimed if claimed in known else CRASHED
    return JudgeRefused(reason, str(reply.get("detail", "")), seconds)


def _outcome(reply: dict[str, Any], texts: Sequence[Answer], seconds: float) -> tuple[Judged, int]:
    """Check the reply: scoring untrusted text may compromise a worker."""
    count, played = len(texts), any(isinstance(text, TrajectoryTexts) for text in texts)
    if refused := refusal(reply, seconds, played=played):
        return refused, 0
    prompt, rewards = reply.get("prompt"), reply.get("rewards")
    if not isinstance(prompt, str) or not isinstance(rewards, list) or len(rewards) != count:
        raise nonsense("verdict is malformed")
    if not all(isinstance(reward, float) and 0.0 <= reward <= 1.0 for reward in rewards):
        raise nonsense("rewards are not numbers in [0, 1]")
    unreadable = reply.get("unreadable", 0)
    if type(unreadable) is not int or not 0 <= unreadable <= count:
        raise nonsense("count of unreadable answers is malformed")
    return Verdict(prompt, tuple(rewards), seconds), unreadable


def _encoded(answer: Answer) -> Any:
    return answer if isinstance(answer, str) else [list(answer.texts), answer.cut]


def _length(answer: Answer) -> int:
    return len(answer) if isinstance(answer, str) else sum(map(len, answer.texts))


def nonsense(what: str) -> WorkerDied:
    return WorkerDied(f"the worker's {what}", ran_out_of_time=False)
