"""Requests to a worker process, and its replies, of which none is trusted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from node.tasks.scorer import MOST_FAULT, Answered, Move, Moved
from node.tasks.task_set import evaluates
from node.tasks.verifier.worker_process import WorkerDied, WorkerProcess
from protocol.manifest import EnvSpec
from swarm.common.child_process import packed
from swarm.groups import TaskRef
from swarm.verification import (
    CRASHED,
    EVALUATES_TEXT,
    NOT_REPLAYABLE,
    NOT_REPLAYED,
    TIMEOUT,
    UNKNOWN_ENV,
    WORKER_LOST,
    Answer,
    Answers,
    Requests,
    Scored,
    Scores,
    TrajectoryTexts,
    VerifierError,
)

MOMENT_SECONDS = 0.05  # Then a worker begins no further group of a request: others may wait.
_MOST_GROUPS = 32
_MOST_CHARACTERS = 1 << 20


def wire(task: TaskRef) -> list[Any]:
    return [task.env, task.level, task.seed, task.split.value]


def admit(worker: WorkerProcess, specs: Mapping[str, EnvSpec], task: TaskRef) -> None:
    """Raise ``VerifierError`` if a worker does not serve a task's env or level."""
    env, level = task.env, task.level
    if env in worker.closed and evaluates(specs[env]):
        raise VerifierError(EVALUATES_TEXT, worker.closed[env], 0.0)
    if env not in worker.envs:
        raise VerifierError(UNKNOWN_ENV, worker.closed.get(env, f"{env!r} is not served here"), 0.0)
    if not 0 <= level < worker.envs[env].levels:
        raise VerifierError(UNKNOWN_ENV, f"env {env!r} has no level {level}", 0.0)


def admitted(worker: WorkerProcess, specs: Mapping[str, EnvSpec], asked: Requests) -> Requests:
    """Return the first groups that fit in one request: one of any length, or several.

    Raises ``VerifierError`` if the worker does not serve the first or cannot verify it.
    """
    length = 0
    for number, group in enumerate(asked[:_MOST_GROUPS]):
        length += sum(map(_length, group.texts))
        try:
            admit(worker, specs, group.task)
            if not worker.envs[group.task.env].replayable:
                detail = f"env {group.task.env!r} never answers twice alike"
                raise VerifierError(NOT_REPLAYABLE, detail, 0.0)
        except VerifierError:
            if number:
                return asked[:number]
            raise
        if number and length > _MOST_CHARACTERS:
            return asked[:number]
    return asked[:_MOST_GROUPS]


def answers(
    worker: WorkerProcess, groups: Requests, *, each: Sequence[float], together: float
) -> Iterator[tuple[Scored, int, str]]:
    """Yield each of the first groups' result, count of unreadable texts, and scorer's error.

    ``each`` has the timeout in seconds of each group, ``together`` is that of all groups. The
    caller ends the worker unless it consumes all results. Raises WorkerDied: the worker was lost
    on the group in progress.
    """
    last = time.monotonic()
    deadline = last + together
    message = {
        "groups": [(wire(g.task), list(map(_encoded, g.texts))) for g in groups],
        # The last group has at least half of the time.
        "seconds": min(MOMENT_SECONDS, together / 2),
    }
    worker.send(message, min(each[0], together))
    for number, (group, seconds) in enumerate(zip(groups, each, strict=True), 1):
        reply = worker.receive(min(seconds, deadline - last))
        now = time.monotonic()
        outcome, last = _outcome(reply, group.texts, now - last), now
        is_last = reply.get("last")
        if not is_last and number == len(groups):
            raise nonsense("last answer is followed by another")
        yield outcome
        if is_last:
            return


def refusal(reply: dict[str, Any], seconds: float, *, played: bool = False) -> VerifierError | None:
    """Return a reply's refusal, if any; ``played``: the task is an environment."""
    if "refused" not in reply:
        return None
    # A compromised worker must choose neither counter names nor an author's fault, except what
    # follows from observations and rewards, which only the worker knows.
    claimed = reply["refused"]
    allowed = (UNKNOWN_ENV, TIMEOUT, WORKER_LOST, *([NOT_REPLAYED] if played else []))
    reason = claimed if claimed in allowed else CRASHED
    return VerifierError(reason, str(reply.get("detail", "")), seconds)


def fault_in(reply: dict[str, Any]) -> str:
    """Return the error of a task's own code; raise ``WorkerDied`` if it is malformed."""
    fault = reply.get("fault", "")
    if not isinstance(fault, str) or len(fault) > MOST_FAULT:
        raise nonsense("error of the task is malformed")
    return fault


def _outcome(reply: dict[str, Any], texts: Answers, seconds: float) -> tuple[Scored, int, str]:
    """Check the reply: scoring untrusted text may compromise a worker."""
    count, multi_turn = len(texts), any(isinstance(text, TrajectoryTexts) for text in texts)
    if error := refusal(reply, seconds, played=multi_turn):
        return error, 0, ""
    prompt, rewards = reply.get("prompt"), reply.get("rewards")
    if not isinstance(prompt, str) or not isinstance(rewards, list) or len(rewards) != count:
        raise nonsense("result is malformed")
    if not all(isinstance(reward, float) and 0.0 <= reward <= 1.0 for reward in rewards):
        raise nonsense("rewards are not numbers in [0, 1]")
    unreadable = reply.get("unreadable", 0)
    if type(unreadable) is not int or not 0 <= unreadable <= count:
        raise nonsense("count of unreadable answers is malformed")
    slow = reply.get("over", [])
    if not isinstance(slow, list) or not all(type(n) is int and 0 <= n < count for n in slow):
        raise nonsense("list of slow answers is malformed")
    return Scores(prompt, tuple(rewards), seconds, tuple(slow)), unreadable, fault_in(reply)


def _encoded(answer: Answer) -> Any:
    return answer if isinstance(answer, str) else [list(answer.texts), answer.truncated]


def _length(answer: Answer) -> int:
    return len(answer) if isinstance(answer, str) else sum(map(len, answer.texts))


def nonsense(what: str) -> WorkerDied:
    return WorkerDied(f"the worker's {what}", reason=CRASHED)


@dataclass(slots=True, eq=False)
class PendingTurn:
    """A requested turn; its ``outcome`` is never cancelled, and set once.

    ``begun`` is when its worker first ran it; ``losses`` counts workers lost with it without a
    culprit.
    """

    move: Move
    outcome: Future[Moved] = field(default_factory=Future)
    begun: float | None = None
    losses: int = 0

    def __post_init__(self) -> None:
        self.outcome.set_running_or_notify_cancel()

    def message(self, number: int, seconds: float) -> bytes:
        """Encode the turn; raise ``ValueError`` if its actions are too long."""
        move = self.move
        request = {"turn": number, "key": move.key, "task": wire(move.task)}
        request |= {"actions": list(move.actions), "final": move.final, "seconds": seconds}
        return packed(request)

    def settle(self, moved: Moved) -> None:
        if not self.outcome.done():
            self.outcome.set_result(moved)


def decoded(reply: dict[str, Any], seconds: float) -> Moved:
    """Decode a worker's reply to a turn; raise ``WorkerDied`` if malformed."""
    if error := refusal(reply, seconds, played=True):
        return error
    observation, over, reward = (reply.get(name) for name in ("observation", "over", "reward"))
    if not isinstance(observation, str) or not isinstance(over, bool):
        raise nonsense("observation is malformed")
    if reward is not None and not (isinstance(reward, float) and 0.0 <= reward <= 1.0):
        raise nonsense("reward is not a number in [0, 1]")
    return Answered(observation, over, reward, fault_in(reply))
