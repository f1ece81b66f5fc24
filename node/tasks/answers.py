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

from node.tasks import answer_patterns as patterns
from node.tasks.answer_forms import (
    MOST_CHARACTERS,
    Form,
    equal,
    equation_sides,
    form_of,
    gives_several,
    grid_lines,
    laid_out,
    plain,
    rivals,
)
from node.tasks.answer_numbers import (
    arithmetic_in,
    asserted,
    fraction_in,
    number_in,
    without_reason,
)
from protocol.manifest import Extract

_MOST_MARKS = 4  # of "answer is" that are tried, the last first
_MOST_JSON, _MOST_BRACKETS = 16_384, 64  # characters and opening brackets of JSON that is read
_CANDIDATES = {
    Form.NUMBER: patterns.QUANTITY,
    Form.FRACTION: patterns.QUANTITY,
    Form.EXPRESSION: patterns.QUANTITY,
    Form.DAY: patterns.DAY_NAME,
    Form.TRUTH: patterns.TRUTH_NAME,
    Form.OPTION: patterns.OPTION,
}


def read_answer(
    completion: str, right: object, extract: Extract = "answer_tag", *, verbatim: bool = False
) -> str:
    """Return the answer in a completion: ``right`` itself if equal, empty if there is none.

    Letters and digits that Unicode 14 lacks are unknown characters: U+FFFD, except if verbatim.

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
    text, key = _known(text), _known(right) if isinstance(right, str) else None
    answer = _read(text, key, form_of(key), extract)
    return right if isinstance(right, str) and answer == key else answer


def _known(text: str) -> str:
    return patterns.NEWER.sub("\ufffd", text)


def _read(text: str, right: object, form: Form, extract: Extract) -> str:
    if not isinstance(right, str):
        return _found(text, form, extract)[0]
    if equal(text, right, form):
        return right
    answer, around = _found(text, form, extract)
    if equal(answer, right, form) or _reads_as(answer, around, right, form):
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
    for mark in (*first, _keyed, _said):
        answer = mark(text, form)
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
        return plain(_behind_lead(text))
    return _last(plain(text), form)


def _reads_as(answer: str, text: str, right: str, form: Form) -> bool:
    """Return whether the first reading of a line or formula that may be meant as answer is right.

    So one candidate counts of a completion with several, and the right answer does not decide
    which. The last list counts if no line is such a reading; lines of the list are not readings.
    ``text`` is what may be read beside the answer: nothing if a mark says what the answer is.
    """
    if form not in (Form.LINE, Form.EXPRESSION):
        return False
    lines = _last_items(answer if "\n" in answer else text)
    items = [plain(patterns.REMARK.sub("", patterns.ITEM.sub("", line))) for line in lines]
    longest = 4 * len(right) + 80  # what is much longer than the right answer differs from it
    for reading in (answer, *_other_readings(answer, text)):
        in_list = form is Form.LINE and reading in (*items, *map(plain, lines))
        if len(reading) >= longest or in_list:
            continue
        if equal(reading, right, form):
            return not patterns.UNDECIDED.search(
                patterns.REMARK.sub("", answer).replace(reading, "")
            )
        if rivals(reading, right, form):
            return False
    listed = ", ".join(items)
    return len(listed) < longest and equal(listed, right, form)


def _other_readings(answer: str, text: str) -> Iterator[str]:
    """Yield readings of a line or formula without what stands around it, the likeliest first."""
    bare = patterns.REMARK.sub("", answer)
    yield bare
    if (listed := patterns.BRACKETED.fullmatch(bare)) and bare != listed[1]:
        yield listed[1]
        return
    yield plain(patterns.LEAD.sub("", bare))
    yield plain(patterns.VERB_LEAD.sub("", bare))
    lines = [line for line in text.split("\n") if line.strip() and not patterns.PROSE.search(line)]
    for line in (bare, *lines[-1:]):
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
    return any(mark(text, Form.LINE) for mark in (_tagged, _boxed, _keyed, _said))


def without_thinking(text: str) -> str:
    """Remove blocks of thinking, one that the prompt began, and one that was cut off."""
    kept: list[str] = []
    start, thinking = 0, False
    for tag in patterns.THINKING.finditer(text):
        if tag[1] or tag[2]:
            if not thinking:
                kept.clear()
            thinking, start = False, tag.end()
        elif not thinking:
            kept.append(text[start : tag.start()])
            thinking = True
    return "".join([*kept, "" if thinking else text[start:]]).strip()


def read_turn(turn: str, extract: Extract) -> str:
    """Return what an environment is handed of a turn of the policy.

    With ``text`` all but its thinking, and white space too if it has none; else its answer.
    """
    if extract != "text":
        return read_answer(turn, None, extract)
    return without_thinking(turn) if patterns.THINKING.search(turn) else turn


def behind_answer(completion: str) -> str:
    """Return what stands behind the last closed tag or box; empty if nothing is marked."""
    if closed := list(patterns.CLOSE.finditer(completion)):
        return completion[closed[-1].end() :].strip()
    boxes = list(patterns.BOX.finditer(completion))
    if not boxes or not boxes[-1][1]:
        return ""
    _, end = next(_boxes(completion))
    return completion[end + 1 :].strip()


def _tagged(text: str, form: Form) -> str | None:
    """Read the last tag that holds anything. One left open holds the rest, or its first line."""
    closes = [tag.start() for tag in patterns.CLOSE.finditer(text)]
    for tag in reversed(list(patterns.OPEN.finditer(text))):
        place = bisect_left(closes, tag.end())
        is_closed = place < len(closes)
        if closes and not is_closed and _known(text[: tag.start()].rstrip(" ")[-1:]).isalnum():
            continue  # a sentence about the tag
        inside = text[tag.end() : closes[place] if is_closed else len(text)].strip()
        if inside and not is_closed and form not in (Form.GRID, Form.VERBATIM):
            inside = inside.split("\n")[0]
        if inside:
            return _marked(inside, form)
    if closes and (before := text[: closes[0]].strip()):
        return _last(plain(before), form)
    return None


def _boxed(text: str, form: Form) -> str | None:
    for inside, _ in _boxes(text):
        if inside.strip():
            if form is Form.NUMBER:
                inside = re.sub(r"(?<=\d)!", " factorial ", inside)
            return _marked(inside, form)
    return None


def _boxes(text: str) -> Iterator[tuple[str, int]]:
    """Yield what each box holds, and where that ends, the last box first."""
    closes = _closing_braces(text)
    for box in reversed(list(patterns.BOX.finditer(text))):
        begin = box.end()
        end = closes.get(begin - 1, text.find("\n", begin))
        if not box[1]:
            yield next(iter(text[begin:].split(maxsplit=1)), ""), begin
        elif end < 0:
            yield text[begin:], len(text)
        else:
            yield text[begin:end], end


def _closing_braces(text: str) -> dict[int, int]:
    """Return the place of each closing brace by that of its opening one."""
    opened: list[int] = []
    closes: dict[int, int] = {}
    for brace in re.finditer("[{}]", text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            closes[opened.pop()] = brace.start()
    return closes


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
        keys = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except ValueError:
        return None
    found = keys.get("answer", keys.get("final_answer"))
    if isinstance(found, bool):
        found = str(found)
    if isinstance(found, list):
        found = json.dumps(found, ensure_ascii=False)
    if not isinstance(found, str) or not found.strip():
        return None
    return _last(plain(found), form) if patterns.PROSE.search(found) else _marked(found, form)


def _said(text: str, form: Form) -> str | None:
    """Read what follows the last "answer is" or "answer:", or precedes "is the answer"."""
    if form is Form.VERBATIM:
        return None
    after = [found.end() for found in patterns.SAID.finditer(text)]
    before = [found.start() for found in patterns.IS_IT.finditer(text)]
    if before and (not after or before[-1] > after[-1]):
        return _last(plain(text[: before[-1]]), form)
    rests = (text[end:].strip() for end in reversed(after[-_MOST_MARKS:]))
    return next((found for rest in rests if (found := _after(rest, form)) is not None), None)


def _after(rest: str, form: Form) -> str | None:
    """Read what follows "answer is"; None if that is only a remark about the answer."""
    if rest and form is Form.GRID:
        return _last_block(rest)
    bare = patterns.BARE.match(rest)
    rest = patterns.NEXT_SIDE.sub(" ", rest[bare.end() if bare else 0 :])
    line, _, behind = rest.partition("\n")
    is_lead = line.rstrip(" *").endswith((":", "=")) or patterns.STEP.match(plain(line))
    if behind.strip() and is_lead:
        return _last(plain(behind), form)
    if _may_hold(line, form):
        return _marked(plain(line), form)
    if patterns.PROSE.search(line) and _may_hold(behind, form):
        return _last(plain(behind), form)
    return None if not line or patterns.TALK.match(line) else _marked(plain(line), form)


def _may_hold(text: str, form: Form) -> bool:
    """Return whether a text has anything of a form; a denial counts."""
    if form not in _CANDIDATES:
        return bool(text.strip())
    return bool(_CANDIDATES[form].search(text) or patterns.UNDECIDED.search(text))


def _marked(content: str, form: Form) -> str:
    """Read what a completion marks as its answer: all of it counts."""
    if form is Form.VERBATIM:
        return content.strip()
    content = plain(content)
    for find in (_keyed, _boxed, _said):
        if (found := find(content, form)) is not None:
            return found
    match form:
        case Form.NUMBER:
            return number_in(_until_remark(content), marked=True)
        case Form.DAY | Form.TRUTH:
            return _name(content, form)
        case Form.WORD:
            return _word(_until_remark(content))
        case Form.OPTION:
            return _option(content) or content
        case Form.FRACTION:
            return fraction_in(content)
        case Form.EXPRESSION:
            return arithmetic_in(content) or content
    return content


def _until_remark(content: str) -> str:
    """Drop a remark behind an answer: ``42, because …``, but not ``42 (or 43)``."""
    cut = patterns.CLAUSE.search(content)
    if not cut or patterns.CANDIDATE.match(content, cut.start()):
        return content
    if patterns.SETTING.match(content) or gives_several(content):
        return content
    return content[: cut.start()] if content[: cut.start()].strip() else content


def _last(text: str, form: Form) -> str:
    """Read the last thing of a form in a text without marks."""
    text = _without_ending(text, form)
    sentences = [each for each in reversed(patterns.SENTENCE.split(text)) if each.strip()]
    match form:
        case Form.NUMBER:
            return number_in(_first(sentences, patterns.NUMBER), marked=False)
        case Form.DAY | Form.TRUTH:
            return _name(_first(sentences, _CANDIDATES[form]), form)
        case Form.OPTION:
            return _option(_first(sentences, patterns.OPTION))
        case Form.FRACTION:
            return fraction_in(_first(sentences, patterns.RATIO) or next(iter(sentences), ""))
        case Form.WORD:
            return _last_word(text, sentences)
        case Form.EXPRESSION if found := arithmetic_in(text):
            return found
        case Form.GRID:
            return _last_block(text)
    return _last_line(text)


def _without_ending(text: str, form: Form) -> str:
    """Drop an offer, a check or a note at the end, if an answer may be left."""
    offer = patterns.OFFER.search(text)
    if offer and not patterns.CONCLUDES.search(text, offer.end()):
        before = text[: offer.start()]
        text = before if _may_hold(before, form) else text
    note = patterns.NOTE.search(text)
    before = text[: note.start()] if note else text
    return before if _may_hold(before, form) and not _is_prose(before) else text


def _last_line(text: str) -> str:
    """Return the last line, or the last of the last block of code, behind its last colon."""
    text = (patterns.FENCED.findall(text) or [text])[-1]
    lines = [line for line in text.split("\n") if line.strip()]
    return plain(lines[-1].rpartition(": ")[2]) if lines else ""


def _is_prose(text: str) -> bool:
    """Return whether the last paragraph of a text has a sentence."""
    return bool(patterns.PROSE.search(text.rstrip().rpartition("\n\n")[2]))


def _first(sentences: list[str], pattern: re.Pattern[str]) -> str:
    return next((each for each in sentences if pattern.search(each)), "")


def _last_word(text: str, sentences: list[str]) -> str:
    """Return the last word alone in its line, or the word that the last sentence comes to."""
    alone = [line for line in text.split("\n") if len(line.split()) == 1]
    if alone := [line for line in alone if re.search(r"\w", line) and line[-1] != ":"]:
        return plain(alone[-1])
    if not sentences:
        return ""
    sentence = without_reason(patterns.REMARK.sub("", sentences[0]))
    sentence = plain(patterns.WITHIN.sub("", sentence[-MOST_CHARACTERS:]))
    if word := _word(sentence):
        return plain(word)
    return "" if patterns.UNDECIDED.search(sentence) else next(reversed(sentence.split()), "")


def _last_block(text: str) -> str:
    """Return the lines of a grid, without sentences before and behind them."""
    if blocks := patterns.FENCED.findall(text):
        whole = (each for each in reversed(blocks) if len(grid_lines(each)) > 1)
        return str(next(whole, blocks[-1])).strip("\n")
    paragraphs = re.split(r"\n(?=[ \t]*\n)", _behind_lead(text))
    rows = plain("\n".join(each for each in paragraphs if not patterns.PROSE.search(each)))
    return rows or next(iter(patterns.NESTED.findall(text)[-1:]), "")


def _behind_lead(text: str) -> str:
    """Return what follows the last line that ends with a colon, or all if there is none."""
    lines = text.split("\n")
    colons = [number for number, line in enumerate(lines[:-1], 1) if line.rstrip().endswith(":")]
    return "\n".join(lines[colons[-1] if colons else 0 :])


def _option(text: str) -> str:
    """Return the only letter that a text chooses; empty if it names several or denies one."""
    text = asserted(without_reason(patterns.REMARK.sub("", text)))
    found = {next(filter(None, each)).upper() for each in patterns.OPTION.findall(text)}
    return found.pop() if len(found) == 1 and not patterns.UNDECIDED.search(text) else ""


def _name(text: str, form: Form) -> str:
    """Return the only day, or yes or no, of a text; empty if it names several or denies one.

    Yes or no at the beginning counts, if no word follows: "Yes, because the second is false".
    """
    pattern = _CANDIDATES[form]
    if patterns.LISTED.search(text):
        return ""  # an answer of another form
    text = patterns.THEREFORE.sub("", text)
    first = pattern.match(text)
    if first and form is Form.TRUTH and not re.match(r"\s+\w", text[first.end() :]):
        rest = text[first.end() :].lstrip(" ,;/|")
        if not pattern.match(rest) and not re.search(r"\bor\b", rest, re.IGNORECASE):
            return first[0]
    text = asserted(patterns.PREMISE.sub("", text))
    if form is Form.DAY:
        text = patterns.COMES_TO.split(text)[-1]
    found = {patterns.TRUTH.get(each.lower(), each.lower()): each for each in pattern.findall(text)}
    return str(*found.values()) if len(found) == 1 and not patterns.UNDECIDED.search(text) else ""


def _word(text: str) -> str:
    """Return the only word of a text, or the only word behind "is" or a colon; else nothing."""
    behind = patterns.OF_WHOM.sub(r"\1", patterns.LEAD.sub("", text).strip())
    for each in (text, behind):
        words = plain(patterns.ARTICLE.sub("", each.strip())).split()
        if len(words) == 1:
            return words[0]
        if patterns.UNDECIDED.search(text):
            break
    return ""
