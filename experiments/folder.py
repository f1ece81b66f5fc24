"""Run folder of an experiment: settings, base policies, runs and results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.recording import Recording
from experiments.settings import Configuration, Settings
from experiments.setups import Base
from node.errors import NodeError
from node.storage.atomic_files import make_folder, write_atomic

MODEL = "model.safetensors"
LATER = ("device", "dtype", "lr", "warm_start")  # settings that older folders do not name


@dataclass(frozen=True, slots=True)
class ExperimentFolder:
    """Paths in one folder. Files are written atomically: an existing file is complete."""

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "experiment.json"

    @property
    def results(self) -> Path:
        return self.root / "results.json"

    @property
    def table(self) -> Path:
        return self.root / "table.md"

    @property
    def chart(self) -> Path:
        return self.root / "chart.png"

    @property
    def log(self) -> Path:
        """Path of the worker processes' standard error."""
        return self.root / "workers.log"

    def base(self, kind: Base, seed: int) -> Path:
        return self.root / "bases" / kind / str(seed)

    def has_base(self, kind: Base, seed: int) -> bool:
        return (self.base(kind, seed) / MODEL).exists()

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def run(self, run: Configuration) -> Path:
        return self.runs / f"{run.file_name}.json"

    def seconds(self, run: Configuration) -> Path:
        """Return the path of a run's CPU seconds per round."""
        return self.runs / f"{run.file_name}.seconds.json"

    def unfinished(self, run: Configuration) -> Path:
        """Return the path of the state from which an interrupted run resumes."""
        return self.runs / f"{run.file_name}.unfinished"

    def open(self, settings: Settings) -> None:
        """Create the folder, or resume it.

        Raises:
            NodeError: the folder cannot be made, is damaged, or holds runs under other conditions.
        """
        make_folder(self.runs, "--run-dir")
        wanted = asdict(settings)
        if not self.settings.exists():
            write_atomic(self.settings, json.dumps(wanted).encode())
        elsewhere = "Name another folder with --run-dir."
        found = read_json(self.settings, elsewhere)
        if not isinstance(found, dict):
            raise NodeError("a damaged file", self.settings, elsewhere)
        found = {key: asdict(Settings())[key] for key in LATER} | found
        if found != wanted:
            differs = ", ".join(
                f"{key} {found.get(key)!r} there, {wanted[key]!r} here"
                for key in wanted
                if found.get(key) != wanted[key]
            )
            raise NodeError(
                "the folder holds an experiment under other conditions",
                f"{self.root} ({differs})",
                "Name another folder with --run-dir, or use the same conditions.",
            )

    def missing(self, runs: Sequence[Configuration]) -> list[Configuration]:
        return [run for run in runs if not self.run(run).exists()]

    def write(self, run: Configuration, recording: Recording) -> None:
        """Write a run, its figures last: they mark the run as complete."""
        write_atomic(self.seconds(run), json.dumps(recording.seconds).encode())
        write_atomic(self.run(run), recording.as_json().encode())
        self.unfinished(run).unlink(missing_ok=True)

    def write_results(self, results: object, markdown: str) -> None:
        write_atomic(self.results, json.dumps(results, indent=1).encode())
        write_atomic(self.table, markdown.encode())

    def read(self, run: Configuration) -> Recording:
        """Read a complete run; raise NodeError if its files are damaged."""
        seconds, figures = self.seconds(run), self.run(run)
        again = f"Remove {figures}; the command then repeats that run."
        try:
            return Recording.from_json(
                figures.read_text(encoding="utf-8"), read_json(seconds, again)
            )
        except (ValueError, TypeError, KeyError) as error:
            raise NodeError("a damaged file", figures, again) from error


def read_json(path: Path, remedy: str) -> Any:
    """Read a JSON file; raise NodeError with ``remedy`` if it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise NodeError("a damaged file", path, remedy) from error
