"""Mutants, which remove a defence from the code, and checks of their entries.

An entry of ``tests/mutants/*.toml`` names a threat (a row of ``docs/security.md``), the code with
the defence, the code without it, and tests. At least one of the tests must fail without it.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from tests.parsing import parse

SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
THREATS = Path("docs/security.md")
_ROW = re.compile(rf"\|\s*`({SLUG.pattern})`\s*\|")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defence and the change that removes it.

    Attributes:
        threat: slug of the row of ``docs/security.md``.
        defence: one sentence that says what stops the threat.
        file: path in the tree.
        find: text that occurs in the file exactly once.
        replace: the text without the defence.
        tests: pytest ids; at least one test fails with the mutant.
        source: the entry, such as ``protocol.toml #2``.
    """

    threat: str
    defence: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    source: str


class BadMutant(Exception):  # noqa: N818
    """Raised for an invalid entry or a threat table that does not match the entries."""


def read(folder: Path) -> list[Mutant]:
    """Return all entries of ``folder/*.toml``."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise BadMutant(f"{path.name}: {error}") from error
        if set(content) != {"mutant"}:
            raise BadMutant(f"{path.name}: holds {sorted(content)}, write [[mutant]] only")
        for number, entry in enumerate(content["mutant"], 1):
            mutants.append(_entry(entry, f"{path.name} #{number}"))
    return mutants


def _entry(entry: dict[str, object], source: str) -> Mutant:
    wanted = {field.name for field in fields(Mutant)} - {"source"}
    if set(entry) != wanted:
        raise BadMutant(f"{source}: keys {sorted(entry)}, write {sorted(wanted)}")
    tests = entry.pop("tests")
    if not isinstance(tests, list) or not tests:
        raise BadMutant(f"{source}: tests must be a list of at least one pytest id")
    for value in (*entry.values(), *tests):
        if not isinstance(value, str):
            raise BadMutant(f"{source}: {value!r} is not a text")
    return Mutant(**entry, tests=tuple(tests), source=source)  # type: ignore[arg-type]


def faults(mutant: Mutant, tree: Path) -> Iterator[str]:
    """Yield the reasons why an entry cannot be tried in this tree."""
    if not SLUG.fullmatch(mutant.threat):
        yield f"threat {mutant.threat!r} is not a slug like slow-streams"
    if not mutant.defence.strip():
        yield "no word on the defence"
    if mutant.find == mutant.replace:
        yield "find and replace are the same text"
    path = tree / mutant.file
    if ".." in PurePosixPath(mutant.file).parts or not path.is_file():
        yield f"there is no file {mutant.file}"
        return
    text = path.read_text(encoding="utf-8")
    if (count := text.count(mutant.find)) != 1:
        yield f"find occurs {count} times in {mutant.file}, instead of once"
    elif path.suffix == ".py":
        try:
            parse(mutated(text, mutant))
        except SyntaxError as error:
            yield f"{mutant.file} is no Python any more: {error}"
    for test in mutant.tests:
        if not _exists(test, tree):
            yield f"there is no test {test}"


def mutated(text: str, mutant: Mutant) -> str:
    return text.replace(mutant.find, mutant.replace, 1)


def _exists(test: str, tree: Path) -> bool:
    """Return whether the file of a pytest id, and its function if any, exist."""
    name, _, function = test.partition("::")
    if not function or not (tree / name).is_file():
        return (tree / name).is_file()
    wanted = function.partition("[")[0].split("::")[-1]
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == wanted
        for node in ast.walk(parse((tree / name).read_text(encoding="utf-8")))
    )


def threats(document: Path) -> set[str]:
    """Return the slugs of the threat table; rows start with a slug in backticks."""
    if not document.is_file():
        raise BadMutant(f"there is no {THREATS}: every threat is a row of its table")
    lines = document.read_text(encoding="utf-8").splitlines()
    found = {match[1] for line in lines if (match := _ROW.match(line.strip()))}
    if not found:
        raise BadMutant(f"{document} has no table of threats: rows that begin with | `slug` |")
    return found


def unmatched(known: set[str], mutants: Iterable[Mutant]) -> Iterator[str]:
    """Yield threats without a mutant, and mutants without a threat."""
    tried = {mutant.threat for mutant in mutants}
    for slug in sorted(known - tried):
        yield f"threat {slug} of {THREATS} has no mutant: add one to tests/mutants"
    for slug in sorted(tried - known):
        yield f"threat {slug} has mutants but no row in {THREATS}"
