"""``python -m node.cli.api_reference`` writes docs/api.md from docstrings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from node.config.registry import REGISTRIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
DRIVEN = (
    "node.run.node:Node",
    "node.run.training_loop:TrainingLoop",
    "node.storage.run_folder:RunFolder",
    "node.policy.policy:Policy",
    "node.monitor.record:RoundRecord",
)
"""Classes with which another program drives a node."""
DECORATED = (classmethod, staticmethod, property)
HEAD = """\
# Python

Written by `python -m node.cli.api_reference` from the docstrings. A program that
[drives a node](../examples/drive_from_python.py) uses the first classes; a package extends the
others and names its class in an entry point ([which](configuration.md)).
"""
FOOT = """\
---

[Command line](cli.md) · [architecture](architecture.md) · [README](../README.md)
"""


def page() -> str:
    """Return the whole page: classes that drive a node, then those to extend."""
    lines = [HEAD, "## Drive a node\n"]
    for place in DRIVEN:
        lines += _class(place)
    lines.append("## Extend it\n")
    for registry in REGISTRIES:
        lines += _class(registry.base)
    return "\n".join([*lines, FOOT])


def _class(place: str) -> Iterator[str]:
    module, _, name = place.partition(":")
    kind = getattr(importlib.import_module(module), name)
    yield f"### `{module}.{name}`\n"
    yield f"```text\n{inspect.getdoc(kind)}\n```\n"
    for name, member in vars(kind).items():
        documentation = inspect.getdoc(member)
        method = inspect.isfunction(member) or isinstance(member, DECORATED)
        if method and documentation and not name.startswith("_"):
            summary = " ".join(documentation.split("\n\n")[0].split()).replace("``", "`")
            yield f"- `{name}{_arguments(member)}`: {summary}"
    yield ""


def _arguments(member: Any) -> str:
    if isinstance(member, property):
        return ""
    signature = inspect.signature(getattr(member, "__func__", member))
    parameters = [_spelled(parameter) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters))
    return text.replace("'", "").replace("Ellipsis", "...")


def _spelled(parameter: inspect.Parameter) -> inspect.Parameter:
    """Hide defaults that print a momentary state, such as a logger's level."""
    lasting = isinstance(parameter.default, str | int | float | tuple | None)
    if parameter.default is inspect.Parameter.empty or lasting:
        return parameter
    return parameter.replace(default=...)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
