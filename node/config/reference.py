"""Generator of docs/configuration.md: ``python -m node.config.reference``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from node.config.config import Config
from node.config.registry import REGISTRIES, Registry
from node.config.schema import keys, reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def page() -> str:
    """Return the whole page: each section's keys, then the plugins of each registry."""
    return "\n".join([reference(Config()), *(line for r in REGISTRIES for line in _kinds(r))])


def _kinds(registry: Registry) -> Iterator[str]:
    yield f"## Kinds of `{registry.key}`"
    yield ""
    base = registry.base.replace(":", ".")
    yield f"A package adds one, a class that extends `{base}`, by the entry points"
    yield f"`{registry.group}`."
    yield ""
    for name in registry.own:
        kind = registry.load(name)
        about = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("``", "`")
        yield f"- `{name}`: {' '.join(about.split())}"
    yield ""
    for name in registry.own:
        if options := registry.load(name).Options:
            yield f"Keys of `{registry.key}_options` with `{name}`:"
            yield ""
            yield from keys(options())
            yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
