"""What is fuzzed: a function of bytes, the errors it may end with, and inputs to begin from."""

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
        name: also of its folder in the corpus.
        run: takes any bytes; whatever it raises beside ``named`` is a finding.
        named: errors that callers know and count.
        seeds: inputs that reach deep.
        longest: bytes of an input.
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
"""Of the modules that are imported, by name."""


def target(make: Callable[[], Target]) -> Callable[[], Target]:
    """Have what a function makes fuzzed."""
    TARGETS[make.__name__] = make
    return make


def vectors(name: str, *, without: int = 0) -> tuple[bytes, ...]:
    """Inputs of the protocol's test vectors, ``without`` their first bytes (an envelope's head)."""
    content = json.loads((VECTORS / f"{name}.json").read_text())
    inputs: Iterable[object] = (vector.get("input") for vector in content["vectors"])
    return tuple(bytes.fromhex(text)[without:] for text in inputs if isinstance(text, str))
