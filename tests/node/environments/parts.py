"""Environments for tests, and their manifest entries and task sets."""

import asyncio
import random
from pathlib import Path
from typing import Any, ClassVar

from node.environments.environment import Environment
from node.tasks.task_set import Allowed, load_task_set, own_files
from protocol.manifest import EnvSpec, canonical_json


class Echo:
    """Repeats each action with its number, until ``stop`` or for ``turns`` turns.

    The reward is the fraction of turns that equal the requested letter.
    """

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True
    hidden: ClassVar[bool] = False

    def reset(self, seed: int, *, turns: int = 3) -> str:
        self._letter = "abcdefgh"[seed % 8]
        self._turns = turns
        self._told: list[str] = []
        return f"Say {self._letter} {seed % 100_000}:"

    def step(self, action: str) -> tuple[str, bool]:
        self._told.append(action)
        over = action == "stop" or len(self._told) == self._turns
        return f"{len(self._told)} {action[:4]}", over

    def reward(self) -> float:
        return sum(word == self._letter for word in self._told) / self._turns


class Slow(Echo):
    async def step(self, action: str) -> tuple[str, bool]:  # type: ignore[override]
        await asyncio.sleep(0.05)
        return super().step(action)


class Drawing(Echo):
    hidden: ClassVar[bool] = True

    def step(self, action: str) -> tuple[str, bool]:
        observation, over = super().step(action)
        return f"{observation} {random.random()}", over


class Tripping(Echo):
    def step(self, action: str) -> tuple[str, bool]:
        if "x" in action:
            raise ZeroDivisionError(action)
        return super().step(action)


class Passing(Echo):
    """Returns observations that cannot be reproduced."""

    replayable: ClassVar[bool] = False

    def step(self, action: str) -> tuple[str, bool]:
        observation, over = super().step(action)
        return f"{observation} {id(self)} {random.SystemRandom().random()}", over


FOR_TESTS: dict[str, type[Environment]] = {
    each.__name__.lower(): each for each in (Echo, Slow, Drawing, Tripping, Passing)
}


def spec(name: str, *levels: dict[str, Any], version: str = "1") -> EnvSpec:
    """Return the manifest entry of an environment."""
    settings = tuple(canonical_json(level) for level in levels or ({},))
    return EnvSpec(name, "environment", version, settings, "{question}", "text")


TABLE = """
source = "environment"
template = "{{question}}"
extract = "text"
[[env]]
name = "{name}"
file = "{name}.py"
levels = [{levels}]
"""


def written(folder: Path, name: str, code: str, levels: str = "{}"):
    """Write an environment file; return its specs and the permission to load it."""
    (folder / f"{name}.py").write_text(code)
    task_set = folder / f"{name}.toml"
    task_set.write_text(TABLE.format(name=name, levels=levels))
    return load_task_set(str(task_set)), Allowed(own_files(str(task_set)))
