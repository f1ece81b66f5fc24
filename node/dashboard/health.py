"""A node's health: checks of ``swarm-node doctor``, and alarms about rounds."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil

from node.config.config import Config
from node.dashboard.rounds import Rounds
from node.doctor import machine
from node.doctor.network import check_ports, reported_reach
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder

FRESH_SECONDS = 60.0  # how long the doctor's results stay valid
WIDE_GAP = 0.05  # nats per token
RECENT = 20
BEFORE = 200  # rounds between the two mean lengths compared, each over RECENT rounds
DRIFT = 1.5
CUT = 0.5
LITTLE_MEMORY = 0.95
OK, WARN, FAIL = "ok", "warn", "fail"


class Doctor:
    """The doctor's checks, run at most once a minute, except those that dial peers."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self._folder = folder
        self._config = config
        self._lock = threading.Lock()
        self._found: list[dict[str, Any]] = []
        self._at = float("-inf")

    def findings(self) -> list[dict[str, Any]]:
        """Return each check with its level, result and remedy."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_SECONDS:
                self._found = [
                    {
                        "level": check.level,
                        "what": check.check,
                        "found": check.found,
                        "remedy": check.remedy or None,
                    }
                    for check in self._look()
                ]
                self._at = time.monotonic()
            return self._found

    def _look(self) -> list[machine.Check]:
        config, folder = self._config, self._folder
        found = [*machine.check_packages(), machine.check_transport(config.network)]
        if "torch" in sys.modules:  # loading it would take longer than all other checks
            found.append(machine.check_device(config.policy.device))
        found += [machine.check_engine(config.engine.kind), machine.check_shared_memory()]
        found += [machine.check_clock(), machine.check_walls()]
        found += machine.check_pinned(config, folder)
        if folder.root.is_dir():
            found += [machine.check_disk(folder), machine.check_key(folder)]
            found += check_ports(config, folder)
        return found + (reported_reach(folder) if folder.holder() is not None else [])


class Alarm(NamedTuple):
    """One monitored value."""

    name: str
    means: str  # its meaning, and the remedy
    value: float | None  # None if nothing was measured
    level: Callable[[float], str] = lambda count: WARN if count else OK

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON; an unmeasured value is ok."""
        level = OK if self.value is None else self.level(self.value)
        return {"name": self.name, "level": level, "means": self.means, "value": self.value}


def alarms(rounds: Rounds, folder: RunFolder) -> list[dict[str, Any]]:
    """Evaluate the alarms of the latest rounds and of this machine."""
    record = rounds.latest[-1] if rounds.latest else None
    return [alarm.to_dict() for alarm in (*_of_rounds(record, rounds), *_of_machine(folder))]


def _of_rounds(record: RoundRecord | None, rounds: Rounds) -> Sequence[Alarm]:
    counters = record.counters if record else None
    return (
        Alarm(
            "forgetting",
            "Times that the held-out reward fell far below its best. Lower learner.lr or "
            "mixture.external, or go back with: swarm-node rollback --to best",
            _count(counters, "forgetting_alarms"),
        ),
        Alarm(
            "engine gap",
            "Nats a token by which the engine's log-probs are off the learner's at equal weights. "
            f"Above {WIDE_GAP} one of the two computes something else: try another engine.kind.",
            record.engine_gap if record else None,
            lambda gap: WARN if gap > WIDE_GAP else OK,
        ),
        Alarm(
            "length drift",
            f"Tokens a completion, against {BEFORE} rounds before. Much longer or shorter answers "
            "with no more reward are a policy that drifts: lower learner.lr.",
            _drift(rounds.column("mean_length")),
            lambda ratio: OK if 1 / DRIFT <= ratio <= DRIFT else WARN,
        ),
        Alarm(
            "cut answers",
            "Share of completions that the length cap ended. Raise engine.max_new_tokens where it "
            "stays high.",
            record.truncated if record else None,
            lambda share: WARN if share > CUT else OK,
        ),
        Alarm(
            "refused steps",
            "Optimizer steps left out since the start, as loss or gradient was not finite. Lower "
            "learner.lr.",
            _count(counters, "steps_refused"),
        ),
        Alarm(
            "failed rounds",
            "Rounds since the start that broke off. The traces are in the log below.",
            _count(counters, "rounds_failed"),
        ),
        Alarm(
            "lost records",
            "Records since the start that a file, a view or a logger could not take.",
            _count(counters, "sink_failures"),
        ),
    )


def _of_machine(folder: RunFolder) -> Sequence[Alarm]:
    free = shutil.disk_usage(folder.root).free if folder.root.is_dir() else None
    used = psutil.virtual_memory().percent / 100.0
    return (
        Alarm(
            "disk",
            "Bytes free where the run folder is. A full disk stops the node at its last "
            "checkpoint.",
            free,
            lambda left: (
                FAIL if left < machine.NO_DISK else WARN if left < machine.LITTLE_DISK else OK
            ),
        ),
        Alarm(
            "memory",
            "Share of this machine's memory that is used. Lower learner.micro_batch_tokens or "
            "mixture.pool_groups, or stop something else.",
            used,
            lambda share: WARN if share > LITTLE_MEMORY else OK,
        ),
    )


def _count(counters: Mapping[str, float] | None, name: str) -> float | None:
    if counters is None:
        return None
    return sum(n for each, n in counters.items() if each.partition("{")[0] == name)


def _drift(lengths: np.ndarray) -> float | None:
    recent, before = lengths[-RECENT:], lengths[-BEFORE - RECENT : -BEFORE]
    if not len(before) or np.isnan(before).all() or np.isnan(recent).all():
        return None
    earlier = float(np.nanmean(before))
    return float(np.nanmean(recent)) / earlier if earlier else None
