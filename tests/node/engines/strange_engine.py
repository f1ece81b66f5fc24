"""Backends that fail, chosen by name: ``python -m strange_engine``."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from node.engines.engine import BackendSettings, Request, RequestOutput
from node.engines.process.worker import serve
from node.errors import NodeError
from protocol.rollout import Finish


class Counting:
    """Samples numbers that count up from the prompt length, one per request and step."""

    def __init__(self, settings: BackendSettings) -> None:
        self._dies_at = settings.options.get("dies_at", 0)
        self._hangs_at = settings.options.get("hangs_at", 0)
        self._slow = settings.options.get("slow", 0.0)
        self._jobs: dict[int, list[int]] = {}
        self._steps = 0

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def submit(self, jobs: Sequence[Request]) -> None:
        self._jobs.update({job.number: [len(job.ids), job.room] for job in jobs})

    def step(self) -> list[RequestOutput]:
        self._steps += 1
        if self._steps == self._dies_at:
            print("no more memory, sorry", file=sys.stderr, flush=True)
            print("INFO 11-21 a step was made", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._steps == self._hangs_at:
            threading.Event().wait()
        time.sleep(self._slow)
        outputs = []
        for number, state in list(self._jobs.items()):
            state[0] += 1
            state[1] -= 1
            finish = None if state[1] else Finish.LENGTH
            outputs.append(RequestOutput(number, [state[0] % 90 + 1], [-1.0], 0, finish))
            if not state[1]:
                del self._jobs[number]
        return outputs

    def update(self) -> list[RequestOutput]:
        raise ValueError("these weights are of no use")

    def pause(self) -> list[RequestOutput]:
        self._jobs.clear()
        return []

    def sleep(self) -> None:
        pass


def unloadable(settings: BackendSettings) -> Counting:
    raise NodeError("cannot load", settings.folder, "Choose another model.")


def too_large(settings: BackendSettings) -> Counting:
    print("Killed: out of memory", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def stuck(settings: BackendSettings) -> Counting:
    threading.Event().wait()
    raise AssertionError


if __name__ == "__main__":
    backends = {"unloadable": unloadable, "too large": too_large, "stuck": stuck}
    backends["counting"] = Counting
    serve(lambda settings: backends[settings.backend](settings))
