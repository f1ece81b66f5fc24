"""CPU time that a worker allows itself."""

from __future__ import annotations

import math
import os


def allow_cpu(seconds: float) -> None:
    """Let the kernel end this process after ``seconds`` more of CPU time, whatever it is at.

    The kernel counts whole seconds.
    """
    if os.name != "posix":
        return  # the node ends it for the time that it takes
    import resource

    used = math.ceil(sum(os.times()[:2]))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + math.ceil(seconds), hard))
