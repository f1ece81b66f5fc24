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
from dataclasses import dataclass
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
            cpu_seconds, once = options["cpu_seconds"], bytes.fromhex(own.once)
            _TaskServer(channel, _open(channel), cpu_seconds, once).serve()
    except ChannelError:
        return
    except MemoryError:
        # The process is unreliable now, including its exit handlers.
        os._exit(OUT_OF_MEMORY)


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


@dataclass(frozen=True, slots=True)
class _TaskServer:
    """Server of requests; ``once`` is the program of a process that scores one text."""

    channel: Channel
    sources: dict[str, TaskSource]
    cpu_seconds: int
    once: bytes

    def serve(self) -> None:
        # Forked copies share memory until one writes to it, as garbage collection does.
        gc.freeze()
        while True:
            request = self.channel.receive()
            if "tasks" in request:
                allow_cpu(self.cpu_seconds)
                self.channel.send(self._built(request["tasks"]))
            elif "turn" in request:
                turns = TurnServer(self.channel, self.sources, self.cpu_seconds)
                run(turns.serve(request), waits=True)
            else:
                self._judge(request)

    def _judge(self, request: dict[str, Any]) -> None:
        """Reply to each group when scored; stop at a refusal or after some seconds."""
        stop = time.monotonic() + request["seconds"]
        left = len(request["groups"])
        while left:
            allow_cpu(self.cpu_seconds)
            reply = self._scored(*request["groups"][-left])
            left = 0 if "refused" in reply or time.monotonic() >= stop else left - 1
            self.channel.send({**reply, "last": not left})

    def _built(self, tasks: list[list[Any]]) -> Reply:
        try:
            built = [self._build(task) for task in tasks]
            written = [self.sources[each.ref.env].written(each) for each in built]
            return {"prompts": [each.prompt for each in built], "written": written}
        except (TaskError, RecursionError) as error:
            return refused(error)

    def _scored(self, coordinates: list[Any], texts: list[Any]) -> Reply:
        try:
            task = self._build(coordinates)
            source, seconds = self.sources[task.ref.env], self.cpu_seconds
            if source.evaluates_text:
                scores = score_apart(source, task, texts, self.once, seconds)
            else:
                answers: list[Answer] = [
                    text if isinstance(text, str) else TrajectoryTexts(tuple(text[0]), text[1])
                    for text in texts
                ]
                scores = score(source, task, answers, lambda: cpu_limit(ANSWER_SHARE * seconds))
        except (NotReplayed, ScoringError, TaskError, RecursionError) as error:
            return refused(error)
        return {"prompt": task.prompt, "rewards": scores.rewards, "unreadable": scores.unreadable}

    def _build(self, task: Sequence[Any]) -> Task:
        env, level, seed, split = task
        return self.sources[env].build(level, seed, Split(split))


if __name__ == "__main__":
    main()
