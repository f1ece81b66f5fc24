"""What a verifier's worker may read of packages that lie outside site-packages."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from node.tasks.sandbox import sandbox
from node.tasks.sources import environments, plugins


class Finder:
    """Finds one module as an editable installation does, which is on no import path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None):
        return spec_from_file_location(name, self._path) if name == self._path.stem else None


@pytest.mark.parametrize("group", [plugins.GROUP, environments.GROUP])
def test_an_editable_package_is_readable_whatever_it_brings(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "brought_along.py"
    module.write_text("class Brought: ...\n")
    points = {group: [EntryPoint("brought", "brought_along:Brought", group)]}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder(module)])
    monkeypatch.setattr(sandbox, "entry_points", lambda group: points.get(group, []))
    assert str(module) in sandbox.readable()
