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


class Form(Enum):
    """Shape of a right answer, which decides what to look for in a completion."""

    NUMBER = "number"
    CHOICE = "choice"  # a weekday, or yes or no
    OPTION = "option"  # a letter, such as ``B`` of a multiple choice
    WORD = "word"
    FRACTION = "fraction"  # such as ``3/4``
    EXPRESSION = "expression"  # arithmetic, such as ``3 * (4 + 1)``
    LINE = "line"  # a list or a sentence
    GRID = "grid"  # several lines
    VERBATIM = "verbatim"  # every character counts, except white space around it


_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
CHOICES = {
    **{day: day for day in _WEEKDAYS},
    "yes": "yes",
    "true": "yes",
    "no": "no",
    "false": "no",
}

_DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,9}(?![\d,])|\d+)"
_UNSIGNED = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{{1,3}})?"
_BASE = r"_\{?\d{1,2}\}?(?!\w)"  # as in ``101_2``
NUMBER = re.compile(
    rf"(?<![\w.^])(?<![\^_]\{{)(?:(?<![)\]])[-+])?{_UNSIGNED}(?:(?={_BASE})|(?!\w|\.\d))", re.ASCII
)
# An exponent needs a point or a sign: ``1e1`` may also be a word or a number in base 16.
_WHOLE_NUMBER = re.compile(
    r"[-+]?(?:0|[1-9]\d*)(?:\.\d+(?:[eE][-+]?\d{1,3})?|[eE][-+]\d{1,3})?", re.ASCII
)
_VALUE = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
_TERM = r"[\s.()]*+\d[\d\s.()]*+"
_EXPRESSION = re.compile(rf"{_TERM}(?:[-+*/×÷]{_TERM})+", re.ASCII)
_SIGNS = str.maketrans({"×": "*", "÷": "/", "[": "(", "]": ")"})
_OPERATION = re.compile(rf"\s*+([-+*/×÷]?)\s*+([-+]?{_UNSIGNED})\s*+", re.ASCII)
_MOST_CHARACTERS = 400  # of a number or of a side of an equation whose value counts
TYPOGRAPHY = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "\u202f": " ", "’": "'"})

_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", re.IGNORECASE)
_LATEX = (
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|mathit)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}"), r" \1/\2 "),
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), "*"),
    (re.compile(r"\\div(?![a-z])"), "/"),
    (re.compile(r"\^\{?\\circ(?![a-z])\}?|\\\$"), ""),
    (re.compile(r"\\[()\[\] ;]|\$|\\q?quad(?![a-z])|\\\\"), " "),
)
_ARROW = re.compile(r"→|->|\\(?:rightarrow|to)(?![a-z])")
_HALF_OPEN = re.compile(r"\[[^\[\]()]*\)|\([^\[\]()]*\]")  # an interval whose brackets count
_AND = re.compile(r"(?<=\w),?\s+and\s+(?=\S+$)")  # before the last item of a list
_FENCE = "```"
_LANGUAGE = re.compile(r"[\w+-]*+[ \t]*+\n?")  # behind an opening fence
_BOLD = re.compile(r"(?<![\w)*])\*\*(?=[^\s*])([^*\n]{1,2000})(?<=\S)\*\*(?![\w(*])")
_CODE = re.compile(r"(?<!`)`([^`\n]{1,2000})`(?!`)")
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
    if _WHOLE_NUMBER.fullmatch(answer):
        return Form.NUMBER
    if answer.lower() in CHOICES:
        return Form.CHOICE
    if re.fullmatch("[A-Z]", answer):
        return Form.OPTION
    if re.fullmatch(r"[\w'-]+", answer):
        return Form.WORD
    if re.fullmatch(r"[-+]?\d+/\d+", answer, re.ASCII):
        return Form.FRACTION
    return Form.EXPRESSION if _EXPRESSION.fullmatch(answer) else Form.LINE


def equal(answer: str, right: str, form: Form) -> bool:
    """Return whether an answer equals the right one, whose form is ``form``."""
    if form is Form.VERBATIM:
        return answer.strip() == right.strip()
    if not answer.strip():
        return False
    normal = _normal(right, form)
    return _normal(answer, form) == normal and (normal != () or plain(answer) == plain(right))


def _normal(text: str, form: Form) -> object:
    text = plain(text)
    if form is Form.NUMBER:
        return text if (value := number_value(text)) is None else value
    if form is Form.CHOICE:
        return CHOICES.get(text.lower(), text)
    if form in (Form.WORD, Form.OPTION):
        return tuple(word.rstrip(".").casefold() for word in _words(text))
    if form is Form.EXPRESSION:
        return re.sub(r"\s", "", without_latex(text).translate(TYPOGRAPHY)).translate(_SIGNS)
    if form is Form.GRID:
        return _rows(text)
    ends = (text[0], text[-1]) if _HALF_OPEN.fullmatch(text) else ()
    return (*_items(text), *ends)


def number_value(text: str) -> Fraction | None:
    """Return the value of a number as a model may write it; None if ``text`` is not one."""
    text = text.translate(TYPOGRAPHY)
    if len(text) > _MOST_CHARACTERS or re.search(r"\d\s+\d", text):
        return None
    bare = re.sub(r"(?<=\d),(?=\d{3})|\s", "", text)
    return Fraction(bare) if _VALUE.fullmatch(bare) else None


def without_latex(text: str) -> str:
    """Replace the usual LaTeX of arithmetic and units: ``\\(6 \\times 7\\)`` is ``6 * 7``."""
    for pattern, instead in _LATEX if "\\" in text or "$" in text else ():
        text = pattern.sub(instead, text)
    return text


def chain_value(text: str) -> Fraction | None:
    """Return the value of numbers joined by ``+ - * /``; None if ``text`` is anything else."""
    if len(text) > _MOST_CHARACTERS:
        return None
    sums, at = [Fraction(0)], 0
    while at < len(text):
        found = _OPERATION.match(text, at)
        if not found:
            return None
        if found[1] in ("", "*", "×", "/", "÷") and (at > 0) != bool(found[1]):
            return None
        value = number_value(found[2])
        if value is None or (found[1] in ("/", "÷") and not value):
            return None
        match found[1]:
            case "*" | "×":
                sums[-1] *= value
            case "/" | "÷":
                sums[-1] /= value
            case sign:
                sums.append(-value if sign == "-" else value)
        at = found.end()
    return sum(sums, Fraction(0)) if at else None


def equation_sides(text: str) -> list[str]:
    """Return the sides of an equation, one for other text; none if their values differ."""
    sides = [side for side in re.split(r"=+>?|≈|→", text) if side.strip()]
    values = [value for value in map(chain_value, sides) if value is not None]
    return [] if any(value != values[0] for value in values) else sides


def _items(text: str) -> Iterator[str | Fraction]:
    """Yield the words and numbers of a line, without brackets, quotes and commas around them."""
    text = _FRACTION.sub(r"\1/\2", _ARROW.sub(" → ", _AND.sub(", ", text)))
    for item in _words(text):
        value = number_value(item)
        yield item.rstrip(".").casefold() if value is None else value


def _words(line: str) -> list[str]:
    words = (word.strip("[](){}\"'`“”‘$") for word in re.split(r"[\s,;|]+", line))
    return [word for word in words if word]


def _rows(text: str) -> tuple[object, ...]:
    """Return the rows of a grid; blanks between items of one character do not count."""
    rows = [tuple(_items(line)) for line in _lines(text)]
    if all(len(str(item)) == 1 for row in rows for item in row):
        return tuple("".join(map(str, row)) for row in rows)
    if all(len(row) == 1 for row in rows):
        return tuple(str(row[0]) for row in rows)
    return tuple(rows)


def _lines(grid: str) -> list[str]:
    lines = re.sub(r"\]\s*+,?\s*+\[", "\n", grid).split("\n")
    return [line for line in lines if _words(line)]


def laid_out(answer: str, right: str) -> str:
    """Return a list or grid as the right one is laid out, if that has blanks between items."""
    if "\n".join(" ".join(_words(line)) for line in _lines(right)) != right.strip():
        return answer
    return "\n".join(" ".join(_words(line)) for line in _lines(answer))


def plain(text: str) -> str:
    """Remove markup, quotes and the period around an answer."""
    text = _BOLD.sub(r"\1", text.strip())
    for _ in range(_MOST_WRAPPERS):
        text = _unwrapped(text)
    return _CODE.sub(r"\1", _BOLD.sub(r"\1", text))


def _unwrapped(text: str) -> str:
    if len(text) >= 2 * len(_FENCE) and text.startswith(_FENCE) and text.endswith(_FENCE):
        return _LANGUAGE.sub("", text[len(_FENCE) : -len(_FENCE)], count=1).strip()
    for begin, end in _PAIRS:
        if text.startswith(begin) and text.endswith(end) and len(text) > len(begin) + len(end):
            inside = text[len(begin) : -len(end)]
            if begin == "**" or (begin not in inside and end not in inside):
                return inside.strip()
    if text.startswith("**") != text.endswith("**"):
        return text.removeprefix("**").removesuffix("**").strip()
    if text.endswith((".", "!")) and not text.endswith(".."):
        return text[:-1].rstrip()
    return re.sub(r"^(?:=>?(?!=)|:)\s*", "", text)
