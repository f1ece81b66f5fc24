"""What a worker answers where there is no verdict and no observation."""

from __future__ import annotations

from typing import Any

from node.environments.replay import NotReplayed
from node.tasks.task import TaskError
from node.tasks.verifier.apart import OutOfTime
from swarm.verification import CRASHED, NOT_REPLAYED, TIMEOUT, UNKNOWN_ENV


def refused(error: Exception) -> dict[str, Any]:
    """The reply that says why."""
    match error:
        case OutOfTime() | TimeoutError():
            reason = TIMEOUT
        case NotReplayed():
            reason = NOT_REPLAYED
        case TaskError():
            reason = UNKNOWN_ENV
        case _:
            # How deep is too deep differs between interpreters, so it is nobody's verdict.
            reason = CRASHED
    return {"refused": reason, "detail": str(error)}
