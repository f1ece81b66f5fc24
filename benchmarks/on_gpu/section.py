"""What a section is, and what it is told of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""Figures by name; ``what`` says what was measured."""

MIB = 1 << 20


class SkippedError(Exception):
    """What a section needs is not here; the message says what."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all sections of a run share.

    Attributes:
        device: torch's name of it.
        smoke: models of a million parameters and the smallest of everything.
        model: folder of a real model, for the sections that take one.
    """

    device: str
    smoke: bool
    model: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is one that CUDA knows."""
        return self.device.startswith("cuda")

    @property
    def patience(self) -> int:
        """Factor of all time budgets; what is run for its result may take its time."""
        return 3 if self.smoke else 1

    @property
    def dtype(self) -> str:
        """Of the weights."""
        return "bfloat16" if self.on_gpu else "float32"

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the models that are measured, of :data:`on_gpu.models.SHAPES`."""
        return ("0.001",) if self.smoke else ("0.1", "0.5", "1.5")


@dataclass(frozen=True, slots=True)
class Section:
    """Some measurements that stand or fall together.

    Attributes:
        name: as in ``--only``, in the results and in docs/gpu_code.md.
        title: of its table.
        budget: seconds, after which it is ended; what it had measured by then counts.
        run: yields rows of figures.
        gpus: that it takes; 0 where it runs on a CPU as well.
        packages: beside torch and transformers, without which it is skipped.
    """

    name: str
    title: str
    budget: float
    run: Callable[[Settings], Iterator[Row]]
    gpus: int = 0
    packages: tuple[str, ...] = ()
