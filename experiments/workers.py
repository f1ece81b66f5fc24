"""Jobs of an experiment, and worker processes with one thread each that do them.

``python -m experiments.workers`` is a worker: it reads jobs as JSON lines from standard input and
writes JSON lines on their progress. It exits when its standard input ends, so that no worker
outlives the command.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from pydantic import TypeAdapter

from experiments.arms import Arm
from experiments.folder import ExperimentFolder
from experiments.recipe.make import save
from experiments.regimes import ALL_REGIMES, EQUAL, find_regime
from experiments.settings import Configuration, Settings
from experiments.setups import Base, make_bases
from experiments.simulation import run_simulation
from experiments.warm_start import warm_started
from node.errors import NodeError
from node.threads import choose, environment
from swarm.common.child_process import command, variables


@dataclass(frozen=True, slots=True)
class Job:
    """Run one arm; without an arm, make base policies of ``seed`` from one origin."""

    root: str  # folder of the experiment
    settings: Settings
    seed: int
    arm: Arm | None = None
    regime: str = EQUAL.name  # name of the arm's regime
    bases: tuple[Base, ...] = ()  # base policies to make if there is no arm

    @property
    def title(self) -> str:
        """Return a unique name for people."""
        what = ", ".join(self.bases) if self.arm is None else f"{self.regime} {self.arm.name}"
        return f"{what}, seed {self.seed}"

    def encode(self) -> str:
        return _JSON.dump_json(self).decode()

    @classmethod
    def decode(cls, line: str) -> Job:
        return _JSON.validate_json(line)

    def do(self, report: Callable[[int], None]) -> None:
        """Do the job and write its results; call ``report`` with the number of finished rounds."""
        folder, settings = ExperimentFolder(Path(self.root)), self.settings
        if self.arm is None:
            save_bases(folder, settings, self.bases, self.seed)
            return
        run = Configuration(self.arm, self.seed, find_regime(self.regime, ALL_REGIMES))
        models = {kind: self._model(folder, kind) for kind in run.bases(settings)}
        unfinished = folder.unfinished(run)
        folder.write(run, run_simulation(settings, run, models, report, unfinished))

    def _model(self, folder: ExperimentFolder, kind: Base) -> str:
        if self.settings.makes_bases:
            return str(folder.base(kind, self.seed))
        return self.settings.setup.heterogeneous.wide if kind == "wide" else self.settings.model


_JSON = TypeAdapter(Job)


def save_bases(
    folder: ExperimentFolder, settings: Settings, kinds: tuple[Base, ...], seed: int
) -> None:
    """Make base policies of one origin; each folder appears when it is complete."""
    made: Iterator[Callable[[Path], None]]
    if settings.warm_start:
        made = repeat(warm_started(settings, seed).save, len(kinds))
    else:
        bases = make_bases(kinds, seed, settings.setup, settings.model, settings.bury)
        made = (partial(save, base) for base in bases)
    for kind, write in zip(kinds, made, strict=True):
        target = folder.base(kind, seed)
        unfinished = target.with_name(f"{seed}.unfinished")
        write(unfinished)
        unfinished.rename(target)


Progress = Callable[[Job, int, bool], None]
"""Called with a job, its finished rounds, and whether it is finished."""


class WorkerPool:
    """Context manager of worker processes.

    Args:
        size: maximum processes; each starts with its first job.
        log: file for their standard error.
    """

    def __init__(self, size: int, log: Path) -> None:
        self._size = size
        self._log = log
        self._error: IO[bytes] | None = None
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._all: list[subprocess.Popen[str]] = []

    def __enter__(self) -> WorkerPool:
        self._error = self._log.open("ab")
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._all:
            process.kill()
            process.wait()
            assert process.stdin and process.stdout
            process.stdin.close()
            process.stdout.close()
        assert self._error
        self._error.close()

    def do(self, jobs: Sequence[Job], progress: Progress) -> None:
        """Do all jobs in order.

        Raises:
            NodeError: a job is refused, or a worker died; the results of finished jobs are kept.
        """
        with ThreadPoolExecutor(self._size) as threads:
            futures = [threads.submit(self._do, job, progress) for job in jobs]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # also Ctrl-C: no worker continues without this process
                for future in futures:
                    future.cancel()
                for process in self._all:
                    process.kill()
                raise

    def _do(self, job: Job, progress: Progress) -> None:
        try:
            process = self._idle.get_nowait()
        except Empty:
            process = self._start()
        assert process.stdin and process.stdout
        process.stdin.write(job.encode() + "\n")
        process.stdin.flush()
        for line in process.stdout:
            event = json.loads(line)
            if refused := event.get("refused"):
                raise NodeError(job.title, None, refused)
            done = bool(event.get("done"))
            progress(job, int(event.get("rounds", 0)), done)
            if done:
                self._idle.put(process)
                return
        raise NodeError(
            f"the worker process of {job.title} ended with status {process.wait()}",
            None,
            f"The reason is at the end of {self._log}. Run the same command to resume.",
        )

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command("experiments.workers"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error,
            encoding="utf-8",
            env={**variables(), **environment(1)},
        )
        self._all.append(process)
        return process


REPORT_SECONDS = 0.5


def main() -> None:
    choose(1)
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    while True:
        last = 0.0

        def report(done: int) -> None:
            nonlocal last
            if time.monotonic() - last > REPORT_SECONDS:
                last = time.monotonic()
                _send({"rounds": done})

        try:
            Job.decode(jobs.get()).do(report)
        except NodeError as error:
            _send({"refused": str(error)})
        else:
            _send({"done": True})


def _read(jobs: queue.Queue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def _send(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
