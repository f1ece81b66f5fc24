"""Small simulated swarms."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rich.console import Console

from experiments.arms import AUTO, Arm
from experiments.bases import Base
from experiments.recording import Recording
from experiments.regimes import EVERY, find
from experiments.settings import Configuration, Settings
from experiments.simulation import SimulatedSwarm, run_simulation
from experiments.surroundings import Surroundings
from node.run.update_groups import Outcome

SMALL = Settings(nodes=2, rounds=3, model="tiny", bury=0, eval_every=2, eval_tasks=4)
QUIET = Console(quiet=True)
Stepped = tuple[SimulatedSwarm, list[list[Outcome | None]]]


def of(
    settings: Settings, regime: str, arm: Arm, seed: int
) -> tuple[Settings, Configuration, Mapping[Base, str]]:
    run = Configuration(arm, seed, find(regime, EVERY))
    bases = run.bases(settings)
    return settings, run, {b: "tiny-wide" if b == "wide" else settings.model for b in bases}


def surroundings(
    settings: Settings = SMALL, regime: str = "equal", arm: Arm = AUTO, seed: int = 0
) -> Surroundings:
    return Surroundings(*of(settings, regime, arm, seed))


def simulated(
    settings: Settings = SMALL, regime: str = "equal", arm: Arm = AUTO, seed: int = 0
) -> Recording:
    return run_simulation(*of(settings, regime, arm, seed))


def stepped(settings: Settings, regime: str, rounds: int, arm: Arm = AUTO) -> Stepped:
    """A swarm after some rounds, and what its honest nodes did in each."""
    swarm = SimulatedSwarm(surroundings(settings, regime, arm))

    async def go() -> list[list[Outcome | None]]:
        return [await swarm.step(number) for number in range(1, rounds + 1)]

    outcomes = asyncio.run(go())
    swarm.check()
    return swarm, outcomes
