"""Which files a worker must be able to read: what it imports, and the system's libraries."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from node.tasks.sources.plugins import GROUP

_DEVICES = ("/dev/null", "/dev/urandom")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_OURS = ("node", "protocol", "swarm")


def readable() -> tuple[str, ...]:
    """The paths, none inside another: the interpreter, installed packages, our own, plugins.

    Of a folder that Python imports from but that is no folder of installed packages, such as the
    one a command was started in, only what can be imported: a node's key may lie beside it.
    """
    found: set[Path] = {Path(path) for path in (*_DEVICES, *_LIBRARIES)}
    found |= {Path(sys.executable), Path(sys.prefix, "pyvenv.cfg")}
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        found |= {Path(prefix, "lib"), Path(prefix, "lib64")}
    found |= {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    for entry in filter(None, sys.path):
        path = Path(entry).absolute()
        found |= {path} if path.name.endswith("-packages") else set(_importable(path))
    for name in (*_OURS, *_plugin_modules()):
        found |= set(_files_of(name))
    return outermost(str(path) for path in found if os.path.exists(path))  # noqa: PTH110 - below


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without those that lie inside another."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(folder.rstrip(os.sep) + os.sep) for folder in kept):
            kept.append(path)
    return tuple(kept)


def _importable(folder: Path) -> Iterator[Path]:
    # What may not be looked into is as good as absent, as it is to Python; pathlib would raise.
    if not os.path.isdir(folder):  # noqa: PTH112
        yield folder
        return
    if not os.access(folder, os.R_OK | os.X_OK):
        return
    for path in folder.iterdir():
        package = os.path.isdir(path) and (  # noqa: PTH112
            os.path.exists(path / "__init__.py")  # noqa: PTH110
            or path.suffix in (".dist-info", ".egg-info")
        )
        if package or path.suffix in (".py", ".so"):
            yield path


def _plugin_modules() -> Sequence[str]:
    """The outermost modules that packages bring their tasks in."""
    return [point.module.partition(".")[0] for point in entry_points(group=GROUP)]


def _files_of(module: str) -> Iterator[Path]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return
    if spec is not None:
        yield from map(
            Path, spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
        )
