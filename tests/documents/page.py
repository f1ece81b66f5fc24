"""Parse a page of the documents into fenced blocks and commands."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAIN = ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG", "CODE_OF_CONDUCT")
PAGES = [
    *(ROOT / f"{name}.md" for name in MAIN),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    ROOT / "benchmarks" / "RESULTS.md",
    *sorted((ROOT / "experiments" / "reports").glob("*.md")),
]

_FENCE = re.compile(r"( *)```(.*)")
_HEADING = re.compile(r"#+ ")
_FILE = re.compile(r"`([\w-]+\.(?:toml|json))`")
_BEGINNING = re.compile(r"\s*([A-Za-z][A-Za-z' ./-]*?)(?=  |[^A-Za-z' ./-]|$)")
PROGRAM = re.compile(r"(?:^|\s)(?:\S*/)?swarm-node (?=[a-z])")
EXPERIMENTS = re.compile(r"^python -m experiments ")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its text without the fence's indentation, and its position.

    Lines count from 1. Sections count from 0 and start at headings of any level. ``before`` is the
    paragraph before the block.
    """

    language: str
    text: str
    line: int
    section: int
    before: str

    @property
    def file(self) -> str | None:
        """Return the file that the paragraph before names, if the block is its content."""
        named = _FILE.findall(self.before) if self.language in ("toml", "json") else []
        return named[-1] if named else None


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(text: str) -> list[Block]:
    return list(_blocks(text.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    section, before, at = 0, [""], 0
    while at < len(lines):
        line = lines[at]
        if fence := _FENCE.fullmatch(line):
            end = lines.index(f"{fence[1]}```", at + 1)
            inside = [each.removeprefix(fence[1]) for each in lines[at + 1 : end]]
            paragraph = "\n".join(before).strip().rpartition("\n\n")[2]
            yield Block(fence[2], "\n".join(inside) + "\n", at + 1, section, paragraph)
            before, at = [""], end
        elif _HEADING.match(line):
            section, before = section + 1, [""]
        else:
            before.append(line.strip())
        at += 1


def beginnings(shown: str) -> list[str]:
    """Return the starts of output lines, up to a figure, an id or a second column."""
    found = [_BEGINNING.match(line) for line in shown.splitlines()]
    return [match[1] for match in found if match]


def commands(script: str) -> list[str]:
    """Return the commands of a shell block without comments; join continued lines."""
    joined = re.sub(r" *\\\n\s*", " ", script).splitlines()
    lines = (re.sub(r"(^|\s+)#.*", "", line).rstrip() for line in joined)
    return [line for line in lines if line]


def arguments(command: str, program: re.Pattern[str] = PROGRAM) -> str | None:
    """Return the arguments of a command, or None if it runs another program."""
    found = program.search(command)
    return command[found.end() :] if found else None


def unset(script: str) -> set[str]:
    """Return the shell variables that a block reads before it sets them."""
    read = {m[1]: m.start() for m in reversed(list(re.finditer(r"\$\{?([A-Za-z_]\w*)", script)))}
    made = {m[1]: m.start() for m in reversed(list(re.finditer(r"(?m)^([A-Za-z_]\w*)=", script)))}
    return {name for name, at in read.items() if made.get(name, at) >= at}
