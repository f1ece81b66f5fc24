"""Read the answer out of a completion, in whatever form a model wrote it.

Thinking is removed first. The answer is then, in this order: what the last ``<answer>`` tag holds,
closed or not; the last ``\\boxed{…}``; the ``"answer"`` of a completion that is JSON; what follows
the last "answer is"; or the last number, word, line or block of lines, by the form of the right
answer. Every rule takes linear time.

Every node of a swarm reads by the same rules, which are part of the protocol: once released, a
change to them is a new value of ``extract`` (docs/rewards.md, "Reading answers").
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby
from unicodedata import combining, normalize

from node.tasks import answer_patterns as patterns
from node.tasks import answer_unmarked as unmarked
from node.tasks.answer_forms import (
    Form,
    equal,
    equation_sides,
    form_of,
    gives_several,
    laid_out,
    plain,
    rivals,
)
from node.tasks.answer_numbers import arithmetic_in, fraction_in, in_digits, number_in
from protocol.manifest import Extract

_MOST_MARKS = 4  # of "answer is" that are tried, the last first
# A bold value whose beginning the mark has, ``42**: it is``, and words of a correction.
_BOLD = re.compile(r"([^*\n]*[^*\s])\*\*(?=\s*[:.](?:\s|$)|\s+\()([^\n]*)")
_TAKES_BACK = re.compile(
    r"\*\*|\b(?:or|no|not|wait|actually|correction|sorry|meant|thought|instead|rather|wrong|answer)\b",
    re.IGNORECASE,
)
_MOST_COMBINING = 30  # in a row: NFC takes quadratic time
_CLOSED = (Form.NUMBER, Form.FRACTION, Form.DAY, Form.TRUTH, Form.OPTION)
_MOST_JSON, _MOST_BRACKETS = 16_384, 64  # characters and opening brackets of JSON that is read


def read_answer(
    completion: str, right: object, extract: Extract = "answer_tag", *, verbatim: bool = False
) -> str:
    """Return the answer in a completion: ``right`` itself if equal, empty if there is none.

    Except if verbatim, what Unicode 14 lacks is U+FFFD, and both are compared in NFC.

    Args:
        completion: what the model wrote.
        right: a right answer, whose form says what to look for; anything but text if unknown.
        extract: where to look first. ``text``: a line or a list may be all of the completion.
        verbatim: whether case, punctuation and markup have a meaning.
    """
    text = without_thinking(completion)
    if verbatim:
        return _read(text, right, Form.VERBATIM, extract)
    text = patterns.BLANK_LINES.sub("\n\n", patterns.BLANKS.sub(" ", text))
    if not isinstance(right, str):
        return _read(_known(text), None, Form.LINE, extract)
    text, key = _composed(_known(text)), _composed(_known(right))
    answer = _read(text, key, form_of(key), extract)
    return right if answer == key else answer


def _known(text: str) -> str:
    return patterns.NEWER.sub("\ufffd", text.translate(patterns.FULL_WIDTH))


def _composed(text: str) -> str:
    """Return a text in NFC, unless very many combining characters follow each other."""
    runs = groupby(text, lambda char: combining(char) > 0)
    longest = max((len([*run]) for combines, run in runs if combines), default=0)
    return text if longest > _MOST_COMBINING else normalize("NFC", text)


def _read(text: str, right: object, form: Form, extract: Extract) -> str:
    if not isinstance(right, str):
        return _found(text, form, extract)[0]
    if equal(text, right, form):
        return right
    answer, context = _found(text, form, extract)
    if equal(answer, right, form) or _reads_as(answer, context, right, form):
        return right
    if form is Form.VERBATIM:
        return answer
    if patterns.UNDECIDED.search(answer) and not patterns.UNDECIDED.search(right):
        return ""
    return laid_out(answer, right) if form in (Form.GRID, Form.LINE) else answer


def _found(text: str, form: Form, extract: Extract) -> tuple[str, str]:
    """Return the answer of a text, and the text that may be read beside it.

    The latter is empty if a mark or a block of code says what the answer is.
    """
    first = (_boxed, _tagged) if extract == "boxed" else (_tagged, _boxed)
    for reader in (*first, _keyed, _said):
        answer = reader(text, form)
        if answer is not None:
            in_list = answer in map(str.strip, _last_items(text))
            return answer, text if in_list else ""
    in_block = form is Form.LINE and patterns.FENCED.search(text)
    return _unmarked(text, form, extract), "" if in_block else text


def _unmarked(text: str, form: Form, extract: Extract) -> str:
    """Read a completion that marks no answer."""
    if form is Form.VERBATIM:
        return text
    if form is Form.LINE and extract == "text":
        return plain(unmarked.behind_lead(text))
    text = plain(text)
    if form is Form.NUMBER and patterns.NUMBER_NAME.fullmatch(text):
        return in_digits(text)
    return unmarked.last_in(text, form)


def _reads_as(answer: str, text: str, right: str, form: Form) -> bool:
    """Return whether the first reading of a line or formula that may be meant as answer is right.

    So one candidate counts of a completion with several, and the right answer does not decide
    which. The last list counts if no line is such a reading; lines of the list are not readings.
    ``text`` is what may be read beside the answer: nothing if a mark says what the answer is.
    """
    if form not in (Form.LINE, Form.EXPRESSION):
        return False
    limit = 4 * len(right) + 80  # what is much longer than the right answer differs from it
    lines = _last_items(answer if "\n" in answer else text)[-limit:]
    items = [plain(patterns.REMARK.sub("", patterns.ITEM.sub("", line))) for line in lines]
    for reading in (answer, *_other_readings(answer, text)):
        in_list = form is Form.LINE and reading in (*items, *map(plain, lines))
        if len(reading) >= limit or in_list:
            continue
        if equal(reading, right, form):
            return not patterns.UNDECIDED.search(
                patterns.REMARK.sub("", answer).replace(reading, "")
            )
        if rivals(reading, right, form):
            return False
    joined = ", ".join(items)
    return len(joined) < limit and equal(joined, right, form)


def _other_readings(answer: str, text: str) -> Iterator[str]:
    """Yield readings of a line or formula without what stands around it, the likeliest first."""
    stripped = patterns.REMARK.sub("", answer)
    yield stripped
    if (bracketed := patterns.BRACKETED.fullmatch(stripped)) and stripped != bracketed[1]:
        yield bracketed[1]
        return
    yield plain(patterns.LEAD.sub("", stripped))
    yield plain(patterns.VERB_LEAD.sub("", stripped))
    yield plain(patterns.CONCLUSION.sub("", stripped))
    if formula := patterns.ONE_FORMULA.fullmatch(stripped):
        yield plain(formula[1])
    lines = [line for line in text.split("\n") if line.strip() and not patterns.PROSE.search(line)]
    for line in (stripped, *lines[-1:]):
        if not gives_several(line):
            yield from map(plain, equation_sides(line)[-1:])


def _last_items(text: str) -> list[str]:
    """Return the lines of the last list with marks or numbers; none if no two lines are items."""
    runs: list[list[str]] = [[]]
    for line in filter(str.strip, text.split("\n")):
        if patterns.ITEM.match(line):
            runs[-1].append(line)
        elif runs[-1]:
            runs.append([])
    return next((run for run in reversed(runs) if len(run) > 1), [])


def marks_answer(completion: str) -> bool:
    """Return whether a completion marks something as its answer, by a tag, a box or in words."""
    text = without_thinking(completion)
    return any(reader(text, Form.LINE) for reader in (_tagged, _boxed, _keyed, _said))


def without_thinking(text: str) -> str:
    """Remove blocks of thinking, one that the prompt began, and one that was cut off."""
    segments: list[str] = []
    start, thinking = 0, False
    for tag in patterns.THINKING.finditer(text):
        if tag[1] or tag[2]:
            if not thinking:
                segments.clear()
            thinking, start = False, tag.end()
        elif not thinking:
            segments.append(text[start : tag.start()])
            thinking = True
    return "".join([*segments, "" if thinking else text[start:]]).strip()


def read_turn(turn: str, extract: Extract) -> str:
    """Return what an environment is handed of a turn of the policy.

    With ``text`` all but its thinking, and white space too if it has none; else its answer.
    """
    if extract != "text":
        return read_answer(turn, None, extract)
    return without_thinking(turn) if patterns.THINKING.search(turn) else turn


def behind_answer(completion: str) -> str:
    """Return what stands behind the last closed tag or box; empty if nothing is marked."""
    if tags := list(patterns.CLOSE.finditer(completion)):
        return completion[tags[-1].end() :].strip()
    boxes = list(patterns.BOX.finditer(completion))
    if not boxes or not boxes[-1][1]:
        return ""
    _, end = next(_boxes(completion))
    return completion[end + 1 :].strip()


def _tagged(text: str, form: Form) -> str | None:
    """Read the last tag that holds anything. One left open holds the rest, or its first line."""
    ends = [tag.start() for tag in patterns.CLOSE.finditer(text)]
    for tag in reversed(list(patterns.OPEN.finditer(text))):
        index = bisect_left(ends, tag.end())
        is_closed = index < len(ends)
        if ends and not is_closed and _known(text[: tag.start()].rstrip(" ")[-1:]).isalnum():
            continue  # a sentence about the tag
        content = text[tag.end() : ends[index] if is_closed else len(text)].strip()
        if content and not is_closed and form not in (Form.GRID, Form.VERBATIM):
            content = content.split("\n")[0]
        if content:
            return _marked(content, form)
    if ends and (prefix := text[: ends[0]].strip()):
        return unmarked.last_in(plain(prefix), form)
    return None


def _boxed(text: str, form: Form) -> str | None:
    for content, _ in _boxes(text):
        if content.strip():
            if form is Form.NUMBER:
                content = re.sub(r"(?<=\d)!", " factorial ", content)
            return _marked(content, form)
    return None


def _boxes(text: str) -> Iterator[tuple[str, int]]:
    """Yield what each box holds, and where that ends, the last box first."""
    ends = _closing_braces(text)
    for box in reversed(list(patterns.BOX.finditer(text))):
        begin = box.end()
        end = ends.get(begin - 1, text.find("\n", begin))
        if not box[1]:
            yield next(iter(text[begin:].split(maxsplit=1)), ""), begin
        elif end < 0:
            yield text[begin:], len(text)
        else:
            yield text[begin:end], end


def _closing_braces(text: str) -> dict[int, int]:
    """Return the place of each closing brace by that of its opening one."""
    open_braces: list[int] = []
    pairs: dict[int, int] = {}
    for brace in re.finditer("[{}]", text):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif open_braces:
            pairs[open_braces.pop()] = brace.start()
    return pairs


def _keyed(text: str, form: Form) -> str | None:
    """Read the ``"answer"`` of a text that is one JSON object."""
    if form is Form.VERBATIM or len(text) > _MOST_JSON:
        return None
    text = plain(text)
    if not (text.startswith("{") and text.endswith("}")):
        return None
    if len(re.findall(r"[{\[]", text)) > _MOST_BRACKETS:
        return None
    try:
        fields = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except ValueError:
        return None
    answer = fields.get("answer", fields.get("final_answer"))
    if isinstance(answer, bool):
        answer = str(answer)
    if isinstance(answer, list):
        answer = json.dumps(answer, ensure_ascii=False)
    if not isinstance(answer, str) or not answer.strip():
        return None
    if patterns.PROSE.search(answer):
        return unmarked.last_in(plain(answer), form)
    return _marked(answer, form)


def _said(text: str, form: Form) -> str | None:
    """Read what follows the last "answer is" or "answer:", or precedes "is the answer"."""
    if form is Form.VERBATIM:
        return None
    ends = [found.end() for found in patterns.SAID.finditer(text)]
    starts = [found.start() for found in patterns.IS_IT.finditer(text)]
    if starts and (not ends or starts[-1] > ends[-1]):
        return unmarked.last_in(plain(text[: starts[-1]]), form)
    tails = (text[end:].strip() for end in reversed(ends[-_MOST_MARKS:]))
    return next((found for tail in tails if (found := _after(tail, form)) is not None), None)


def _after(text: str, form: Form) -> str | None:
    """Read what follows "answer is"; None if that is only a remark about the answer."""
    if text and form is Form.GRID:
        return unmarked.last_block(text)
    if form is Form.LINE and unmarked.in_brackets(text.lstrip("*\n ")):
        return text.lstrip("*\n ")
    bold = _BOLD.match(text) if form in _CLOSED else None
    if bold and form_of(bold[1]) is form and not _TAKES_BACK.search(bold[2]):
        return _marked(bold[1], form)
    markup = patterns.BARE.match(text)
    text = patterns.NEXT_SIDE.sub(" ", text[markup.end() if markup else 0 :])
    line, _, tail = text.partition("\n")
    is_lead = line.rstrip(" *").endswith((":", "=")) or patterns.STEP.match(plain(line))
    if tail.strip() and is_lead:
        return unmarked.last_in(plain(tail), form)
    if unmarked.may_hold(line, form):
        return _marked(plain(line), form)
    if patterns.PROSE.search(line) and unmarked.may_hold(tail, form):
        return unmarked.last_in(plain(tail), form)
    return None if not line or patterns.TALK.match(line) else _marked(plain(line), form)


def _marked(content: str, form: Form) -> str:
    """Read what a completion marks as its answer: all of it counts."""
    if form is Form.VERBATIM:
        return content.strip()
    content = plain(content)
    for reader in (_keyed, _boxed, _said):
        if (answer := reader(content, form)) is not None:
            return answer
    match form:
        case Form.NUMBER:
            return number_in(_until_remark(in_digits(content)), marked=True)
        case Form.DAY | Form.TRUTH:
            return unmarked.name_in(content, form)
        case Form.WORD:
            return unmarked.word_in(_until_remark(content))
        case Form.OPTION:
            return unmarked.option_in(content) or content
        case Form.FRACTION:
            return fraction_in(content)
        case Form.EXPRESSION:
            return arithmetic_in(content) or content
    return content


def _until_remark(content: str) -> str:
    """Drop a remark behind an answer: ``42, because …``, but not ``42 (or 43)``."""
    remark = patterns.CLAUSE.search(content)
    if not remark or patterns.CANDIDATE.match(content, remark.start()):
        return content
    if patterns.SETTING.match(content) or gives_several(content):
        return content
    return content[: remark.start()] if content[: remark.start()].strip() else content
