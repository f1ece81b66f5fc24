"""Read a number, a fraction or arithmetic out of a sentence or a text.

Every function takes linear time; :mod:`node.tasks.answers` says when each is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from node.tasks import answer_forms as forms
from node.tasks import answer_patterns as patterns

# A result and what it comes from: ``72 (i.e., 48 + 24)``; parts with names: ``2 red, 3 blue``.
_WITH_PARTS = re.compile(
    r"([^()!]*[^()!\s])\s+\((?:(?:i\.?e\.|because|since|as|from),?\s+)?([^()]+)\)[.\s]*"
)
_PART = r"\d[\d.,]*+(?:\s+[^\W\d]\w*+)++"
_LABELED = re.compile(rf"{_PART}(?:(?:,(?:\s+and)?|\s+and)\s+{_PART})+")
_HEDGE = re.compile(r"\b(?:maybe|perhaps|possibly|actually|could|might|if|either)\b", re.IGNORECASE)
_BESIDE = 24  # characters before a fraction that may change it


def number_in(sentence: str, *, marked: bool) -> str:
    """Return the one number that a sentence comes to; empty if it contradicts itself.

    Args:
        sentence: text without markup around it. A formula without a value is returned whole.
        marked: whether all of it is marked as the answer, so that no second number may stand in it.
    """
    text = _without_parts(_typed(sentence)) if marked else _typed(_without_aside(sentence))
    plain = forms.without_latex(patterns.MINUS.sub("-", text))
    if forms.number_value(plain) is not None:
        return plain.strip()
    if forms.gives_several(_concluded(plain)):
        return ""
    if "\\" in plain:
        plain = re.split("[=≈]", plain)[-1]  # a formula before it has no value here
    if _is_formula(text, plain):
        return text.strip()
    plain = asserted(patterns.IS.sub(" = ", _concluded(plain)))
    sides = forms.equation_sides(plain) or forms.equation_sides(patterns.BULLET.sub("", plain))
    if _leaves_a_choice(plain) or not sides or patterns.CHANGED.search(sides[-1]):
        return ""
    side = _last_side(sides)
    if patterns.COMPARED.search(side) and (marked or patterns.OPERATION.search(side)):
        return ""
    side = patterns.COMPARED.sub(" ", side)
    return _only_number(side, marked=marked, of_equation=len(sides) > 1)


def _without_aside(sentence: str) -> str:
    """Drop a remark in brackets and a reason, if a number is left."""
    stripped = without_reason(patterns.ASIDE.sub("", sentence))
    return stripped if patterns.NUMBER.search(stripped) else sentence


def _without_parts(text: str) -> str:
    """Drop the parts of a number in brackets behind it: ``72 (48 + 24)``, ``5 (2 red, 3 blue)``."""
    match = _WITH_PARTS.fullmatch(text)
    if not match or patterns.UNDECIDED.search(match[2]) or _HEDGE.search(text):
        return text
    total, parts = _values(match[1]), match[2]
    value = forms.chain_value(forms.without_latex(parts))
    if _LABELED.fullmatch(parts):
        value = sum(filter(None, _values(parts)), Fraction(0))
    return match[1] if len({*total}) == 1 and total[0] == value else text


def _typed(text: str) -> str:
    """Replace typographic signs, and LaTeX within numbers."""
    text = forms.scientific(patterns.THOUSANDS.sub(",", text))
    text = patterns.SCALED.sub(lambda scale: patterns.SCALES[scale[1].lower()], text)
    text = text.translate(forms.TYPOGRAPHY)
    text = patterns.SHORT_FRAC.sub(r"\\frac{\1}{\2}", patterns.UNEQUAL.sub("≠", text))
    for sign, new in (("\\!", ""), ("{,}", ","), ("\\,", ""), ("\\%", "%"), (" OR ", " | ")):
        text = text.replace(sign, new)
    return text


def in_digits(text: str) -> str:
    """Write numbers in words as digits, if the text has no others: ``forty-two`` is ``42``."""
    if patterns.OTHER_QUANTITY.search(text):
        return text
    return patterns.NUMBER_NAME.sub(
        lambda name: str(sum(patterns.NAMES[word.lower()] for word in name.groups() if word)), text
    )


def _is_formula(text: str, plain: str) -> bool:
    """Return whether a text is a fraction, or LaTeX without a known value."""
    if "\\" in plain or patterns.FRACTION.fullmatch(plain.strip()):
        return True
    return (
        "\\" in text
        and not re.search("[=≈]", forms.without_latex(text))
        and not re.search(r"[^\W\d_]{2}", plain)
        and not patterns.UNITS.search(text)
    )


def _last_side(sides: Sequence[str]) -> str:
    """Return the last side of an equation without a tail; the number of ``42 = 6 * 7``."""
    side, *earlier = map(forms.plain, reversed(sides))
    if forms.number_value(side) is None and forms.chain_value(side) is not None:
        side = next((text for text in earlier if forms.number_value(text) is not None), side)
    trimmed = patterns.WITHIN.sub("", side) if len(side) <= forms.MOST_CHARACTERS else side
    return trimmed if patterns.NUMBER.search(trimmed) else side


def _concluded(text: str) -> str:
    """Return what a sentence comes to: behind ``, so``, the last arrow, or "is" of an equation."""
    clause = patterns.SO.split(text)[-1]
    if patterns.NUMBER.search(clause) and not patterns.DENIAL.search(clause):
        text = clause
    verbs = list(patterns.IS.finditer(text))
    if verbs and "=" in text[: verbs[-1].start()]:
        text = text[verbs[-1].end() :]
    steps = patterns.ARROW.split(text)
    return steps[-1] if len(steps) > 1 and all("=" in step for step in steps) else text


def without_reason(text: str) -> str:
    """Drop a reason behind a conclusion, unless it has a conclusion or choice of its own."""
    reason = patterns.REASON.search(text)
    if not reason or patterns.CONCLUDES.search(text, reason.end()):
        return text
    return text[: reason.start()]


def _leaves_a_choice(text: str) -> bool:
    """Return whether a text denies its number, or offers another one."""
    if patterns.DENIAL.search(text) or patterns.OFFERED.search(text):
        return True
    return len({*_values(text)}) > 1 and bool(patterns.UNDECIDED.search(text))


def _only_number(side: str, *, marked: bool, of_equation: bool) -> str:
    """Return the only number of the last side; without a mark, the first or last of several."""
    if forms.number_value(side) is not None:
        return side
    remainder = patterns.LEAD.sub("", side)
    if patterns.FRACTION.fullmatch(remainder) or patterns.POWER.fullmatch(remainder):
        return remainder
    if patterns.OPERATION.search(side):
        return ""
    matches = list(patterns.NUMBER.finditer(side))
    numbers = [item[0] for item in matches]
    if not marked and (subject := patterns.SUBJECT.match(side)):
        return subject[1]
    if len({forms.number_value(item) for item in numbers}) <= 1:
        return numbers[0] if numbers else ""
    if marked or patterns.JOINT.fullmatch(side[matches[-2].end() : matches[-1].start()]):
        return ""
    return numbers[0] if of_equation else numbers[-1]


def fraction_in(text: str) -> str:
    """Return the one fraction of the last side of a text; the side itself if it has none."""
    text = patterns.SIZES.sub("", _typed(asserted(text)))
    text = forms.without_latex(patterns.RATIO.sub(lambda ratio: f" {_ratio(ratio)}", text))
    text = patterns.MINUS.sub("-", re.sub(r"\s+", " ", text))
    sides = forms.equation_sides(text)
    if not sides or patterns.UNDECIDED.search(text) or forms.gives_several(text):
        return ""
    if subject := patterns.SUBJECT.match(sides[0]):
        return subject[1]
    side = sides[-1]
    if patterns.CHANGED.search(side) or patterns.COMPARED.search(side):
        return ""
    ratios = list(patterns.RATIO.finditer(side))
    if not ratios or any(_is_part(ratio) for ratio in ratios):
        return forms.plain(side)
    fractions = [_ratio(ratio) for ratio in ratios]
    unique = len(set(fractions)) == 1 or (len(sides) == 1 and not patterns.JOINED.search(text))
    return fractions[-1] if unique else ""


def _is_part(ratio: re.Match[str]) -> bool:
    """Return whether a fraction is a part of a formula, such as a root or a sum."""
    prefix = ratio.string[max(0, ratio.start() - _BESIDE) : ratio.start()]
    return bool(
        patterns.PART_BEFORE.search(prefix) or patterns.PART_BEHIND.match(ratio.string, ratio.end())
    )


def _ratio(match: re.Match[str]) -> str:
    return f"{match[1] or ''}{match[2] or match[4]}/{match[3] or match[5]}"


def arithmetic_in(text: str) -> str:
    """Return the last arithmetic with the most numbers; empty if there is none.

    So intermediate results do not count, nor lines that deny or leave a choice.
    """
    best, max_count = "", 0
    for sentence in patterns.SENTENCE.split(forms.without_latex(text).translate(forms.TYPOGRAPHY)):
        if len(sentence) > forms.MOST_CHARACTERS or patterns.UNDECIDED.search(sentence):
            continue
        body = patterns.ITEM.sub("", sentence)
        formulas = [_balanced(match[0]) for match in patterns.EXPRESSION.finditer(body)]
        longest = max(formulas, key=_numbers, default="")  # the first of equals
        if _numbers(longest) >= max_count:
            best, max_count = longest, _numbers(longest)
    return best


def _values(text: str) -> list[Fraction | None]:
    return [forms.number_value(match[0]) for match in patterns.NUMBER.finditer(text)]


def _numbers(text: str) -> int:
    return len(re.findall(r"\d+", text))


def _balanced(text: str) -> str:
    """Drop a bracket at either end that belongs to the sentence around a formula."""
    text = text.strip(" .\t")
    missing = text.count("(") - text.count(")")
    for _ in range(abs(missing)):
        text = text.removeprefix("(") if missing > 0 else text.removesuffix(")")
    return text.strip()


def asserted(text: str) -> str:
    """Remove denials; return the text unchanged if it states nothing else."""
    text = patterns.DENIED.sub("", text)
    last = patterns.CLAUSES.split(text)[-1]
    has_claim = patterns.DENIAL.search(text) and not patterns.DENIAL.search(last)
    return last if has_claim else text
