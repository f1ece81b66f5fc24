"""An experiment's run folder: what was asked for, what is done, what came out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.bases import Base
from experiments.recording import Recording
from experiments.settings import Configuration, Settings
from node.errors import NodeError
from node.storage.atomic_files import make_folder, write_atomic

MODEL = "model.safetensors"


@dataclass(frozen=True, slots=True)
class ExperimentFolder:
    """Paths in one folder. A file is there whole or not at all, so whatever is there is done."""

    root: Path

    @property
    def settings(self) -> Path:
        """The conditions that every run in this folder has."""
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
        """What the worker processes say on standard error."""
        return self.root / "workers.log"

    def base(self, kind: Base, seed: int) -> Path:
        """The folder of one of a seed's base policies."""
        return self.root / "bases" / kind / str(seed)

    def has_base(self, kind: Base, seed: int) -> bool:
        """Whether that policy has been made."""
        return (self.base(kind, seed) / MODEL).exists()

    def run(self, run: Configuration) -> Path:
        """A run's figures."""
        return self.root / "runs" / f"{run.file_name}.json"

    def seconds(self, run: Configuration) -> Path:
        """A run's CPU seconds by round."""
        return self.root / "runs" / f"{run.file_name}.seconds.json"

    def open(self, settings: Settings) -> None:
        """Make the folder, or go on in it.

        Raises:
            NodeError: it cannot be made, is damaged, or its runs were made under other conditions.
        """
        make_folder(self.root / "runs", "--run-dir")
        wanted = asdict(settings)
        if not self.settings.exists():
            write_atomic(self.settings, json.dumps(wanted).encode())
        elsewhere = "Name another folder with --run-dir."
        found = read_json(self.settings, elsewhere)
        if not isinstance(found, dict):
            raise NodeError("a damaged file", self.settings, elsewhere)
        if found != wanted:
            differs = ", ".join(
                f"{key} {found.get(key)!r} there, {wanted[key]!r} here"
                for key in wanted
                if found.get(key) != wanted[key]
            )
            raise NodeError(
                "the folder holds an experiment under other conditions",
                f"{self.root} ({differs})",
                "Name another folder with --run-dir, or ask for the same.",
            )

    def missing(self, runs: Sequence[Configuration]) -> list[Configuration]:
        """Those that are still to be done."""
        return [run for run in runs if not self.run(run).exists()]

    def write(self, run: Configuration, recording: Recording) -> None:
        """Keep a run; the figures come last, as they say that it is done."""
        write_atomic(self.seconds(run), json.dumps(recording.seconds).encode())
        write_atomic(self.run(run), recording.as_json().encode())

    def read(self, run: Configuration) -> Recording:
        """A run that is done.

        Raises:
            NodeError: its files are damaged.
        """
        seconds, figures = self.seconds(run), self.run(run)
        again = f"Remove {figures}: that run is then done again."
        try:
            return Recording.from_json(figures.read_text(), read_json(seconds, again))
        except (ValueError, TypeError, KeyError) as error:
            raise NodeError("a damaged file", figures, again) from error


def read_json(path: Path, remedy: str) -> Any:
    """What a file of an experiment holds.

    Raises:
        NodeError: it is no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise NodeError("a damaged file", path, remedy) from error
