"""The two kinds of work in an experiment, as a worker process is told of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from node.experiment.arms import Arm
from node.experiment.folder import ExperimentFolder
from node.experiment.settings import Configuration, Settings
from node.rounds import Rules

RECIPE = "tiny"
"""Of the base policies that seeds make."""


@dataclass(frozen=True, slots=True)
class Job:
    """Make the base policy of ``seed``, or, with an arm, run it under that seed."""

    root: str
    settings: Settings
    seed: int
    arm: Arm | None = None

    @property
    def title(self) -> str:
        """What people are shown."""
        return f"base {self.seed}" if self.arm is None else f"{self.arm.name}, seed {self.seed}"

    def encode(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str) -> Job:
        """The inverse of :meth:`encode`."""
        value: dict[str, Any] = json.loads(line)
        arm = value["arm"]
        if arm is not None:
            arm = Arm(**{**arm, "rules": Rules(**arm["rules"])})
        return cls(value["root"], Settings(**value["settings"]), value["seed"], arm)

    def do(self, report: Callable[[int], None]) -> None:
        """Do it and write what comes out; ``report`` is told how many rounds are done."""
        folder = ExperimentFolder(Path(self.root))
        if self.arm is None:
            make_base(folder, self.seed, self.settings)
            return
        from node.experiment.simulation import run_simulation

        run = Configuration(self.arm, self.seed)
        settings = self.settings
        model = str(folder.base(self.seed)) if settings.makes_bases else settings.model
        folder.write(run, run_simulation(self.settings, run, model, report))


def make_base(folder: ExperimentFolder, seed: int, settings: Settings) -> None:
    """Make a seed's base policy; its folder appears when it is whole."""
    from node.policy import Policy, PolicyConfig
    from node.recipe.make import Made, bury, make, save

    if settings.model:
        policy = Policy.load(PolicyConfig(settings.model, device="cpu"))
        made = Made(policy.model, policy.tokenizer)
    else:
        made = make(RECIPE, seed)
    if settings.bury:
        bury(made, settings.bury, seed)
    target = folder.base(seed)
    unfinished = target.with_name(f"{seed}.unfinished")
    save(made, unfinished)
    unfinished.rename(target)
