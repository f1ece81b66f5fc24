"""Run one target in its own process, under its limits."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.target import Target

MORE_MEMORY = 512 << 20
"""Bytes of address space beyond what the program has at its first input."""
INPUT_SECONDS = 5
"""CPU seconds of this process, so a busy machine does not abort an input."""
HANG_SECONDS = 600


def main(name: str, inputs: int, seed: int, findings: Path) -> None:
    """Try ``inputs`` inputs; raise a finding and keep its input under ``findings``."""
    faulthandler.enable()
    try:
        import atheris
    except ImportError:
        _unguided(_target(name), inputs, seed, findings)
        return
    # Coverage counts only the modules imported here: this project's own code.
    with atheris.instrument_imports(include=["protocol", "swarm", "node"]):
        target = _target(name)
    _guided(atheris, target, inputs, seed, findings)


def _target(name: str) -> Target:
    module, _, target = name.partition(":")
    logging.disable()
    import_module(module)
    from tests.fuzz.target import TARGETS

    return TARGETS[target]()


def _unguided(target: Target, inputs: int, seed: int, findings: Path) -> None:
    from tests.fuzz.mutated import run

    timed = _timed(target)

    def bounded(data: bytes) -> None:
        signal.alarm(HANG_SECONDS)
        try:
            timed(data)
        except Exception:
            (findings / f"{target.name}-{sha256(data).hexdigest()[:16]}").write_bytes(data)
            raise
        finally:
            signal.alarm(0)

    signal.signal(signal.SIGALRM, _too_slow)
    _limit_memory()
    run(bounded, target.inputs() or [b""], target.longest, inputs, seed)
    print(f"tried {inputs} without coverage", flush=True)


def _timed(target: Target) -> Callable[[bytes], None]:
    def timed(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, INPUT_SECONDS)
        try:
            target(data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    signal.signal(signal.SIGVTALRM, _too_slow)
    return timed


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise AssertionError(f"an input takes longer than {INPUT_SECONDS} s")


def _guided(atheris: ModuleType, target: Target, inputs: int, seed: int, findings: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-corpus-") as folder:
        for number, data in enumerate(target.inputs()):
            Path(folder, str(number)).write_bytes(data)
        options = [
            f"-runs={inputs}",
            f"-seed={seed}",
            f"-max_len={target.longest}",
            f"-timeout={HANG_SECONDS}",
            f"-artifact_prefix={findings}/{target.name}-",
            "-rss_limit_mb=0",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *options, folder], _timed(target))
        _limit_memory()
        atheris.Fuzz()


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
