"""The answer of a text that marks none: its last number, word, line or block of lines."""

from __future__ import annotations

import re

from node.tasks import answer_patterns as patterns
from node.tasks.answer_forms import MOST_CHARACTERS, Form, grid_lines, plain
from node.tasks.answer_numbers import (
    arithmetic_in,
    asserted,
    fraction_in,
    number_in,
    without_reason,
)

_CANDIDATES = {
    Form.NUMBER: patterns.QUANTITY,
    Form.FRACTION: patterns.QUANTITY,
    Form.EXPRESSION: patterns.QUANTITY,
    Form.DAY: patterns.DAY_NAME,
    Form.TRUTH: patterns.TRUTH_NAME,
    Form.OPTION: patterns.OPTION,
}


def may_hold(text: str, form: Form) -> bool:
    """Return whether a text has anything of a form; a denial counts."""
    if form not in _CANDIDATES:
        return bool(text.strip())
    return bool(_CANDIDATES[form].search(text) or patterns.UNDECIDED.search(text))


def last_in(text: str, form: Form) -> str:
    """Read the last thing of a form in a text without marks."""
    text = _without_ending(text, form)
    sentences = [s for s in reversed(patterns.SENTENCE.split(text)) if s.strip()]
    match form:
        case Form.NUMBER:
            return number_in(_first(sentences, patterns.NUMBER), marked=False)
        case Form.DAY | Form.TRUTH:
            return name_in(_first(sentences, _CANDIDATES[form]), form)
        case Form.OPTION:
            return option_in(_first(sentences, patterns.OPTION))
        case Form.FRACTION:
            return fraction_in(_first(sentences, patterns.RATIO) or next(iter(sentences), ""))
        case Form.WORD:
            return _last_word(text, sentences)
        case Form.EXPRESSION if formula := arithmetic_in(text):
            return formula
        case Form.GRID:
            return last_block(text)
    return _last_line(text)


def _without_ending(text: str, form: Form) -> str:
    """Drop an offer, a check or a note at the end, if an answer may be left."""
    offer = patterns.OFFER.search(text)
    if offer and not patterns.CONCLUDES.search(text, offer.end()):
        body = text[: offer.start()]
        text = body if may_hold(body, form) else text
    note = patterns.NOTE.search(text)
    body = text[: note.start()] if note else text
    in_prose = patterns.PROSE.search(body.rstrip().rpartition("\n\n")[2])
    return body if may_hold(body, form) and not in_prose else text


def _last_line(text: str) -> str:
    """Return the last line, or the last of the last block of code, behind its last colon.

    A text or block that is JSON is returned whole.
    """
    text = (patterns.FENCED.findall(text) or [text])[-1].strip()
    if in_brackets(text):
        return text
    line = next((candidate for candidate in reversed(text.split("\n")) if candidate.strip()), "")
    bracketed = line.rstrip(" .*`")[-1:] in ("}", "]")
    lead = re.split(r"[{\[]", line, maxsplit=1)[0] if bracketed else line
    return plain(line[lead.rfind(": ") + 2 :] if ": " in lead else line)


def in_brackets(text: str) -> bool:
    """Return whether a text begins and ends like an object or list in JSON."""
    return (text[:1], text[-1:]) in (("{", "}"), ("[", "]"))


def _first(sentences: list[str], pattern: re.Pattern[str]) -> str:
    return next((sentence for sentence in sentences if pattern.search(sentence)), "")


def _last_word(text: str, sentences: list[str]) -> str:
    """Return the last word alone in its line, or the word that the last sentence comes to."""
    lone_words = [line for line in text.split("\n") if len(line.split()) == 1]
    if lone_words := [line for line in lone_words if re.search(r"\w", line) and line[-1] != ":"]:
        return plain(lone_words[-1])
    if not sentences:
        return ""
    sentence = without_reason(patterns.REMARK.sub("", sentences[0]))
    sentence = plain(patterns.WITHIN.sub("", sentence[-MOST_CHARACTERS:]))
    if word := word_in(sentence):
        return plain(word)
    return "" if patterns.UNDECIDED.search(sentence) else next(reversed(sentence.split()), "")


def last_block(text: str) -> str:
    """Return the lines of a grid, without sentences before and behind them."""
    if blocks := patterns.FENCED.findall(text):
        grids = (chunk for chunk in reversed(blocks) if len(grid_lines(chunk)) > 1)
        return str(next(grids, blocks[-1])).strip("\n")
    paragraphs = re.split(r"\n(?=[ \t]*\n)", behind_lead(text))
    rows = plain("\n".join(chunk for chunk in paragraphs if not patterns.PROSE.search(chunk)))
    return rows or next(iter(patterns.NESTED.findall(text)[-1:]), "")


def behind_lead(text: str) -> str:
    """Return what follows the last line that ends with a colon, or all if there is none."""
    lines = text.split("\n")
    colons = [number for number, line in enumerate(lines[:-1], 1) if line.rstrip().endswith(":")]
    return "\n".join(lines[colons[-1] if colons else 0 :])


def option_in(text: str) -> str:
    """Return the only letter that a text chooses; empty if it names several or denies one.

    A letter before its option's text is chosen, whatever that says: ``(D) none of these``.
    """
    first = patterns.OPTION_WITH_TEXT.match(text)
    if first and not patterns.OTHER_OPTION.search(text, first.end()):
        return str(first[1] or first[2]).upper()
    text = asserted(without_reason(patterns.REMARK.sub("", text)))
    letters = {next(filter(None, groups)).upper() for groups in patterns.OPTION.findall(text)}
    return letters.pop() if len(letters) == 1 and not patterns.UNDECIDED.search(text) else ""


def name_in(text: str, form: Form) -> str:
    """Return the only day, or yes or no, of a text; empty if it names several or denies one.

    Yes or no at the beginning counts, if no word follows: "Yes, because the second is false".
    """
    pattern = _CANDIDATES[form]
    if patterns.LISTED.search(text):
        return ""  # an answer of another form
    text = patterns.THEREFORE.sub("", text)
    first = pattern.match(text)
    if first and form is Form.TRUTH and not re.match(r"\s+\w", text[first.end() :]):
        tail = text[first.end() :].lstrip(" ,;/|")
        if not pattern.match(tail) and not re.search(r"\bor\b", tail, re.IGNORECASE):
            return first[0]
    text = asserted(patterns.PREMISE.sub("", text))
    if form is Form.DAY:
        text = patterns.COMES_TO.split(text)[-1]
    names = {patterns.TRUTH.get(name.lower(), name.lower()): name for name in pattern.findall(text)}
    return str(*names.values()) if len(names) == 1 and not patterns.UNDECIDED.search(text) else ""


def word_in(text: str) -> str:
    """Return the only word of a text, or the only word behind "is" or a colon; else nothing."""
    remainder = patterns.OF_WHOM.sub(r"\1", patterns.LEAD.sub("", text).strip())
    for phrase in (text, remainder):
        words = plain(patterns.ARTICLE.sub("", phrase.strip())).split()
        if len(words) == 1:
            return words[0]
        if patterns.UNDECIDED.search(text):
            break
    return ""
