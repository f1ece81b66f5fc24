"""The two kinds of work in an experiment, as a worker process is told of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from experiments.arms import Arm
from experiments.bases import Base, make_bases
from experiments.folder import ExperimentFolder
from experiments.recipe.make import save
from experiments.regimes import EQUAL, EVERY, find
from experiments.settings import Configuration, Settings
from experiments.simulation import run_simulation


@dataclass(frozen=True, slots=True)
class Job:
    """Make base policies of ``seed`` that branch off from one origin, or, with an arm, run it.

    Attributes:
        root: the experiment's folder.
        regime: name of the regime that the arm is run in.
        bases: what is made where there is no arm.
    """

    root: str
    settings: Settings
    seed: int
    arm: Arm | None = None
    regime: str = EQUAL.name
    bases: tuple[Base, ...] = ()

    @property
    def title(self) -> str:
        """What people are shown; no two jobs of an experiment have the same."""
        what = ", ".join(self.bases) if self.arm is None else f"{self.regime} {self.arm.name}"
        return f"{what}, seed {self.seed}"

    def encode(self) -> str:
        """One line of JSON."""
        return _JSON.dump_json(self).decode()

    @classmethod
    def decode(cls, line: str) -> Job:
        """The inverse of :meth:`encode`."""
        return _JSON.validate_json(line)

    def do(self, report: Callable[[int], None]) -> None:
        """Do it and write what comes out; ``report`` is told how many rounds are done."""
        folder, settings = ExperimentFolder(Path(self.root)), self.settings
        if self.arm is None:
            save_bases(folder, settings, self.bases, self.seed)
            return
        run = Configuration(self.arm, self.seed, find(self.regime, EVERY))
        models = {kind: self._model(folder, kind) for kind in run.bases(settings)}
        folder.write(run, run_simulation(settings, run, models, report))

    def _model(self, folder: ExperimentFolder, kind: Base) -> str:
        if self.settings.makes_bases:
            return str(folder.base(kind, self.seed))
        return self.settings.set_up.differing.wide if kind == "wide" else self.settings.model


_JSON = TypeAdapter(Job)


def save_bases(
    folder: ExperimentFolder, settings: Settings, kinds: tuple[Base, ...], seed: int
) -> None:
    """Make base policies of one origin; the folder of each appears when it is whole."""
    made = make_bases(kinds, seed, settings.set_up, settings.model, settings.bury)
    for kind, base in zip(kinds, made, strict=True):
        target = folder.base(kind, seed)
        unfinished = target.with_name(f"{seed}.unfinished")
        save(base, unfinished)
        unfinished.rename(target)
