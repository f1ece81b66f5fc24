"""Catalogues of environments that lie in a file beside them."""

from __future__ import annotations

from pathlib import Path

from node.tasks.catalogue import Allowed, load_catalogue, own_files
from protocol.manifest import EnvSpec

TABLE = """
source = "environment"
template = "{{question}}"
extract = "text"
[[env]]
name = "{name}"
file = "{name}.py"
levels = [{levels}]
"""


def written(
    folder: Path, name: str, code: str, levels: str = "{}"
) -> tuple[tuple[EnvSpec, ...], Allowed]:
    """The catalogue of an environment with this code, and the leave to load its file."""
    (folder / f"{name}.py").write_text(code)
    catalogue = folder / f"{name}.toml"
    catalogue.write_text(TABLE.format(name=name, levels=levels))
    return load_catalogue(str(catalogue)), Allowed(own_files(str(catalogue)))
