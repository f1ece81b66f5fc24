"""A fuzz target: a function of bytes, its allowed errors, and initial inputs."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
VECTORS = HERE.parent / "protocol" / "vectors"


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder or handler.

    Attributes:
        name: name of the target and of its folder in the corpus.
        run: takes any bytes; every error except those in ``named`` is a finding.
        named: errors that callers know and count.
        seeds: inputs that reach deep code.
        longest: maximum bytes of an input.
    """

    name: str
    run: Callable[[bytes], object]
    named: tuple[type[Exception], ...] = ()
    seeds: tuple[bytes, ...] = ()
    longest: int = 4096

    def __call__(self, data: bytes) -> None:
        try:
            self.run(data)
        except self.named:
            return

    def inputs(self) -> list[bytes]:
        folder = CORPUS / self.name
        kept = [p.read_bytes() for p in sorted(folder.iterdir())] if folder.is_dir() else []
        return [*dict.fromkeys((*self.seeds, *kept))]


TARGETS: dict[str, Callable[[], Target]] = {}
"""Targets of the imported modules, by name."""


def target(make: Callable[[], Target]) -> Callable[[], Target]:
    """Register the target that a function makes."""
    TARGETS[make.__name__] = make
    return make


def vectors(name: str, *, without: int = 0) -> tuple[bytes, ...]:
    """Return test vectors' inputs ``without`` their first bytes (an envelope's head)."""
    content = json.loads((VECTORS / f"{name}.json").read_text())
    inputs: Iterable[object] = (vector.get("input") for vector in content["vectors"])
    return tuple(bytes.fromhex(text)[without:] for text in inputs if isinstance(text, str))
