"""Worker process that builds tasks and scores answers.

It reads requests from the socket on standard input and ends with it. It first drops every privilege
that it does not need: an answer that misbehaves affects only this process.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from node.environments.environment import prepare_to_wait, run
from node.environments.own_file import NotReplayed
from node.errors import TaskSetError
from node.tasks.sandbox.confine import Confinement, confine
from node.tasks.scorer import score
from node.tasks.task import ScoringError, Task, TaskError, TaskSource, kept
from node.tasks.task_set import Allowed, open_envs
from node.tasks.verifier.isolated_scoring import allow_cpu, cpu_limit, refused, score_apart
from node.tasks.verifier.turn_server import TurnServer
from protocol.manifest import EnvSpec
from swarm.common.child_process import Channel, ChannelError, take_over_stdin
from swarm.groups import Split
from swarm.verification import Answer, TrajectoryTexts

OUT_OF_MEMORY = 70
ANSWER_SHARE = 0.25  # of a group's CPU time, for one answer
_OPENING_CPU_SECONDS = 60

Reply = dict[str, Any]


def main() -> None:
    options = json.loads(sys.argv[1])
    channel = take_over_stdin()
    own = Confinement(**options["confinement"])
    prepare_to_wait()
    confine(own)
    allow_cpu(_OPENING_CPU_SECONDS)
    try:
        # Nothing else uses the generators here, so requests need not restore them.
        with kept():
            _serve(channel, options["cpu_seconds"], bytes.fromhex(own.once))
    except ChannelError:
        return
    except MemoryError:
        # The process is unreliable now, including its exit handlers.
        os._exit(OUT_OF_MEMORY)


def _serve(channel: Channel, cpu_seconds: int, once: bytes) -> None:
    sources = _open(channel)
    # Forked copies share memory until one writes to it, as garbage collection does.
    gc.freeze()
    while True:
        request = channel.receive()
        if "tasks" in request:
            allow_cpu(cpu_seconds)
            channel.send(_built(sources, request["tasks"]))
        elif "turn" in request:
            run(TurnServer(channel, sources, cpu_seconds).serve(request), waits=True)
        else:
            _judge(channel, sources, request, once, cpu_seconds)


def _open(channel: Channel) -> dict[str, TaskSource]:
    request = channel.receive()
    specs = [EnvSpec(**{**spec, "levels": tuple(spec["levels"])}) for spec in request["specs"]]
    try:
        sources, closed = open_envs(specs, Allowed(**request["allowed"]))
    except TaskSetError as error:
        channel.send({"error": str(error)})
        raise SystemExit(1) from error
    # Standard error reports a failed start; the node does not read it after that.
    os.dup2(0, 2)
    channel.send({"envs": {s.name: _properties(s) for s in sources.values()}, "closed": closed})
    return sources


def _properties(source: TaskSource) -> dict[str, Any]:
    environment = source.environment
    return {
        "levels": source.levels,
        "replayable": environment is None or environment.replayable,
        "waits": environment is not None and environment.waits,
    }


def _judge(
    channel: Channel,
    sources: dict[str, TaskSource],
    request: dict[str, Any],
    once: bytes,
    cpu_seconds: int,
) -> None:
    """Reply to each group when scored; stop at a refusal or after some seconds."""
    stop = time.monotonic() + request["seconds"]
    left = len(request["groups"])
    while left:
        task, texts = request["groups"][-left]
        allow_cpu(cpu_seconds)
        reply = _scored(sources, task, texts, once, cpu_seconds)
        left = 0 if "refused" in reply or time.monotonic() >= stop else left - 1
        channel.send({**reply, "last": not left})


def _built(sources: dict[str, TaskSource], tasks: list[list[Any]]) -> Reply:
    try:
        built = [_build(sources, task) for task in tasks]
        written = [sources[each.ref.env].written(each) for each in built]
        return {"prompts": [each.prompt for each in built], "written": written}
    except (TaskError, RecursionError) as error:
        return refused(error)


def _scored(
    sources: dict[str, TaskSource],
    coordinates: list[Any],
    texts: list[Any],
    once: bytes,
    cpu_seconds: int,
) -> Reply:
    try:
        task = _build(sources, coordinates)
        source = sources[task.ref.env]
        if source.evaluates_text:
            scores = score_apart(source, task, texts, once, cpu_seconds)
        else:
            answers: list[Answer] = [
                text if isinstance(text, str) else TrajectoryTexts(tuple(text[0]), text[1])
                for text in texts
            ]
            scores = score(source, task, answers, lambda: cpu_limit(ANSWER_SHARE * cpu_seconds))
    except (NotReplayed, ScoringError, TaskError, RecursionError) as error:
        return refused(error)
    return {"prompt": task.prompt, "rewards": scores.rewards, "unreadable": scores.unreadable}


def _build(sources: dict[str, TaskSource], task: Sequence[Any]) -> Task:
    env, level, seed, split = task
    return sources[env].build(level, seed, Split(split))


if __name__ == "__main__":
    main()
