"""The process that rebuilds tasks and scores answers: ``python -m node.tasks.verifier.worker
LIMITS``.

It reads requests from the socket that is its standard input and ends with it. Before it reads
anything it gives up whatever it does not need, so that an answer which makes scoring burn, crash or
run as code reaches this process and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import Any

from node.concurrency.channel import Channel, ChannelError, take_over_stdin
from node.environments.driving import finished, prepare_to_wait, run
from node.environments.episode import EpisodeError
from node.environments.replay import NotReplayed
from node.tasks.catalogue import Allowed, open_envs
from node.tasks.chance import kept
from node.tasks.errors import CatalogueError
from node.tasks.sandbox.confine import Confinement, confine
from node.tasks.scores import score
from node.tasks.task import ScoringError, Task, TaskError, TaskSource
from node.tasks.verifier.apart import OutOfTime, score_apart
from node.tasks.verifier.live import LiveEpisodes, Played
from protocol.manifest import EnvSpec
from swarm.judge import CRASHED, NOT_REPLAYED, TIMEOUT, UNKNOWN_ENV, Answer, Turns
from swarm.task_ref import Split

OUT_OF_MEMORY = 70
_OPENING_CPU_SECONDS = 60

Request = dict[str, Any]
Reply = dict[str, Any]


def main() -> None:
    """Serve requests until standard input ends."""
    options = json.loads(sys.argv[1])
    channel = take_over_stdin()
    own = Confinement(**options["confinement"])
    prepare_to_wait()
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
    live = LiveEpisodes()
    # Copies of this process share its memory until one of them writes to it, as counting does.
    gc.freeze()
    while True:
        request = channel.receive()
        if "tasks" in request:
            _allow_cpu(cpu_seconds)
            channel.send(_prompts(sources, request["tasks"]))
        elif "moves" in request:
            _move(channel, sources, live, request, cpu_seconds)
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
    channel.send({"envs": {s.name: _told(s) for s in sources.values()}, "closed": closed})
    return sources


def _told(source: TaskSource) -> dict[str, Any]:
    environment = source.environment
    replayable = environment is None or environment.replayable
    return {
        "levels": source.levels,
        "evaluates": source.evaluates_text,
        "replayable": replayable,
    }


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
            scores = score(source, task, [_answer(each) for each in texts])
    except (NotReplayed, OutOfTime, ScoringError, TaskError, RecursionError) as error:
        return _refused(error)
    return {"prompt": task.prompt, "rewards": scores.rewards, "unreadable": scores.unreadable}


def _move(
    channel: Channel, sources: dict[str, TaskSource], live: LiveEpisodes, request: Request, cpu: int
) -> None:
    """Answer for each trajectory as soon as its environment has; those that wait do so together."""
    waiting = []
    for key, task, actions, final in request["moves"]:
        _allow_cpu(cpu)
        try:
            played = _played(sources, task)
        except (TaskError, RecursionError) as error:
            channel.send({"key": key, **_refused(error)})
            continue
        moved = _moved(live, key, played, actions, final)
        if played.environment.waits:
            waiting.append(_within(request["seconds"], key, moved))
        else:
            channel.send(finished(moved))

    async def together() -> None:
        for done in asyncio.as_completed(waiting):
            channel.send(await done)

    if waiting:
        _allow_cpu(cpu * len(waiting))
        run(together(), waits=True)


async def _moved(
    live: LiveEpisodes, key: int, played: Played, actions: list[str], final: bool
) -> Reply:
    try:
        answered = await live.move(key, played, actions, final=final)
    except (EpisodeError, NotReplayed, RecursionError) as error:
        return {"key": key, **_refused(error)}
    return {"key": key, **asdict(answered)}


async def _within(seconds: float, key: int, moved: Coroutine[Any, Any, Reply]) -> Reply:
    try:
        return await asyncio.wait_for(moved, seconds)
    except TimeoutError as error:
        return {"key": key, **_refused(error)}


def _played(sources: dict[str, TaskSource], coordinates: Sequence[Any]) -> Played:
    task = _build(sources, coordinates)
    environment = sources[task.ref.env].environment
    if environment is None:
        raise TaskError(f"env {task.ref.env!r} is answered in one turn")
    return Played(environment, task)


def _refused(error: Exception) -> Reply:
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


def _answer(told: Any) -> Answer:
    """A completion as :func:`node.tasks.verifier.dialogue.wired` has written it."""
    return told if isinstance(told, str) else Turns(tuple(told[0]), told[1])


def _build(sources: dict[str, TaskSource], task: Sequence[Any]) -> Task:
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
