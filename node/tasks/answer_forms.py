"""Forms of answers: what a right answer looks like, and when another answer equals it.

Two answers are equal if a person would call them the same: ``**1,234**`` and ``1234.0``,
``monday.`` and ``Monday``, ``[[1, 2], [3, 4]]`` and two lines of two numbers. White space, case,
markup, quotes, and brackets and commas around items do not count; the order of items does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from fractions import Fraction
from itertools import accumulate

from node.tasks import answer_patterns as patterns


class Form(Enum):
    """Shape of a right answer, which decides what to look for in a completion."""

    NUMBER = "number"
    DAY = "day"  # a weekday
    TRUTH = "truth"  # yes or no, true or false
    OPTION = "option"  # a letter, such as ``B`` of a multiple choice
    WORD = "word"
    FRACTION = "fraction"  # such as ``3/4``
    EXPRESSION = "expression"  # arithmetic, such as ``3 * (4 + 1)``
    LINE = "line"  # a list or a sentence
    GRID = "grid"  # several lines
    VERBATIM = "verbatim"  # every character counts, except white space around it


_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "[": "(", "]": ")"})
MOST_CHARACTERS = 400  # of a number or of a side of an equation whose value counts
TYPOGRAPHY = str.maketrans(
    {**dict.fromkeys("−–‐‑‒⁻﹣－", "-"), "\u00a0": " ", "\u202f": " ", "’": "'"}
)

_FORMULA = re.compile(r"[\\{^]")
_FENCE = "```"
_PAIRS = (
    *(("`", "`"), ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**")),
    *(("__", "__"), ("*", "*"), ('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("«", "»")),
    *(("\\text{", "}"), ("\\mathrm{", "}"), ("\\mathbf{", "}"), ("\\textbf{", "}")),
    *(("<b>", "</b>"), ("<strong>", "</strong>"), ("<code>", "</code>")),
)
_MOST_WRAPPERS = 8


def form_of(answer: object) -> Form:
    """Return the form of a right answer; ``LINE`` if it is not known."""
    if not isinstance(answer, str):
        return Form.LINE
    answer = answer.strip()
    if "\n" in answer:
        return Form.GRID
    if patterns.WHOLE_NUMBER.fullmatch(answer):
        return Form.NUMBER
    if answer.lower() in patterns.DAYS:
        return Form.DAY
    if answer.lower() in patterns.TRUTH:
        return Form.TRUTH
    if re.fullmatch("[A-Z]", answer):
        return Form.OPTION
    if re.fullmatch(r"[\w'-]+", answer):
        return Form.WORD
    if re.fullmatch(r"[-+]?\d+/\d+", answer, re.ASCII):
        return Form.FRACTION
    return Form.EXPRESSION if patterns.EXPRESSION.fullmatch(answer) else Form.LINE


def equal(answer: str, right: str, form: Form) -> bool:
    """Return whether an answer equals the right one, whose form is ``form``."""
    if form is Form.VERBATIM:
        return answer.strip() == right.strip()
    if not answer.strip():
        return False
    if form is Form.LINE:
        answer, right = _unescaped(answer), _unescaped(right)
        answer, right = _alike(answer, right), plain(right)
    normal = _normal(right, form)
    if _normal(answer, form) != normal or (normal == () and plain(answer) != plain(right)):
        return False
    if form is not Form.LINE:
        return True
    if patterns.INTERVAL.search(right) and _kinds(answer) != _kinds(right):
        return False
    if not _brackets(right) and not right.startswith(("[", "(")):
        return True
    return _brackets(right) == _brackets(answer)


def _unescaped(text: str) -> str:
    """Return a text without the LaTeX around its brackets and items."""
    return patterns.SPACE.sub(" ", patterns.ESCAPE.sub("", text))


def _alike(answer: str, right: str) -> str:
    """Return an answer without the words and names around items that the right one has not."""
    answer = plain(answer)
    if not patterns.JOINER.search(right):
        answer = plain(listed(answer))
    if not patterns.ARROW.search(right):
        answer = patterns.ARROW.sub(", ", answer)
    return answer if "=" in right else patterns.NAMED.sub("", answer)


def listed(text: str) -> str:
    """Replace the words between items by commas: ``x = 1 or x = 2`` is ``x = 1, x = 2``."""
    return patterns.JOINER.sub(", ", patterns.MARKED_JOINER.sub(r" \1\2 ", text))


def _kinds(text: str) -> str:
    """Return the round and square brackets of a line."""
    return re.sub(r"[^()\[\]]+", "", text)


def _brackets(text: str) -> str:
    """Return a line's items and brackets within it, all of one kind; empty if there are none.

    Brackets around all of it do not count.
    """
    text = text.strip().translate(_SIGNS)
    while text.startswith("(") and text.endswith(")") and _closes_last(text):
        text = text[1:-1].strip()
    if "(" not in text:
        return ""
    return " ".join(map(str, _items(text.replace("(", " ⟨ ").replace(")", " ⟩ "))))


def _closes_last(text: str) -> bool:
    depths = accumulate({"(": 1, ")": -1}.get(sign, 0) for sign in text)
    return next((place for place, depth in enumerate(depths) if depth <= 0), 0) == len(text) - 1


def rivals(text: str, right: str, form: Form) -> bool:
    """Return whether a reading may be meant as the answer of the task whose right one is ``right``.

    Any formula may. A line of as many items may, if it has half of them, or if all have digits.
    """
    if form is Form.EXPRESSION:
        return bool(patterns.EXPRESSION.fullmatch(without_latex(plain(text)).translate(TYPOGRAPHY)))
    found, due = [*_items(plain(text))], [*_items(plain(right))]
    common = set(found) & set(due)
    in_digits = all(re.search(r"\d", str(item)) for item in (*found, *due))
    return len(found) == len(due) and (in_digits or 2 * len(common) >= len(set(due)))


def _normal(text: str, form: Form) -> object:
    text = plain(text)
    if form is Form.NUMBER:
        return text if (value := number_value(text)) is None else value
    if form in (Form.DAY, Form.TRUTH):
        return patterns.TRUTH.get(text.lower(), text.lower())
    if form in (Form.WORD, Form.OPTION):
        words = (patterns.BASE.sub("", word.rstrip(".")) for word in _words(text))
        return tuple(word.casefold() for word in words)
    if form is Form.EXPRESSION:
        # A blank between digits counts: 3 1/2 is not 31/2.
        text = re.sub(r"\s+", " ", without_latex(text).translate(TYPOGRAPHY))
        return re.sub(r"(?<!\d) | (?!\d)", "", text).translate(_SIGNS)
    if form is Form.GRID:
        return _rows(text)
    ends = (text[0], text[-1]) if patterns.HALF_OPEN.fullmatch(text) else ()
    return (*_items(text), *ends)


def number_value(text: str) -> Fraction | None:
    """Return the value of a number as a model may write it; None if ``text`` is not one."""
    text = text.translate(TYPOGRAPHY)
    if len(text) > MOST_CHARACTERS or re.search(r"\d\s+\d", text):
        return None
    bare = re.sub(r"(?<=\d),(?=\d{3})|\s", "", text)
    return Fraction(bare) if patterns.VALUE.fullmatch(bare) else None


def without_latex(text: str) -> str:
    """Replace the usual LaTeX of arithmetic and units: ``\\(6 \\times 7\\)`` is ``6 * 7``."""
    for pattern, instead in patterns.LATEX if "\\" in text or "$" in text else ():
        text = pattern.sub(instead, text)
    return text


def gives_several(text: str) -> bool:
    """Return whether a text comes to values of several names: ``x = 3 and y = 5``."""
    return bool(patterns.SOLUTIONS.search(without_latex(text))) and not patterns.SETTING.match(text)


def chain_value(text: str) -> Fraction | None:
    """Return the value of numbers joined by ``+ - * /``; None if ``text`` is anything else."""
    if len(text) > MOST_CHARACTERS:
        return None
    sums, at = [Fraction(0)], 0
    while at < len(text):
        found = patterns.LINK.match(text, at)
        if not found:
            return None
        operator, value = found[1].translate(_SIGNS), number_value(found[2])
        if operator not in (("+", "-", "*", "/") if at else ("", "+", "-")):
            return None
        if value is None or (operator == "/" and not value):
            return None
        match operator:
            case "*":
                sums[-1] *= value
            case "/":
                sums[-1] /= value
            case "-":
                sums.append(-value)
            case _:
                sums.append(value)
        at = found.end()
    return sum(sums, Fraction(0)) if at else None


def equation_sides(text: str) -> list[str]:
    """Return the sides of an equation, one for other text; none if their values differ."""
    sides = [side for side in patterns.EQUALS.split(text) if side.strip()]
    known = [(value, side) for side in sides if (value := chain_value(side)) is not None]
    whole = "≈" in text  # may be rounded to a whole number
    return sides if all(_agree(known[0], other, whole=whole) for other in known[1:]) else []


def _agree(one: tuple[Fraction, str], other: tuple[Fraction, str], *, whole: bool) -> bool:
    """Return whether two sides are equal, or one is the other's value rounded."""
    places = [
        len(decimals) for _, side in (one, other) if (decimals := side.strip().partition(".")[2])
    ]
    if not places and not whole:
        return one[0] == other[0]
    return abs(one[0] - other[0]) <= Fraction(1, 2 * 10 ** min(places, default=0))


def _items(text: str) -> Iterator[str | Fraction]:
    """Yield the words and numbers of a line, without brackets, quotes and commas around them."""
    text = patterns.FRAC.sub(r"\1/\2", patterns.ARROW.sub(" → ", patterns.AND.sub(", ", text)))
    text = patterns.SIGN.sub(r" \1\2 ", text)
    for item in _words(text):
        value = number_value(item)
        yield item.rstrip(".").casefold() if value is None else value


def _words(line: str) -> list[str]:
    words = (word.strip("[](){}\"'`“”‘$") for word in re.split(r"[\s,;|]+", line))
    return [word for word in words if word]


def _rows(text: str) -> tuple[object, ...]:
    """Return the rows of a grid; blanks between items of one character do not count."""
    rows = [tuple(_items(line)) for line in grid_lines(text)]
    if all(len(str(item)) == 1 for row in rows for item in row):
        return tuple("".join(map(str, row)) for row in rows)
    if all(len(row) == 1 for row in rows):
        return tuple(str(row[0]) for row in rows)
    return tuple(rows)


def grid_lines(grid: str) -> list[str]:
    for pattern, instead in patterns.GRID_MARKUP:
        grid = pattern.sub(instead, grid)
    return [line for line in grid.split("\n") if _words(line)]


def laid_out(answer: str, right: str) -> str:
    """Return a list or grid as the right one is laid out, if that has blanks between items."""
    if _FORMULA.search(answer):
        return answer  # whose brackets count
    if "\n".join(" ".join(_words(line)) for line in grid_lines(right)) != right.strip():
        return answer
    return "\n".join(" ".join(_words(line)) for line in grid_lines(answer))


def plain(text: str) -> str:
    """Remove markup, quotes and the period around an answer."""
    text = patterns.BOLD.sub(r"\1", text.strip())
    for _ in range(_MOST_WRAPPERS):
        text = _unwrapped(text)
    return patterns.CODE.sub(r"\1", patterns.BOLD.sub(r"\1", text))


def _unwrapped(text: str) -> str:
    inside = text[len(_FENCE) : -len(_FENCE)]
    if text.startswith(_FENCE) and text.endswith(_FENCE) and inside and _FENCE not in inside:
        return patterns.LANGUAGE.sub("", inside, count=1).strip()
    for begin, end in _PAIRS:
        if text.startswith(begin) and text.endswith(end) and len(text) > len(begin) + len(end):
            inside = text[len(begin) : -len(end)]
            if begin == "**" or (begin not in inside and end not in inside):
                return inside.strip()
    if text.startswith("**") != text.endswith("**"):
        return text.removeprefix("**").removesuffix("**").strip()
    if text.endswith((".", "!", "。")) and not text.endswith(".."):
        return text[:-1].rstrip()
    return re.sub(r"^(?:=>?(?!=)|:)\s*", "", text)
