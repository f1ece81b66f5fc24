"""The process that rebuilds tasks and scores answers: ``python -m node.tasks.verifier.worker
LIMITS``.

It reads requests from the socket that is its standard input and ends with it. Before it reads
anything it gives up whatever it does not need, so that an answer which makes scoring burn, crash or
run as code reaches this process and nothing else.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from typing import Any

from node.concurrency.channel import Channel, ChannelError, take_over_stdin
from node.tasks.catalogue import Allowed, open_envs
from node.tasks.chance import kept
from node.tasks.errors import CatalogueError
from node.tasks.sandbox.confine import Confinement, confine
from node.tasks.scores import score
from node.tasks.task import ScoringError, Task, TaskError, TaskSource
from node.tasks.verifier.apart import OutOfTime, score_apart
from protocol.manifest import EnvSpec
from swarm.judge import CRASHED, TIMEOUT, UNKNOWN_ENV
from swarm.task_ref import Split

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
        # Nobody else draws here, so that requests need not put the generators back.
        with kept():
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
        if "tasks" in request:
            _allow_cpu(cpu_seconds)
            channel.send(_prompts(sources, request["tasks"]))
        else:
            _judge(channel, sources, request, once, cpu_seconds)


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


def _judge(
    channel: Channel,
    sources: dict[str, TaskSource],
    request: dict[str, Any],
    once: bytes,
    cpu_seconds: int,
) -> None:
    """Answer for each group as soon as it is judged; stop at a refusal, and after a while.

    So the node knows which group this process is at, by its own clock, and nobody waits long.
    """
    stop = time.monotonic() + request["seconds"]
    left = len(request["groups"])
    while left:
        task, texts = request["groups"][-left]
        _allow_cpu(cpu_seconds)
        reply = _scored(sources, task, texts, once, cpu_seconds)
        left = 0 if "refused" in reply or time.monotonic() >= stop else left - 1
        channel.send({**reply, "last": not left})


def _prompts(sources: dict[str, TaskSource], tasks: list[list[Any]]) -> Reply:
    try:
        return {"prompts": [_build(sources, task).prompt for task in tasks]}
    except (TaskError, RecursionError) as error:
        return _refused(error)


def _scored(
    sources: dict[str, TaskSource],
    coordinates: list[Any],
    texts: list[str],
    once: bytes,
    cpu_seconds: int,
) -> Reply:
    try:
        task = _build(sources, coordinates)
        source = sources[task.ref.env]
        if source.evaluates_text:
            scores = score_apart(source, task, texts, once, cpu_seconds)
        else:
            scores = score(source, task, texts)
    except (OutOfTime, ScoringError, TaskError, RecursionError) as error:
        return _refused(error)
    return {"prompt": task.prompt, "rewards": scores.rewards, "unreadable": scores.unreadable}


def _refused(error: OutOfTime | ScoringError | TaskError | RecursionError) -> Reply:
    match error:
        case OutOfTime():
            reason = TIMEOUT
        case TaskError():
            reason = UNKNOWN_ENV
        case _:
            # How deep is too deep differs between interpreters, so it is nobody's verdict.
            reason = CRASHED
    return {"refused": reason, "detail": str(error)}


def _build(sources: dict[str, TaskSource], task: list[Any]) -> Task:
    env, level, seed, split = task
    return sources[env].build(level, seed, Split(split))


def _allow_cpu(seconds: int) -> None:
    """Let the kernel end this process after ``seconds`` more of CPU time, whatever it is at."""
    if os.name != "posix":
        return  # the node ends it for the time that it takes
    import resource

    used = math.ceil(sum(os.times()[:2]))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


if __name__ == "__main__":
    main()
