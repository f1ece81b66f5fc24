"""A section in a process of its own: a crash, a hang or a lost GPU context ends nothing else."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

from on_gpu.section import Row, Section, Settings, SkippedError

START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
PRELOADED = ["torch", "transformers", "node.engines.transformers.engine", "node.learner.learner"]
"""What is not installed is left out there, and told by the sections that need it."""
START_SECONDS = 180.0
"""That the first process has to import the libraries; a section's time begins behind it."""
END_SECONDS = 10.0
"""That a process whose time is up has for its way out."""


@dataclass(slots=True)
class Result:
    """What came of a section.

    Attributes:
        state: ``done``, ``skipped``, ``failed`` or ``out of time``.
        why: of the latter three.
        seconds: that it took.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    state: str = "failed"
    why: str = ""
    seconds: float = 0.0

    @property
    def partial(self) -> bool:
        """Whether its time was up and some of it was measured by then."""
        return self.state == "out of time" and bool(self.rows)


def starter() -> Any:
    """Starts processes that have imported the heavy libraries already, and no GPU context."""
    context = multiprocessing.get_context(START)
    if START == "forkserver":
        context.set_forkserver_preload(PRELOADED)
    return context


def run_section(context: Any, section: Section, settings: Settings, seconds: float) -> Result:
    """Run a section for at most ``seconds``; never raises for what happens inside it."""
    begin, result = time.monotonic(), Result(section.name)
    lacking = [name for name in section.packages if find_spec(name) is None]
    if lacking:
        result.state, result.why = "skipped", f"not installed: {', '.join(lacking)}"
        return result
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, section.name, settings))
    process.start()
    theirs.close()
    try:
        if ours.poll(START_SECONDS):
            begin = time.monotonic()
            _read(ours, result, begin + seconds)
    finally:
        _end(process, told=result.state != "out of time")
    if result.state == "failed" and not result.why:
        result.why = f"its process ended with {process.exitcode}"
    result.seconds = round(time.monotonic() - begin, 1)
    return result


def _read(ours: Connection, result: Result, until: float) -> None:
    while ours.poll(max(0.0, until - time.monotonic())):
        try:
            kind, value = ours.recv()
        except EOFError:
            return
        if kind == "begun":
            continue
        if kind != "row":
            result.state, result.why = kind, value
            return
        result.rows.append(value)
    result.state, result.why = "out of time", "ended by its time budget"


def _end(process: Any, *, told: bool) -> None:
    """Wait for a process that is done, and end one that is not, with all that it has started."""
    if told:
        process.join(END_SECONDS)
    if process.is_alive() or not told:
        _signal_group(process.pid, "SIGTERM")
        process.terminate()
        process.join(END_SECONDS)
    if process.is_alive():
        _signal_group(process.pid, "SIGKILL")
        process.kill()
        process.join()


def _signal_group(leader: int, name: str) -> None:
    """To what a process has started as well; none is there before it leads a group."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(leader, getattr(signal, name))


def _work(theirs: Connection, name: str, settings: Settings) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # what it starts is ended with it
    theirs.send(("begun", ""))
    sections = importlib.import_module("on_gpu.sections").SECTIONS
    try:
        for row in sections[name].run(settings):
            theirs.send(("row", row))
        theirs.send(("done", ""))
    except BrokenPipeError:
        return  # Its time is up, and nobody reads on.
    except SkippedError as reason:
        theirs.send(("skipped", str(reason)))
    except ModuleNotFoundError as error:
        theirs.send(("skipped", f"not installed: {error.name}"))
    except BaseException as error:  # noqa: BLE001 - told, and the other sections go on
        traceback.print_exc()
        theirs.send(("failed", f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"))
    theirs.close()
