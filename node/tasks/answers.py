"""Read the answer out of a completion, in whatever form a model wrote it.

Thinking is removed first. The answer is then, in this order: what the last ``<answer>`` tag holds,
closed or not; the last ``\\boxed{…}``; what follows the last "answer is"; or the last number, word,
line or block of lines, by the form of the right answer. Every rule takes linear time.

Every node of a swarm reads by the same rules, which are part of the protocol: once released, a
change to them is a new value of ``extract`` (docs/rewards.md, "Reading answers").
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

from node.tasks.answer_forms import (
    CHOICES,
    NUMBER,
    TYPOGRAPHY,
    Form,
    equal,
    equation_sides,
    form_of,
    laid_out,
    number_value,
    plain,
    without_latex,
)
from protocol.manifest import Extract

_THINK = r"(?:think|thinking|thought|thoughts|reasoning|seed:think)"
_THINKING = re.compile(rf"<\s*(/?){_THINK}\s*>|\[(/?)THINK\]", re.IGNORECASE)
_OPEN = re.compile(r"<\s*answer\s*>", re.IGNORECASE)
_CLOSE = re.compile(r"<\s*/\s*answer\s*>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{?)")
_SAID = re.compile(
    r"\banswer\b(?: to [^.:\n]{1,80}?)?(?:\*\*|__)? *(?:\bis\b|\bwould be\b|:|=|\n)"
    r" *(?:\*\*|__)? *:?",
    re.IGNORECASE,
)
_IS_IT = re.compile(r" (?:is|are) (?:the|my) (?:final |correct )?answer\b", re.IGNORECASE)
# "No" before a noun is none: "no bird", "no idea".
_BEHIND_NO = r"(?!\s+(?!(?:it|they|he|she|this|that|there|we|you|the|because|since|as|but)\b)\w)"
_CHOICE = re.compile(rf"\b(?:{'|'.join(CHOICES)})\b(?:(?<!\bno)|{_BEHIND_NO})", re.IGNORECASE)
_UNDECIDED = re.compile(r"\b(?:not|never|neither|cannot|isn't|no answer|or)\b", re.IGNORECASE)
_CLAUSE = re.compile(
    r";|,\s(?=[a-z])(?!or\b)|\.\s| \((?=[^()]*[a-z]{2})|\s(?:because|since|as)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"\n+|(?<=[.!?])\s+")
_LEAD = re.compile(r"^.*(?:\b(?:is|are|be|equals)\b|:)\s*", re.IGNORECASE)
_IS_LEAD = re.compile(r"^.*\b(?:is|are|be|equals)\s+", re.IGNORECASE)
_ARTICLE = re.compile(r"^(?:the|a|an)\s+", re.IGNORECASE)
_JOINT = re.compile(r"[\s,;/|+*×÷&^()-]*+(?:\b(?:or|and|to)\b)?[\s,;/|+*×÷&^()-]*", re.IGNORECASE)
_OPERATION = re.compile(r"\d\s*[-+*/×÷^]\s*\{?-?\d", re.ASCII)
_FRACTION = re.compile(r"[-+]?\s*\d+\s*/\s*\d+", re.ASCII)
_POWER = re.compile(r"[\d.]+\s*\^\s*\{?-?[\d.]+\}?", re.ASCII)
_RATIO = re.compile(
    r"(?:([-+])\s*)?(?:\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}"
    r"|(?<![\w.])(?<!\d )(\d++)\s*/\s*(\d++)(?![\w.]*\d))",
    re.ASCII,
)
_JOINED = re.compile(r"\d\s*(?:,|\bor\b|\band\b)\s*[-\\\d]", re.IGNORECASE)
# "9 + 4 is 13" is an equation.
_IS = re.compile(
    r"(?<=[\d)]),?\s+(?:which\s+)?(?:is(?: equal to)?|equals|gives|makes)\s+(?=(?:\*\*)?[-+$]?\d)",
    re.IGNORECASE,
)
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=[$€£]?[\d.])|-\s*(?=[$€£]\s*\d)", re.IGNORECASE)
_BULLET = re.compile(r"^\s*-\s+(?=.*=)")
# What makes another value, or none, of the number beside it.
_CHANGED = re.compile(
    r"(?:[±√≤≥≠]|(?<![\w\"'=|/-])[<>]|\bsqrt\b)\s*[({]?[$€£]?\d|\d\s*[²³½¼¾]"
    r"|\d\s+(?:hundred|thousand|million|billion|dozen)\b",
    re.IGNORECASE,
)
_CANDIDATE = re.compile(r"[\s;,(]*(?:or\b|[-+$]?\d)|.*\bor\s+[-+$]?\d", re.IGNORECASE)
_COMPARED = re.compile(
    r"\b(?:than|at least|at most|twice|half of|but|log)\s+[-+$]?\d|\d\s+and a half", re.IGNORECASE
)
# "720 minutes in 12 hours", "101 in base 2"
_WITHIN = re.compile(r"(?<=\w)\s+(?:in|\(?base)\s+(?:base[ -]?)?\d[\d.,]*(?:\s+[^\W\d_]+)?\)?\s*$")
_OPTION = re.compile(
    r"(?:\b(?:option|choice)\s+)\(?([A-Za-z])\b|\(([A-Za-z])\)|(?<![\w'(])(?:([A-Za-z])\)"
    r"|([A-Z])(?=[.:,]|\s+(?:is|because|since|as)\b|\W*$))"
)
_REMARK = re.compile(r"(?<=\S)\s+\((?=[^()]*[a-z]{2})[^()]*\)$")
_ITEM = re.compile(r"[ \t]*(?:[-*•]|\d{1,3}[.)])[ \t]+(?=\S)")
_BARE = re.compile(r"(?:(?:```[\w+-]*|\$\$|\\\[|---+)[ \t]*\n\s*)+")  # lines of markup
_PROSE = re.compile(r"(?:\b[^\W\d_]{2,}+[,.'’!?]*+\s+){2,}[^\W\d_]{2,}")
_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)


def read_answer(
    completion: str, right: object, extract: Extract = "answer_tag", *, verbatim: bool = False
) -> str:
    """Return the answer in a completion: ``right`` itself if equal, empty if there is none.

    Args:
        completion: what the model wrote.
        right: a right answer, whose form says what to look for; anything but text if unknown.
        extract: where to look first. ``text``: a line or a list may be all of the completion.
        verbatim: whether case, punctuation and markup have a meaning.
    """
    form = Form.VERBATIM if verbatim else form_of(right)
    text = without_thinking(completion)
    if isinstance(right, str) and equal(text, right, form):
        return right
    marks = (_boxed, _tagged, _said) if extract == "boxed" else (_tagged, _boxed, _said)
    found = (mark(text, form) for mark in marks)
    answer = next((each for each in found if each is not None), None)
    if answer is None and (form is Form.VERBATIM or (form is Form.LINE and extract == "text")):
        answer = text if form is Form.VERBATIM else plain(_behind_lead(text))
    elif answer is None:
        answer = _last(plain(text), form)
    if not isinstance(right, str):
        return answer
    # Readings much longer than the right answer differ from it.
    others = (each for each in _others(answer, text, form) if len(each) < 4 * len(right) + 80)
    if any(equal(each, right, form) for each in (answer, *others)):
        return right
    if _UNDECIDED.search(answer) and not _UNDECIDED.search(right) and form is not Form.VERBATIM:
        return ""
    return laid_out(answer, right) if form in (Form.GRID, Form.LINE) else answer


def _others(answer: str, text: str, form: Form) -> Iterator[str]:
    """Yield other readings of a line or a formula, of which one may equal the right answer."""
    if form not in (Form.LINE, Form.EXPRESSION):
        return
    listed = _last_items(answer if "\n" in answer else text)
    items = [plain(_ITEM.sub("", line)) for line in listed]
    yield ", ".join(items)
    if _UNDECIDED.search(answer):
        return
    yield _REMARK.sub("", answer)
    yield plain(_LEAD.sub("", answer))
    yield plain(_IS_LEAD.sub("", answer))
    lines = [line for line in text.split("\n") if line.strip() and not _PROSE.search(line)]
    for line in (answer, *lines[-1:]):
        yield from map(plain, equation_sides(line)[-1:])


def _last_items(text: str) -> list[str]:
    """Return the lines of the last list with marks or numbers; none if no two lines are items."""
    runs: list[list[str]] = [[]]
    for line in filter(str.strip, text.split("\n")):
        if _ITEM.match(line):
            runs[-1].append(line)
        elif runs[-1]:
            runs.append([])
    return next((run for run in reversed(runs) if len(run) > 1), [])


def marks_answer(completion: str) -> bool:
    """Return whether a completion marks something as its answer, by a tag, a box or in words."""
    text = without_thinking(completion)
    return any(mark(text, Form.LINE) for mark in (_tagged, _boxed, _said))


def without_thinking(text: str) -> str:
    """Remove blocks of thinking, one that the prompt began, and one that was cut off."""
    kept: list[str] = []
    start, thinking = 0, False
    for tag in _THINKING.finditer(text):
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
    return without_thinking(turn) if _THINKING.search(turn) else turn


def behind_answer(completion: str) -> str:
    """Return what stands behind the last closed tag or box; empty if nothing is marked."""
    if closed := list(_CLOSE.finditer(completion)):
        return completion[closed[-1].end() :].strip()
    boxes = list(_BOX.finditer(completion))
    if not boxes or not boxes[-1][1]:
        return ""
    rest = completion[boxes[-1].end() :]
    return rest[len(_to_brace(rest)) + 1 :].strip()


def _tagged(text: str, form: Form) -> str | None:
    """Read the last tag that holds anything. One left open holds the rest, or its first line."""
    closes = [tag.start() for tag in _CLOSE.finditer(text)]
    for tag in reversed(list(_OPEN.finditer(text))):
        place = bisect_left(closes, tag.end())
        is_closed = place < len(closes)
        inside = text[tag.end() : closes[place] if is_closed else len(text)].strip()
        if inside and not is_closed and form not in (Form.GRID, Form.VERBATIM):
            inside = inside.split("\n")[0]
        if inside:
            return _marked(inside, form)
    if closes and (before := text[: closes[0]].strip()):
        return _last(plain(before), form)
    return None


def _boxed(text: str, form: Form) -> str | None:
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    box, rest = boxes[-1], text[boxes[-1].end() :]
    inside = _to_brace(rest) if box[1] else rest.split(maxsplit=1)[0] if rest.strip() else ""
    return _marked(inside, form) if inside.strip() else None


def _to_brace(text: str) -> str:
    depth = 1
    for position, sign in enumerate(text):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return text[:position]
    return text.split("\n")[0]


def _said(text: str, form: Form) -> str | None:
    """Read what follows the last "answer is" or "answer:", or precedes "is the answer"."""
    if form is Form.VERBATIM:
        return None
    after = [found.end() for found in _SAID.finditer(text)]
    before = [found.start() for found in _IS_IT.finditer(text)]
    if before and (not after or before[-1] > after[-1]):
        return _last(plain(text[: before[-1]]), form)
    rest = text[after[-1] :].strip() if after else ""
    if not rest:
        return None
    if form is Form.GRID:
        return _last_block(rest)
    bare = _BARE.match(rest)
    return _marked(plain(rest[bare.end() if bare else 0 :].split("\n")[0]), form)


def _marked(content: str, form: Form) -> str:
    """Read what a completion marks as its answer: all of it counts."""
    if form is Form.VERBATIM:
        return content.strip()
    content = plain(content)
    for find in (_boxed, _said):
        if (found := find(content, form)) is not None:
            return found
    match form:
        case Form.NUMBER:
            return _number(_until_remark(content), marked=True)
        case Form.CHOICE:
            return _choice(content)
        case Form.WORD:
            return _word(_until_remark(content))
        case Form.OPTION:
            return _option(content) or content
        case Form.FRACTION:
            return _fraction(content)
        case Form.EXPRESSION:
            return content.split("=")[0].strip()
    return content


def _last(text: str, form: Form) -> str:
    """Read the last thing of a form in a completion that marks no answer."""
    sentences = [each for each in reversed(_SENTENCE.split(text)) if each.strip()]
    match form:
        case Form.NUMBER:
            with_number = (each for each in sentences if NUMBER.search(each))
            return _number(next(with_number, ""), marked=False)
        case Form.CHOICE:
            return _choice(next((each for each in sentences if _CHOICE.search(each)), ""))
        case Form.FRACTION:
            with_one = (each for each in sentences if _RATIO.search(each))
            return _fraction(next(with_one, sentences[0] if sentences else ""))
        case Form.OPTION:
            with_one = (each for each in sentences if _OPTION.search(each))
            return _option(next(with_one, ""))
        case Form.WORD:
            return _last_word(text, sentences)
        case Form.GRID:
            return _last_block(text)
    blocks = _FENCED.findall(text)
    lines = [line for line in (blocks[-1] if blocks else text).split("\n") if line.strip()]
    line = plain(lines[-1].rpartition(": ")[2]) if lines else ""
    return line.split("=")[0].strip() if form is Form.EXPRESSION else line


def _until_remark(content: str) -> str:
    """Drop a remark behind an answer: ``42, because …``, but not ``42 (or 43)``."""
    cut = _CLAUSE.search(content)
    if not cut or not content[: cut.start()].strip() or _CANDIDATE.match(content, cut.start()):
        return content
    return content[: cut.start()]


def _number(text: str, *, marked: bool) -> str:
    """Return the one number that a sentence comes to; empty if it contradicts itself."""
    text = text.translate(TYPOGRAPHY).replace("{,}", ",").replace("\\,", "").replace("\\%", "%")
    spoken = without_latex(_MINUS.sub("-", text))
    if number_value(spoken) is not None:
        return spoken.strip()
    formula = "\\" in text and "=" not in text and not re.search(r"[^\W\d_]{2}", spoken)
    if "\\" in spoken and "=" in spoken:
        spoken = spoken.rpartition("=")[2]  # a formula before it has no value here
    if formula or _FRACTION.fullmatch(spoken.strip()) or "\\" in spoken:
        return text.strip()
    text = _IS.sub(" = ", spoken)
    sides = equation_sides(text) or equation_sides(_BULLET.sub("", text))
    if _UNDECIDED.search(text) or not sides or _CHANGED.search(sides[-1]):
        return ""
    side = plain(sides[-1])
    if _WITHIN.search(side) and NUMBER.search(bare := _WITHIN.sub("", side)):
        side = bare
    if marked and _COMPARED.search(side):
        return ""
    if number_value(side) is not None:
        return side
    if _FRACTION.fullmatch(whole := _LEAD.sub("", side)) or _POWER.fullmatch(whole):
        return whole
    found = list(NUMBER.finditer(side))
    numbers = [str(each[0]) for each in found]
    if _OPERATION.search(side):
        return ""
    if not numbers or len(set(map(number_value, numbers))) == 1:
        return numbers[0] if numbers else ""
    if marked or _JOINT.fullmatch(side[found[-2].end() : found[-1].start()]):
        return ""
    return numbers[0] if len(sides) > 1 else numbers[-1]


def _fraction(text: str) -> str:
    """Return the one fraction of the last side of a text; the side itself if it has none."""
    sides = equation_sides(_RATIO.sub(_ratio, text.translate(TYPOGRAPHY)))
    if not sides or _UNDECIDED.search(text):
        return ""
    found = [_ratio(each) for each in _RATIO.finditer(sides[-1])]
    if not found:
        return plain(sides[-1])
    alone = len(set(found)) == 1 or (len(sides) == 1 and not _JOINED.search(text))
    return found[-1] if alone else ""


def _ratio(found: re.Match[str]) -> str:
    return f"{found[1] or ''}{found[2] or found[4]}/{found[3] or found[5]}"


def _option(text: str) -> str:
    """Return the only letter that a text chooses; empty if it names several or denies one."""
    found = {next(filter(None, each)).upper() for each in _OPTION.findall(text)}
    return found.pop() if len(found) == 1 and not _UNDECIDED.search(text) else ""


def _choice(text: str) -> str:
    """Return the only choice that a text names; empty if it names several or denies one."""
    found = {CHOICES[each.lower()]: each for each in _CHOICE.findall(text)}
    first = _CHOICE.match(text)
    stands_first = first is not None and not re.match(r"\s+\w", text[first.end() :])
    if len(found) != 1 or (_UNDECIDED.search(text) and not stands_first):
        return ""
    return str(next(iter(found.values())))


def _word(text: str) -> str:
    """Return the only word of a text, or the only word behind "is" or a colon; else nothing."""
    for each in (text, _LEAD.sub("", text)):
        words = plain(_ARTICLE.sub("", each.strip())).split()
        if len(words) == 1:
            return words[0]
        if _UNDECIDED.search(text):
            break
    return ""


def _last_word(text: str, sentences: list[str]) -> str:
    alone = (line for line in reversed(text.split("\n")) if len(line.split()) == 1)
    if word := next(alone, "") or (sentences and _word(plain(sentences[0]))):
        return plain(word)
    return (
        plain(sentences[0]).split()[-1] if sentences and not _UNDECIDED.search(sentences[0]) else ""
    )


def _last_block(text: str) -> str:
    """Return the lines of a grid, without sentences before and behind them."""
    if blocks := _FENCED.findall(text):
        return str(blocks[-1]).strip("\n")
    paragraphs = re.split(r"\n(?=[ \t]*\n)", _behind_lead(text))
    return plain("\n".join(each for each in paragraphs if not _PROSE.search(each)))


def _behind_lead(text: str) -> str:
    """Return what follows the last line that ends with a colon, or all if there is none."""
    lines = text.split("\n")
    colons = [number for number, line in enumerate(lines[:-1], 1) if line.rstrip().endswith(":")]
    return "\n".join(lines[colons[-1] if colons else 0 :])
