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

# Parts of lines and words, with examples; see :func:`canonical`.
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d)", re.ASCII)  # ``\sqrt2``
_BRACES = r"\{([^{}]*)\}"
_FRAC = "[dtc]?frac(?![a-z])"
_GROUP = re.compile(  # ``\frac{x+1}{2}``, ``^{n-1}``, ``\sqrt{x}``
    rf"(\d\s*|[\w)]|)(?:\\{_FRAC}\s*{_BRACES}\s*{_BRACES}"
    rf"|([\^_]|\\(?!begin|end|{_FRAC})[a-z]+)\s*{_BRACES})",
    re.IGNORECASE,
)
_ATOM = re.compile(r"[-+]?\d+(?:\.\d+)?|[^\W\d_]|\\[a-z]+", re.ASCII | re.IGNORECASE)  # ``-4``
_TOP = re.compile(r"[-+]?(?:[^-+±=<>,()]|\([^()]*\))++")  # of a fraction: a product
_BOTTOM = re.compile(rf"(?:{_ATOM.pattern}|\([^()]*\))(?:\^\w)?|[^\W\d_]+", re.IGNORECASE)
_OPERATED = re.compile(r"\)\s*[-+*/^]|[-+*/^]\s*\(")
_FACTOR = re.compile(r"[\w)]\(|\)\w")  # ``2(x + 1)``
_BEFORE_FACTOR = re.compile(  # in ``12\pi``
    r"(?<=[\w)])\s*(?=\\(?:sqrt|pi|theta|ln|log|sin|cos|tan)(?![a-z]))"
)
_RAISING = re.compile(r"(?<!\s)\s+(?=[_^])")
_QUOTED = re.compile(r"(?<![\w'])'(?=\S)")
_PRIME = re.compile(r"(?<=[\w)'])'(?!\w)")  # if nothing is quoted
_COLUMN = re.compile(r"(?<!\S)\|(?!\S)")  # between the columns of a table
_BASED = re.compile(  # ``1f_16``, unlike ``CO_2``
    r"((?=[a-f]*\d)[0-9a-f]++|[a-f]{2,}+(?=_16))_(\d{1,2})", re.ASCII | re.IGNORECASE
)


def form_of(answer: object) -> Form:
    """Return the form of a right answer; ``LINE`` if it is not known."""
    if not isinstance(answer, str):
        return Form.LINE
    answer = answer.strip()
    if "\n" in answer:
        return Form.GRID
    no_commas = answer.replace(",", "") if patterns.IN_THOUSANDS.fullmatch(answer) else answer
    if patterns.WHOLE_NUMBER.fullmatch(no_commas) or patterns.POWER_OF_TEN.fullmatch(answer):
        return Form.NUMBER
    if answer.lower() in patterns.DAYS:
        return Form.DAY
    if answer.lower() in patterns.TRUTH:
        return Form.TRUTH
    if re.fullmatch(r"[A-Z]|\([A-Z]\)", answer):
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
    formula = _FORMULA.search(answer + right)
    if form in (Form.LINE, Form.WORD):
        answer, right = canonical(answer), canonical(right)
    if form is Form.LINE:
        answer, right = _alike(answer, right), plain(right.replace("|", " ∣ "))
    elif form is Form.WORD:
        answer, right = _in_one_base(answer, right)
    expected = _normal(right, form)
    if _normal(answer, form) != expected or (expected == () and plain(answer) != plain(right)):
        return False
    if form is not Form.LINE:
        return True
    if patterns.INTERVAL.search(right) and _kinds(answer) != _kinds(right):
        return False
    formula = formula or _OPERATED.search(answer) or _OPERATED.search(right)
    if not (_brackets(right) or right.startswith(("[", "(")) or formula):
        return True
    return _brackets(right) == _brackets(answer)


def canonical(text: str) -> str:
    """Return a line without LaTeX of layout, with LaTeX's groups of several parts in brackets.

    ``\\frac{x+1}{2}`` becomes ``(x+1)/2``, ``2^{n-1}`` becomes ``2^(n-1)``.
    """
    text = patterns.SHORT_FRAC.sub(r"\\frac{\1}{\2}", text.translate(TYPOGRAPHY))
    text = patterns.LAYOUT.sub(" ", _SHORT_ROOT.sub(r"\\sqrt{\1}", text))
    for _ in range(_MOST_WRAPPERS if "{" in text else 0):
        text = _GROUP.sub(_bracketed, text)
    text = patterns.SPACE.sub(" ", patterns.ESCAPE.sub("", text))
    text = _RAISING.sub("", _BEFORE_FACTOR.sub(" · ", text))
    return text if _QUOTED.search(text) else _PRIME.sub("′", text)


def _bracketed(match: re.Match[str]) -> str:
    prefix, top, bottom, sign, content = match.groups()
    space = " " if match.string[match.end() : match.end() + 1].isalnum() else ""
    if top is not None:
        return f"{prefix}{prefix and ' · '}{_part(top, _TOP)}/{_part(bottom, _BOTTOM)}{space}"
    if patterns.TEXT.fullmatch(sign):
        return f"{prefix} {content} "
    if sign == "_" and content.strip().isalpha():
        return f"{prefix}_{content.strip()}{space}"
    return f"{prefix}{sign if sign in '^_' else f' {sign} '}{_part(content, _ATOM)}{space}"


def _part(text: str, simple: re.Pattern[str]) -> str:
    """Return a part of a formula, in brackets unless it is ``simple`` or has them."""
    text = text.strip()
    bracketed = text.startswith("(") and text.endswith(")") and _closes_last(text)
    return text if bracketed or simple.fullmatch(text) else f"({text})"


def _in_one_base(answer: str, right: str) -> tuple[str, str]:
    """Drop the base of a number if the other one has none: ``1f_16`` is ``1f``."""
    digits = [_digits(plain(text)) for text in (answer, right)]
    consistent = digits.count("") != 1
    return (answer, right) if consistent else (digits[0] or answer, digits[1] or right)


def _digits(text: str) -> str:
    """Return the digits of a number with its base; empty for other text, such as ``d4_1``."""
    match = _BASED.fullmatch(text)
    base = int(match[2]) if match else 0
    return match[1] if match and max(int(digit, 36) for digit in match[1]) < base else ""


def _alike(answer: str, right: str) -> str:
    """Return an answer without the words and names around items that the right one has not."""
    answer = plain(answer)
    if not patterns.JOINER.search(right):
        answer = plain(listed(answer))
    if not patterns.ARROW.search(right):
        answer = patterns.ARROW.sub(", ", answer)
    if "|" not in right:
        answer = _COLUMN.sub(", ", answer)
    answer = answer.replace("|", " ∣ ")
    return answer if "=" in right else unnamed(answer)


def unnamed(text: str) -> str:
    """Remove the names of values, except coordinates in another order: ``x = 3`` is ``3``."""
    names = [name[0] for name in patterns.NAMED.findall(text) if name[0] in "xyz"]
    return patterns.NAMED.sub("", text) if names == sorted(names) else text


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
    depths = accumulate({"(": 1, ")": -1}.get(char, 0) for char in text)
    return next((index for index, depth in enumerate(depths) if depth <= 0), 0) == len(text) - 1


def rivals(text: str, right: str, form: Form) -> bool:
    """Return whether a reading may be meant as the answer of the task whose right one is ``right``.

    Any formula may. A line of as many items may, if it has half of them, or if all have digits.
    """
    if form is Form.EXPRESSION:
        return bool(patterns.EXPRESSION.fullmatch(without_latex(plain(text)).translate(TYPOGRAPHY)))
    items, expected = [*_items(plain(text))], [*_items(plain(right))]
    common = set(items) & set(expected)
    have_digits = all(re.search(r"\d", str(item)) for item in (*items, *expected))
    return len(items) == len(expected) and (have_digits or 2 * len(common) >= len(set(expected)))


def _normal(text: str, form: Form) -> object:
    text = plain(text)
    if form is Form.NUMBER:
        return text if (value := number_value(text)) is None else value
    if form in (Form.DAY, Form.TRUTH):
        return patterns.TRUTH.get(text.lower(), text.lower())
    if form in (Form.WORD, Form.OPTION):
        return tuple(word.rstrip(".").casefold() for word in _words(text))
    if form is Form.EXPRESSION:
        # A blank between digits counts: 3 1/2 is not 31/2.
        text = re.sub(r"\s+", " ", without_latex(text).translate(TYPOGRAPHY))
        return re.sub(r"(?<!\d) | (?!\d)", "", text).translate(_SIGNS)
    if form is Form.GRID:
        return _rows(text)
    ends = (text[0], text[-1]) if patterns.HALF_OPEN.fullmatch(text) else ()
    return (*_items(text), *ends)


def scientific(text: str) -> str:
    """Write powers of ten as Python does: ``6.02 × 10^8`` is ``6.02e8``."""
    return patterns.POWER_OF_TEN.sub(_with_exponent, text)


def _with_exponent(power: re.Match[str]) -> str:
    exponent = (power[2] or power[3]).translate(patterns.RAISED)
    return f"{power[1] or 1}e{exponent}" if re.fullmatch("[-+]?[0-9]+", exponent) else power[0]


def number_value(text: str) -> Fraction | None:
    """Return the value of a number as a model may write it; None if ``text`` is not one."""
    if len(text) > MOST_CHARACTERS or re.search(r"\d\s+\d", text):
        return None
    text = scientific(text).translate(TYPOGRAPHY)
    literal = re.sub(r"(?<=\d),(?=\d{3})|\s", "", text)
    return Fraction(literal) if patterns.VALUE.fullmatch(literal) else None


def without_latex(text: str) -> str:
    """Replace the usual LaTeX of arithmetic and units: ``\\(6 \\times 7\\)`` is ``6 * 7``."""
    for pattern, replacement in patterns.LATEX if "\\" in text or "$" in text else ():
        text = pattern.sub(replacement, text)
    return text


def gives_several(text: str) -> bool:
    """Return whether a text comes to values of several names: ``x = 3 and y = 5``."""
    return bool(patterns.SOLUTIONS.search(without_latex(text))) and not patterns.SETTING.match(text)


def chain_value(text: str) -> Fraction | None:
    """Return the value of numbers joined by ``+ - * /``; None if ``text`` is anything else."""
    if len(text) > MOST_CHARACTERS:
        return None
    terms, position = [Fraction(0)], 0
    while position < len(text):
        link = patterns.LINK.match(text, position)
        if not link:
            return None
        operator, value = link[1].translate(_SIGNS), number_value(link[2])
        if operator not in (("+", "-", "*", "/") if position else ("", "+", "-")):
            return None
        if value is None or (operator == "/" and not value):
            return None
        match operator:
            case "*":
                terms[-1] *= value
            case "/":
                terms[-1] /= value
            case "-":
                terms.append(-value)
            case _:
                terms.append(value)
        position = link.end()
    return sum(terms, Fraction(0)) if position else None


def equation_sides(text: str) -> list[str]:
    """Return the sides of an equation, one for other text; none if their values differ."""
    sides = [side for side in patterns.EQUALS.split(text) if side.strip()]
    valued = [(value, side) for side in sides if (value := chain_value(side)) is not None]
    rounded = "≈" in text  # may be rounded to a whole number
    return sides if all(_agree(valued[0], other, whole=rounded) for other in valued[1:]) else []


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
    text = patterns.ARROW.sub(" → ", patterns.AND.sub(", ", text))
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
    for pattern, replacement in patterns.GRID_MARKUP:
        grid = pattern.sub(replacement, grid)
    return [line for line in grid.split("\n") if _words(line)]


def laid_out(answer: str, right: str) -> str:
    """Return a list or grid as the right one is laid out, if that has blanks between items."""
    has_marks = "\n" not in right and ("′" in canonical(answer) or "|" in _COLUMN.sub("", answer))
    if has_marks or _FORMULA.search(answer) or _FACTOR.search(answer):
        return answer  # whose brackets, primes or bars count
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
    content = text[len(_FENCE) : -len(_FENCE)]
    if text.startswith(_FENCE) and text.endswith(_FENCE) and content and _FENCE not in content:
        return patterns.LANGUAGE.sub("", content, count=1).strip()
    for begin, end in _PAIRS:
        if text.startswith(begin) and text.endswith(end) and len(text) > len(begin) + len(end):
            content = text[len(begin) : -len(end)]
            if begin == "**" or (begin not in content and end not in content):
                return content.strip()
    if text.startswith("**") != text.endswith("**"):
        return text.removeprefix("**").removesuffix("**").strip()
    if text.endswith((".", "!", "。")) and not text.endswith(".."):
        return text[:-1].rstrip()
    return re.sub(r"^(?:=>?(?!=)|:)\s*", "", text)
