"""Which env and level the next task is drawn from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from node.tasks.catalogue import CatalogueError
from protocol.manifest import EnvSpec


class TaskSampler:
    """Draws an env by weight, then one of its levels evenly.

    Args:
        specs: the envs that can be drawn.
        weights: relative frequency by env name; empty means all alike, an env left out of a
            non-empty mapping is never drawn.
        rng: the only source of chance; its state is the sampler's.

    Raises:
        CatalogueError: a weight names no env, is negative, or all are zero.
    """

    def __init__(
        self, specs: Sequence[EnvSpec], weights: Mapping[str, float], rng: random.Random
    ) -> None:
        names = [spec.name for spec in specs]
        for name, weight in weights.items():
            if name not in names:
                raise CatalogueError(
                    f"tasks.weights names {name!r}, which is not served here: "
                    f"use {', '.join(sorted(names))}"
                )
            if not 0.0 <= weight < float("inf"):
                raise CatalogueError(f"tasks.weights {name!r} = {weight}: use a number from 0 up")
        self._specs = tuple(specs)
        self._weights = [weights.get(name, 0.0) if weights else 1.0 for name in names]
        self._rng = rng
        if sum(self._weights) <= 0.0:
            raise CatalogueError("tasks.weights leaves no env to draw: give one a weight above 0")

    def next(self) -> tuple[str, int]:
        """Name and level of the next task."""
        spec = self._rng.choices(self._specs, self._weights)[0]
        return spec.name, self._rng.randrange(len(spec.levels))
