"""The process that rebuilds tasks and scores answers: ``python -m node.tasks.worker LIMITS``.

It reads requests from the socket that is its standard input and ends with it. Before it reads
anything it takes limits on memory, CPU time, files and processes upon itself, so that an answer
which makes scoring burn or crash takes down this process and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from typing import Any

from node.channel import Channel, ChannelError, take_over_stdin
from node.tasks.catalogue import Allowed, CatalogueError, open_envs
from node.tasks.scores import score
from node.tasks.task import ScoringError, Split, Task, TaskError, TaskSource
from protocol.manifest import EnvSpec
from swarm.judge import CRASHED, UNKNOWN_ENV

OUT_OF_MEMORY = 70
_OPEN_FILES = 64
_OPENING_CPU_SECONDS = 60

Reply = dict[str, Any]


def main() -> None:
    """Serve requests until standard input ends."""
    limits = json.loads(sys.argv[1])
    channel = take_over_stdin()
    _confine(limits["memory_mib"], limits["nice"])
    _allow_cpu(_OPENING_CPU_SECONDS)
    try:
        _serve(channel, limits["cpu_seconds"])
    except ChannelError:
        return
    except MemoryError:
        # Nothing here can be relied on any more, an exit handler included.
        os._exit(OUT_OF_MEMORY)


def _serve(channel: Channel, cpu_seconds: int) -> None:
    sources = _open(channel)
    while True:
        request = channel.receive()
        _allow_cpu(cpu_seconds)
        channel.send(_answer(sources, request))


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
    _silence(2)
    envs = {s.name: {"levels": s.levels, "evaluates": s.evaluates_text} for s in sources.values()}
    channel.send({"envs": envs, "closed": closed})
    return sources


def _answer(sources: dict[str, TaskSource], request: dict[str, Any]) -> Reply:
    try:
        if "tasks" in request:
            return {"prompts": [_build(sources, task).prompt for task in request["tasks"]]}
        return _score(sources, request["task"], request["texts"])
    except ScoringError as error:
        return {"refused": CRASHED, "detail": str(error)}
    except TaskError as error:
        return {"refused": UNKNOWN_ENV, "detail": str(error)}
    except RecursionError as error:
        # How deep is too deep differs between interpreters, so it is nobody's verdict.
        return {"refused": CRASHED, "detail": str(error)}


def _build(sources: dict[str, TaskSource], task: list[Any]) -> Task:
    env, level, seed, split = task
    return sources[env].build(level, seed, Split(split))


def _score(sources: dict[str, TaskSource], coordinates: list[Any], texts: list[str]) -> Reply:
    task = _build(sources, coordinates)
    scores = score(sources[task.env], task, texts)
    return {
        "prompt": task.prompt,
        "rewards": scores.rewards,
        "unreadable": scores.unreadable,
    }


def _silence(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)
    os.close(null)


def _confine(memory_mib: int, nice: int) -> None:
    """Limit this process for good. As root the limit on processes has no effect."""
    os.nice(nice)
    limits = {
        resource.RLIMIT_AS: memory_mib << 20,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))


def _allow_cpu(seconds: int) -> None:
    """Let the kernel end this process after ``seconds`` more of CPU time, whatever it is at."""
    used = math.ceil(sum(os.times()[:2]))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


if __name__ == "__main__":
    main()
