"""Propositional logic: the questions of reasoning-gym to ask, and the conclusions that count.

The library's scorer takes any statement that follows, so the premises themselves are right, and
whatever is said of premises that contradict each other. It also tries every assignment of as many
variables as an answer names. Here the premises have to be satisfiable. A conclusion counts if it
follows from all premises, no part of it follows from one premise alone, and no part can be said
in fewer words: where ``Q`` follows, ``P ∨ Q`` is not right.

A statement is an integer: bit ``i`` is its value under assignment ``i`` of the variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

MOST_VARIABLES = 8
_MOST_CHARACTERS = 200  # of an answer; premises are shorter
_SPELLINGS = (
    (r"<-+>|<=+>|⇔|≡|\\leftrightarrow|\\iff|\biff\b", "↔"),
    (r"-+>|=+>|⇒|⊃|\\rightarrow|\\to|\\implies|\bimplies\b", "→"),
    (r"&&?|/\\|\\land|\\wedge|\band\b", "∧"),
    (r"\|\|?|\\/|\\lor|\\vee|\bor\b", "∨"),
    (r"~|!|\\neg|\\lnot|\bnot\b", "¬"),
)
_BINDING = ("↔", "→", "∨", "∧")  # the loosest first, as the library reads them


def fit(entry: Mapping[str, Any]) -> bool:
    """Return whether the premises are satisfiable and something new follows from them.

    If a variable or its negation follows, one question in sixteen is fit, because the same letter
    would often be right otherwise.
    """
    variables, premises = _premises(entry)
    if len(variables) > MOST_VARIABLES:
        return False
    clauses = _new(premises, len(variables))
    tautology = _always(len(variables))
    letters = [_values(variable, len(variables)) for variable in range(len(variables))]
    is_letter = any(letter in clauses or tautology & ~letter in clauses for letter in letters)
    return bool(clauses) and (not is_letter or entry["metadata"]["source_index"] % 16 == 0)


def score(entry: Mapping[str, Any], answer: str) -> float:
    """Return 1 for a conclusion all parts of which are new, else 0.

    Parts are its prime implicates: the shortest disjunctions that it comes to.
    """
    variables, premises = _premises(entry)
    try:
        conclusion = _read(answer, variables)
    except ValueError:
        return 0.0
    parts = set(_implicates(conclusion, len(variables)))
    return float(bool(parts) and parts <= _new(premises, len(variables)))


def _new(premises: Sequence[int], count: int) -> set[int]:
    """Return the strongest disjunctions that follow from all premises and from none alone."""
    conjunction = _always(count)
    for premise in premises:
        conjunction &= premise
    if not conjunction:
        return set()
    return {
        clause
        for clause in _implicates(conjunction, count)
        if all(premise & ~clause for premise in premises)
    }


def _premises(entry: Mapping[str, Any]) -> tuple[Sequence[str], list[int]]:
    metadata = entry["metadata"]
    variables: Sequence[str] = metadata["variables"][: MOST_VARIABLES + 1]
    if len(variables) > MOST_VARIABLES:
        return variables, []
    return variables, [_read(premise, variables) for premise in metadata["premises"]]


def _always(count: int) -> int:
    return (1 << (1 << count)) - 1


def _values(variable: int, count: int) -> int:
    """Return the statement that is one variable."""
    return sum(1 << row for row in range(1 << count) if row >> variable & 1)


def _implicates(statement: int, count: int) -> Iterator[int]:
    """Yield the prime implicates of a statement, none for one that always holds."""
    tautology = _always(count)
    columns = [_values(variable, count) for variable in range(count)]
    primes: list[tuple[int | None, ...]] = []
    clauses = sorted(product((None, 1, 0), repeat=count), key=lambda c: count - c.count(None))
    for clause in clauses:
        disjunction = 0
        for column, sign in zip(columns, clause, strict=True):
            if sign is not None:
                disjunction |= column if sign else tautology & ~column
        if statement & ~disjunction or any(_within(shorter, clause) for shorter in primes):
            continue
        primes.append(clause)
        yield disjunction


def _within(shorter: Sequence[int | None], clause: Sequence[int | None]) -> bool:
    """Return whether a clause has all literals of a shorter one."""
    return all(sign in (None, other) for sign, other in zip(shorter, clause, strict=True))


def _read(text: str, variables: Sequence[str]) -> int:
    """Read a statement; raise ``ValueError`` if it is none, or names another variable."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError("too long")
    for spelling, symbol in _SPELLINGS:
        text = re.sub(spelling, symbol, text, flags=re.IGNORECASE)
    symbols = re.sub(r"\s", "", text)
    statement, end = _parsed(symbols, 0, variables)
    if end != len(symbols):
        raise ValueError("something is left")
    return statement


def _parsed(signs: str, index: int, variables: Sequence[str], binding: int = 0) -> tuple[int, int]:
    """Parse what binds at least as strongly as ``binding``; return it and where it ends."""
    count = len(variables)
    if binding == len(_BINDING):
        return _operand(signs, index, variables)
    statement, index = _parsed(signs, index, variables, binding + 1)
    while signs[index : index + 1] == _BINDING[binding]:
        other, index = _parsed(signs, index + 1, variables, binding + 1)
        match _BINDING[binding]:
            case "↔":
                statement = _always(count) & ~(statement ^ other)
            case "→":
                statement = (_always(count) & ~statement) | other
            case "∨":
                statement |= other
            case "∧":
                statement &= other
    return statement, index


def _operand(signs: str, index: int, variables: Sequence[str]) -> tuple[int, int]:
    symbol = signs[index : index + 1]
    if symbol == "¬":
        statement, index = _operand(signs, index + 1, variables)
        return _always(len(variables)) & ~statement, index
    if symbol in ("(", "["):
        statement, index = _parsed(signs, index + 1, variables)
        if signs[index : index + 1] not in (")", "]"):
            raise ValueError("a bracket is open")
        return statement, index + 1
    if symbol and symbol.upper() in variables and not signs[index + 1 : index + 2].isalnum():
        return _values(list(variables).index(symbol.upper()), len(variables)), index + 1
    raise ValueError("neither a variable nor a bracket")
