"""The versions that are held in constraints.txt are of all that is asked for, and allowed."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from install.environment import requirements

ROOT = Path(__file__).parents[1]
HELD = ("test", "dev", "docs")
"""Extras that the environment of the tests has."""


def held() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def asked() -> list[Requirement]:
    """Every requirement of the program and of those extras, one that leads to others resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, found = project["optional-dependencies"], list[Requirement]()
    waiting = [*requirements(), *(line for name in HELD for line in extras[name])]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == project["name"]:
            waiting += [line for name in requirement.extras for line in extras[name]]
        elif not requirement.marker or requirement.marker.evaluate():
            found.append(requirement)
    return found


def test_every_requirement_has_a_version_that_it_allows() -> None:
    versions = held()
    wrong = [
        str(each)
        for each in asked()
        if versions.get(canonicalize_name(each.name), "") not in each.specifier
    ]
    assert wrong == []
