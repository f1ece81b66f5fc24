"""A JSONL file of questions and answers as an env; its SHA-256 is the version.

Each line is an object with the strings ``prompt`` and ``answer``; a number counts as its text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import category

from node.errors import TaskSetError
from node.tasks import answer_forms as forms
from node.tasks.answer_patterns import NAMED, RATIO, SHORT_FRAC
from protocol.manifest import EnvSpec

MATCHES = ("exact", "numeric", "verbatim")
ALARM = 3600  # seconds of wall time, never reached: the verifier limits CPU time


class JsonLines:
    """Prompt and answer pairs; the only level setting is ``match``.

    ``exact`` compares as a person would, without case and markup; ``numeric`` what math-verify
    parses: ``1/2`` equals ``0.5``; ``verbatim`` character by character.
    """

    evaluates_text = False

    def __init__(self, pairs: Sequence[tuple[str, str]], matches: Sequence[str]) -> None:
        self._pairs = tuple(pairs)
        self._matches = tuple(matches)
        self.levels = len(self._matches)
        if "numeric" in self._matches:
            prepare()

    @classmethod
    def open(cls, spec: EnvSpec, levels: Sequence[Mapping[str, Any]], path: Path) -> JsonLines:
        """Open the file at ``path``; raise ``TaskSetError`` if it does not fit ``spec``."""
        check_version(spec, path)
        for level in levels:
            if level.keys() != {"match"} or level["match"] not in MATCHES:
                raise TaskSetError(
                    f"env {spec.name!r}: a level is {{ match = 'exact' }}, "
                    f"{{ match = 'numeric' }} or {{ match = 'verbatim' }}, not {level}"
                )
        pairs, matches = read_pairs(path), [level["match"] for level in levels]
        for _, answer in pairs if {"exact", "numeric"} & set(matches) else ():
            if mark := _MARK.search(answer):
                problem = f"{path}: the answer {answer[-80:]!r} has the mark {mark[0].strip()!r}"
                raise TaskSetError(f"{problem}, so no other form equals it: write only the result")
        return cls(pairs, matches)

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        """Return line ``number`` modulo the file's length."""
        prompt, answer = self._pairs[number % len(self._pairs)]
        match = self._matches[level]
        entry = {"question": prompt, "answer": answer, "match": match}
        return {**entry, "verbatim": match == "verbatim"}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """Return 1 if ``answer`` matches, else 0."""
        if answer.strip() == entry["answer"].strip():
            return 1.0
        return float(entry["match"] == "numeric" and _equal_numbers(entry["answer"], answer))


CHANGED = "restore it, get the members' file, or create a swarm of its own with create --out FILE"


def check_version(spec: EnvSpec, path: Path) -> None:
    """Raise ``TaskSetError`` unless ``path`` is the file that ``spec`` names by its digest."""
    if (digest := file_digest(path)) != spec.version:
        raise TaskSetError(
            f"env {spec.name!r}: {str(path)!r} is not the swarm's file (SHA-256 {digest}, not "
            f"{spec.version}): {CHANGED}"
        )


def file_digest(path: Path) -> str:
    """Return a file's hex SHA-256; raise ``TaskSetError`` if it is unreadable."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:  # ValueError: invalid file name
        reason = error.strerror if isinstance(error, OSError) else error
        raise TaskSetError(f"file {str(path)!r} cannot be read: {reason}") from error


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the prompts and answers of a file; raise ``TaskSetError`` for a bad line."""
    pairs = []
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        remedy = ""
        if isinstance(error, UnicodeDecodeError):
            known = (kind for magic, kind in _BINARY.items() if data.startswith(magic))
            remedy = f": save {next(known, 'it')} as JSON lines in UTF-8"
        raise TaskSetError(f"file {str(path)!r} cannot be read: {error}{remedy}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        pairs.append(_pair(line, f"{path} line {number}"))
    if not pairs:
        raise TaskSetError(f"{path} has no line: write an object with prompt and answer in each")
    return pairs


def _pair(line: str, location: str) -> tuple[str, str]:
    try:
        record = json.loads(line, parse_int=str, parse_float=str)
        prompt, answer = record["prompt"], record["answer"]
    except ValueError as error:
        raise TaskSetError(f"{location} is not JSON: {error}: write one object per line") from error
    except RecursionError as error:
        raise TaskSetError(f"{location} is nested too deeply") from error
    except (KeyError, TypeError) as error:
        keys = ", ".join(record)[:80] if isinstance(record, dict) else type(record).__name__
        remedy = "write an object with the keys prompt and answer"
        raise TaskSetError(f"{location} has {keys or 'no key'}: {remedy}") from error
    for key, text in (("prompt", prompt), ("answer", answer)):
        if not isinstance(text, str):
            raise TaskSetError(f"{location}: {key} is {text!r:.60}: write a string")
        if not any(category(char)[0] not in "ZC" for char in text):
            raise TaskSetError(f"{location}: the {key} is empty: remove the line")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problem = f"{key} has a lone surrogate, U+{ord(text[error.start]):04X}"
            raise TaskSetError(f"{location}: {problem}: remove it") from error
    return prompt, answer


_BINARY = {b"PAR1": "this Parquet file", b"\x1f\x8b": "this compressed file", b"PK": "this archive"}
_MARK = re.compile(r"^[ \t]*####|<answer>|\\boxed\b", re.MULTILINE | re.IGNORECASE)

# Texts that math-verify would compute with, compared as text: digits beside a blank or colon, or
# of another base; dates, addresses, ranges and phone numbers; ``H2O``, but not ``1e3`` or ``2x``.
_NO_VALUE = re.compile(
    r"\d\s+\d|\d[_:]\d|\b0[a-z]|\d{4}-\d\d?-\d|\d/\d+/\d|\d\.\d+\.\d"
    r"|^\s*\d[\d.,]*+(?<=\d)(?:\s*[-–]\s*\d[\d.,]*+(?<=\d))+\s*$|(?<![\\a-z])(?!(?<=\d)e\d)[a-z]+\d",
    re.ASCII | re.IGNORECASE,
)
# Words alone, and letters with blanks, such as moves: math-verify multiplies the letters.
_WORDS = re.compile(
    r"(?:\\text\s*\{)?[^\w\\]*+(?:(?:[a-z]{3,}+[^\w\\]*+)++|[a-z']++(?:\s++[a-z']++)++[^\w\\]*+)",
    re.ASCII | re.IGNORECASE,
)
# What computes an answer, as the question may already do.
COMPUTES = re.compile(
    r"\\(?:int|oint|sum|prod|lim|[dt]?binom|gcd|lcm|det|[bp]?mod|log|ln|exp|max|min|sup|inf"
    r"|operatorname|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?)(?![a-z])|\\[dt]?frac\s*\{\s*d\b|\bd/d|!"
    r"|[)}\]]\s*\^\s*\{?\s*\d{2,}"  # takes math-verify seconds, or too long
)
_OPERATORS = re.compile(r"\\(?![dt]?frac|text|mathrm|left|right)[a-z]+|[\d})]\s*[-+*×÷^]")
# A comma between items, which are two with ``\pm``; not that of ``1,234``, ``1{,}234``.
_COMMA = re.compile(r"(?<!\{),(?!(?<=\d,)\d{3}(?!\d))|\\pm(?![a-z])|±")
_RELATION = re.compile(r"[=<>≤≥≠]+|\\(?:leq?|geq?|lt|gt|neq?)(?![a-z])")
_PARTS = re.compile(r"[,;]|=>|⇒|→|\\(?:Right|right|implies|to)(?:arrow)?(?![a-z])|\band\b|\bor\b")
_NAME = re.compile(r"\\?[a-z]+(?:_\w|_\{\w+\})?(?:\([\w, ]*\))?", re.IGNORECASE)
_COMMAND = re.compile(r"\\[a-z]+|(?<![a-z])e(?![a-z])", re.IGNORECASE)
_PRIMED = re.compile(r"(?<!\w)\w++′+")
_BRACKET_OR_NAME = re.compile(r"[(\[=]|\\\{")
_ROOT = re.compile(r"√\s*(\d+|\w|\([^()]*\)|\{[^{}]*\})")
_FORMS = ("x+1", "1+x"), ("2x-3y=7", "3y=2x-7"), (r"\{1,\sqrt{3}\}", r"[1,\frac{\pi}{2})")
_SYMBOLS = str.maketrans({"∞": r"\infty ", "°": r"^\circ ", "²": "^2", "³": "^3"})


def computes(gold: str, answer: str) -> bool:
    """Return whether an answer leaves to the reader what the file's answer states."""
    allowed = COMPUTES.findall(gold)
    if any(command not in allowed for command in COMPUTES.findall(answer)):
        return True
    name, _, value = gold.rpartition("=")
    value = value if _NAME.fullmatch(name.strip()) else gold
    is_number = forms.number_value(value) is not None or RATIO.fullmatch(_braced(value).strip())
    return bool(is_number and _OPERATORS.search(_braced(forms.equation_sides(answer)[-1])))


def unsolved(gold: str, answer: str) -> bool:
    """Return whether the file's answer gives a name's value, and an answer relates it to others."""
    name, *values = map(str.strip, _RELATION.split(gold))
    if not values or not _NAME.fullmatch(name) or _NAME.search(_COMMAND.sub("", values[-1])):
        return False
    parts = [_RELATION.split(part) for part in _PARTS.split(answer)]
    relations = [[side.strip() for side in sides] for sides in parts if len(sides) > 1]
    word = re.compile(rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])")
    solved = (name in sides and sum(map(bool, map(word.search, sides))) == 1 for sides in relations)
    return bool(relations) and not answer.lstrip().startswith("(") and not any(solved)


def _braced(text: str) -> str:
    return SHORT_FRAC.sub(r"\\frac{\1}{\2}", text)


def _commas(text: str) -> int:
    """Return the number of commas between the items of a list."""
    return len(_COMMA.findall(forms.listed(text)))


def _in_latex(text: str) -> str:
    return _ROOT.sub(r"\\sqrt{\1}", text).translate(_SYMBOLS)


def prepare() -> None:
    """Compare the forms that load math-verify: on a slow machine that takes longer than allowed."""
    for gold, answer in _FORMS:
        _equal_numbers(gold, answer)


def _equal_numbers(gold: str, answer: str) -> bool:
    gold, answer = _in_latex(gold), _in_latex(answer)
    if _WORDS.fullmatch(gold) or _NO_VALUE.search(gold) or _NO_VALUE.search(answer):
        return False
    sides = forms.equation_sides(answer)
    if not sides or computes(gold, answer) or unsolved(gold, answer):
        return False
    result = answer if "=" in gold else sides[-1]
    if _PRIMED.findall(forms.canonical(gold)) != _PRIMED.findall(forms.canonical(result)):
        return False
    if not _BRACKET_OR_NAME.search(gold) and _commas(gold) not in (0, _commas(answer)):
        return False
    values = forms.number_value(gold), forms.number_value(sides[-1])
    if None not in values:
        return values[0] == values[1]
    # math-verify imports sympy and ANTLR, which exact matching does not need.
    from math_verify import LatexExtractionConfig, parse, verify

    if "=" not in gold:
        answer = forms.unnamed(answer) if forms.gives_several(answer) else sides[-1]
        if NAMED.search(answer):
            return False
    # Parse LaTeX only: the library's parser of plain expressions uses eval.
    config = [LatexExtractionConfig()]
    parsed = [parse(f"${text}$", config, parsing_timeout=ALARM) for text in (gold, answer)]
    return bool(verify(*parsed, timeout_seconds=ALARM))
