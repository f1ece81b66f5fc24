"""The process that rebuilds tasks and scores answers: ``python -m node.tasks.worker LIMITS``.

It reads requests from the socket that is its standard input and ends with it. Before it reads
anything it gives up whatever it does not need, so that an answer which makes scoring burn, crash or
run as code reaches this process and nothing else.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import sys
from typing import Any

from node.channel import Channel, ChannelError, take_over_stdin
from node.tasks.apart import OutOfTime, score_apart
from node.tasks.catalogue import Allowed, CatalogueError, open_envs
from node.tasks.sandbox.confine import Confinement, confine
from node.tasks.scores import score
from node.tasks.task import ScoringError, Split, Task, TaskError, TaskSource
from protocol.manifest import EnvSpec
from swarm.judge import CRASHED, TIMEOUT, UNKNOWN_ENV

OUT_OF_MEMORY = 70
_OPENING_CPU_SECONDS = 60

Reply = dict[str, Any]


def main() -> None:
    """Serve requests until standard input ends."""
    options = json.loads(sys.argv[1])
    channel = take_over_stdin()
    own = Confinement(**options["confinement"])
    confine(own)
    _allow_cpu(_OPENING_CPU_SECONDS)
    try:
        _serve(channel, options["cpu_seconds"], bytes.fromhex(own.once))
    except ChannelError:
        return
    except MemoryError:
        # Nothing here can be relied on any more, an exit handler included.
        os._exit(OUT_OF_MEMORY)


def _serve(channel: Channel, cpu_seconds: int, once: bytes) -> None:
    sources = _open(channel)
    # Copies of this process share its memory until one of them writes to it, as counting does.
    gc.freeze()
    while True:
        request = channel.receive()
        _allow_cpu(cpu_seconds)
        channel.send(_answer(sources, request, once, cpu_seconds))


def _open(channel: Channel) -> dict[str, TaskSource]:
    """Open the catalogue that the first message holds, and say what is in it."""
    request = channel.receive()
    specs = [EnvSpec(**{**spec, "levels": tuple(spec["levels"])}) for spec in request["specs"]]
    try:
        sources, closed = open_envs(specs, Allowed(**request["allowed"]))
    except CatalogueError as error:
        channel.send({"error": str(error)})
        raise SystemExit(1) from error
    # Standard error is for a start that fails; nobody reads it from here on.
    os.dup2(0, 2)
    envs = {s.name: {"levels": s.levels, "evaluates": s.evaluates_text} for s in sources.values()}
    channel.send({"envs": envs, "closed": closed})
    return sources


def _answer(
    sources: dict[str, TaskSource], request: dict[str, Any], once: bytes, cpu_seconds: int
) -> Reply:
    try:
        if "tasks" in request:
            return {"prompts": [_build(sources, task).prompt for task in request["tasks"]]}
        task = _build(sources, request["task"])
        source, texts = sources[task.env], request["texts"]
        if source.evaluates_text:
            scores = score_apart(source, task, texts, once, cpu_seconds)
        else:
            scores = score(source, task, texts)
    except OutOfTime as error:
        return {"refused": TIMEOUT, "detail": str(error)}
    except ScoringError as error:
        return {"refused": CRASHED, "detail": str(error)}
    except TaskError as error:
        return {"refused": UNKNOWN_ENV, "detail": str(error)}
    except RecursionError as error:
        # How deep is too deep differs between interpreters, so it is nobody's verdict.
        return {"refused": CRASHED, "detail": str(error)}
    return {"prompt": task.prompt, "rewards": scores.rewards, "unreadable": scores.unreadable}


def _build(sources: dict[str, TaskSource], task: list[Any]) -> Task:
    env, level, seed, split = task
    return sources[env].build(level, seed, Split(split))


def _allow_cpu(seconds: int) -> None:
    """Let the kernel end this process after ``seconds`` more of CPU time, whatever it is at."""
    used = math.ceil(sum(os.times()[:2]))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


if __name__ == "__main__":
    main()
