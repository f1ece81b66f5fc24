"""Worker processes side by side, one CPU thread each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from experiments.jobs import Job
from node.errors import NodeError
from node.threads import environment

Progress = Callable[[Job, int, bool], None]
"""Told of a job how many rounds are done, and whether the job is."""


class WorkerPool:
    """Does jobs on several processes; a context manager that ends them all.

    Args:
        size: processes at most; each starts with its first job.
        log: takes what they write to standard error.
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
        """Do all jobs, those in front first.

        Raises:
            NodeError: a job is refused, or a worker died; what the others had finished is kept.
        """
        with ThreadPoolExecutor(self._size) as threads:
            futures = [threads.submit(self._do, job, progress) for job in jobs]
            try:
                for future in futures:
                    future.result()
            except BaseException:
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
            if told := event.get("refused"):
                raise NodeError(job.title, None, told)
            done = bool(event.get("done"))
            progress(job, int(event.get("rounds", 0)), done)
            if done:
                self._idle.put(process)
                return
        raise NodeError(
            f"the worker process of {job.title} ended with status {process.wait()}",
            None,
            f"The reason is at the end of {self._log}. Run the command again to go on.",
        )

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error,
            text=True,
            env={**os.environ, **environment(1)},
        )
        self._all.append(process)
        return process
