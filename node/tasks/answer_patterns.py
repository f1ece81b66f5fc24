r"""Patterns of answers and of the texts around them, each with an example of what it finds.

The first literal of a pattern's docstring is the example; ``\n`` in it is a line break. Patterns
are put together from the named parts above them. Each takes time linear in the text.
"""

from __future__ import annotations

import re


def _any(*alternatives: str) -> str:
    return f"(?:{'|'.join(alternatives)})"


# Parts of many patterns
_LETTER = r"[^\W\d_]"
_BOLD_MARK = r"(?:\*\*|__)"
_CURRENCY = r"[$€£]"
_VERB = r"\b(?:is|are|be|equals)"
_REASONS = "because|since|as"
_THEREFORE = r"(?:so|therefore|thus|hence),?\s+"
_UNSURE = r"(?:or|maybe|perhaps|possibly)\b"
_WORDS_IN_BRACKETS = rf"\((?!\s*{_UNSURE})(?=[^()]*[a-z]{{2}})"  # not ``(or 43)``, ``(x, y)``
_DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,9}(?![\d,])|\d+)"  # ``1,234`` or ``1234``
_EXPONENT = r"[eE][-+]?\d{1,3}"
_UNSIGNED = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:{_EXPONENT})?"

# Thinking, and the marks of an answer
_THOUGHT = r"(?:think|thinking|thought|thoughts|reasoning|seed:think)"
THINKING = re.compile(rf"<\s*(/?){_THOUGHT}\s*>|\[(/?)THINK\]", re.IGNORECASE)
"""A tag of thinking: ``</think>``. One of the groups holds the slash of an end."""
OPEN = re.compile(r"<\s*answer\s*>", re.IGNORECASE)
"""The tag before an answer: ``<answer>``."""
CLOSE = re.compile(r"<\s*[/\\]\s*answer\s*>", re.IGNORECASE)
"""The tag behind an answer: ``</answer>``."""
BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{?)")
r"""The beginning of a box: ``\boxed{``. The group holds the brace, if there is one."""
_QUESTION = r"(?: to [^.:\n]{1,80}?)"  # ``(the answer) to the question``
_SAYS = _any(r"\bis\b", r"\bwould be\b", ":", "：", "=", r"\n")
_IS_IT = r" (?:is|are) (?:the|my) (?:final |correct )?answer\b"
_CHECKED = "".join(rf"(?<!\b{verb} the )" for verb in ("check", "checking", "verify", "verifying"))
SAID = re.compile(
    rf"\b(?:here|below|following){_IS_IT}[^:\n]*[:\n]"
    rf"|{_CHECKED}\banswer\b{_QUESTION}?{_BOLD_MARK}? *{_SAYS} *{_BOLD_MARK}? *:?"
    r"|答案\s*[是为]?\s*[:：]?",
    re.IGNORECASE,
)
"""Words before an answer: ``**Answer:**``, ``answer to this is``, ``Here is my answer:``."""
IS_IT = re.compile(rf"(?<!\bhere)(?<!\bbelow)(?<!\bfollowing){_IS_IT}", re.IGNORECASE)
"""Words behind an answer: ``42 is the answer``."""
TALK = re.compile(
    r"(?:helpful|useful|correct|right|wrong|incorrect|clear|unclear|easy|simple|below|above)\b",
    re.IGNORECASE,
)
"""A word about an answer: ``helpful``."""
STEP = re.compile(r"step\s*\d", re.IGNORECASE)
"""The beginning of a step: ``Step 1``."""

# Characters
_NEWER = """
88F 897 C5C CDC CF3 ECE 1ACF-1AEB 1B4E-1B4F 1B7F 1C89-1C8A 20C1 2427-2429 2B96 2FFC-2FFF 31E4-31EF
A7CB-A7CF A7D2 A7D4 A7DA-A7F1 FBC3-FBD2 FD90-FD91 FDC8-FDCE 105C0-105F3 10940-10959 10D40-10D8F
10EC2-10EFF 1123F-11241 11380-113E2 116D0-116E3 11B00-11BF9 11DB0-11DE9 11F00-11F5A 1342F
13439-143FA 16100-16139 16D40-16D79 16EA0-16ED3 16FF2-16FF6 187F8-187FF 18CFF 18D09-18DF2 1B132
1B155 1CC00-1CEF0 1D2C0-1D2D3 1DF25-1DF2A 1E030-1E08F 1E4D0-1E6FF 1F6D8-1F6DC 1F774-1F77F 1F7D9
1F8B2-1F8D8 1FA54-1FA57 1FA75-1FA77 1FA87-1FA8F 1FAAD-1FAAF 1FABB-1FABF 1FAC6-1FACF 1FADA-1FADF
1FAE8-1FAEF 1FAF7-1FAF8 1FBCB-1FBEF 1FBFA 2B739-2B73F 2CEA2-2CEAD 2EBF0-2EE5D 31350-33479
"""
_RANGES = "".join(
    f"{chr(int(each.split('-')[0], 16))}-{chr(int(each.split('-')[-1], 16))}"
    for each in _NEWER.split()
)
NEWER = re.compile(f"[{_RANGES}]")
"""A code point of Unicode 15 to 17, not of Unicode 14, as of Python 3.11: ``\U00011f51``."""

FULL_WIDTH = {code + 0xFEE0: code for code in (*range(48, 58), *range(65, 91), *range(97, 123))}
"""Digits and letters of full width, as those of ASCII."""

# Lines and blocks
BLANK_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*){8,}\n")
r"""Nine or more blank lines: ``\n\n\n\n\n\n\n\n\n\n``."""
BLANKS = re.compile(r"[^\S\n]{64,}")
"""64 or more blanks: ``                                                                ``."""
SENTENCE = re.compile(r"\n+|(?<=[.!?])\s+|(?<=。)")
r"""The end of a sentence or line: ``So.\nIt``."""
NOTE = re.compile(
    rf"\n[ \t]*\n\s*{_BOLD_MARK}?(?:\((?=[^()\n]*[a-z]{{2}})|(?:note|explanation|reason(?:ing)?"
    rf"|proof|verification|check(?:ing)?|justification|remark)\b{_BOLD_MARK}?:)",
    re.IGNORECASE,
)
r"""The beginning of a paragraph about the answer before it: ``\n\nNote: ``."""
OFFER = re.compile(
    r"(?:(?<!\s)\s*\n\s*|(?<=[.!])\s+)(?:let me know|(?:i )?hope (?:this|that|it)|feel free"
    r"|is there anything|would you like|if you (?:have|need|want)\b"
    r"|(?:let['’]s|to|we can) (?:check|verify)|check:|plugging\b)",
    re.IGNORECASE,
)
r"""The beginning of an offer or a check behind the answer: ``\nLet me know``."""
CONCLUDES = re.compile(r"\b(?:so|therefore|thus|then|wait|wrong|answer|or)\b", re.IGNORECASE)
"""A word of a conclusion, a correction or a choice: ``so``."""
_FENCE = r"```[\w+-]*"
FENCED = re.compile(rf"{_FENCE}[ \t]*\n(.*?)```", re.DOTALL)
r"""A block of code, which the group holds: `````text\n42\n`````."""
BARE = re.compile(rf"(?:(?:{_FENCE}|\$\$|\\\[|---+)[ \t]*\n\s*)+")
r"""Lines of markup alone: ``$$\n``."""
NEXT_SIDE = re.compile(r"\n[ \t]*(?==)|(?<==)\s*\n\s*(?=\W{0,4}\d)")
r"""A line break beside an equals sign: ``\n=``."""
ITEM = re.compile(r"^[ \t]*(?:[-*•]|\d{1,3}[.)]|[a-z]\))[ \t]+(?=\S)")
"""The mark of a line in a list: ``1. apple``."""
BULLET = re.compile(r"^\s*-\s+(?=.*=)")
"""The mark of an equation in a list, which is not a minus sign: ``- 6 * 7 = 42``."""
PROSE = re.compile(rf"(?:\b{_LETTER}{{2,}}+[.'’!?]*+\s+){{2,}}{_LETTER}{{2,}}")
"""Three words in a row, as in a sentence: ``Here it is``."""

# Words around an answer in its sentence
_COLON = r"(?::(?!\d)|(?<!\d):)"  # not that of a time
LEAD = re.compile(rf"^.*(?:{_VERB}\b|{_COLON})\s*", re.IGNORECASE)
"""All up to the last verb or colon: ``The total is: 42``."""
_RESULT = "(?:so|then|therefore|thus|hence|this gives|giving|we (?:get|have|find|obtain))"
ONE_FORMULA = re.compile(rf"(?:{_RESULT},?\s+)?\$([^$\n]+)\$\W*", re.IGNORECASE)
"""A formula that is a sentence: ``So $x=5$.``."""
CONCLUSION = re.compile(rf"^{_THEREFORE}", re.IGNORECASE)
"""The beginning of a conclusion: ``Therefore, ``."""
OF_WHOM = re.compile(r"^(?:the|an?)\s+([\w-]+) of [\w ]+$|^\w+['’]s\s+", re.IGNORECASE)
"""Words around a relative: ``the brother of Emma``, ``Emma's brother``. The group is the word."""
NESTED = re.compile(r"\[\s*\[[^a-z]*?\]\s*\]")
"""A list of lists within a sentence: ``[[1, 2], [3, 4]]``."""
VERB_LEAD = re.compile(
    rf"^.*(?:{_VERB}|\b(?:gets?|gives|becomes|choose|at|on)|\bit['’]s)\s+", re.IGNORECASE
)
"""All up to the last verb: ``The order is a: 1``, ``We get ``."""
BRACKETED = re.compile(r"[^][]*(\[[^][]+\])[^][]*")
"""A line with one list in brackets: ``The list [1, 2] is sorted``. The group holds the list."""
ARTICLE = re.compile(r"^(?:the|a|an)\s+", re.IGNORECASE)
"""An article before a noun: ``the apple``."""
_DENIAL = r"\b(?:not|never|neither|cannot|[a-z]{2,5}n['’]t|no answer)\b"
DENIAL = re.compile(_DENIAL, re.IGNORECASE)
"""A denial: ``not``."""
UNDECIDED = re.compile(rf"{_DENIAL}|\bor\b|\(\s*{_UNSURE}", re.IGNORECASE)
"""A denial, or a choice left open: ``41 or 42``."""
OFFERED = re.compile(
    r"\d[^\s\d]*+,?\s++or\b|\bor\s++[-+$]?\d|\bor\s++(?:more|less|fewer)\b", re.IGNORECASE
)
"""A number in a choice: ``41 or``."""
DENIED = re.compile(
    r"(?:(?:,\s++(?:and\s++)?|\band\s++)not|,\s++which\s++[^,;.]*?(?:\bnot\b|\bcannot\b)"
    r"|\b(?:that|who|which)\s++(?:\w++\s++(?:not|neither)|\w++n['’]t|cannot))\s[^,;.]*+[.!]?\s*+$",
    re.IGNORECASE,
)
"""A denial behind an answer: ``, not 41``, ``that are not red``."""
CLAUSES = re.compile(
    r"[,;]\s++(?=(?:so|then|thus|hence|therefore)\b|[^,;]*?(?:['’]s|\b(?:is|are|was)\b|:|=))"
    r"|\bbut\s++(?!also\b)",
    re.IGNORECASE,
)
"""The beginning of a clause with a verb of its own: ``, so ``."""
CLAUSE = re.compile(
    rf"(?<!\\);|,\s(?=[a-z])(?!or\b)|\.\s| {_WORDS_IN_BRACKETS}|\s(?:{_REASONS})\b", re.IGNORECASE
)
"""The beginning of a remark behind an answer: ``42, because of it``."""
CANDIDATE = re.compile(
    r"[\s;,(]*(?:or\b|[-+$]?\d)|.*\b(?:or\s+[-+$]?\d|maybe|perhaps|possibly|alternative(?:ly)?\b)",
    re.IGNORECASE,
)
"""A remark that offers another number: ``(or 43)``."""
SETTING = re.compile(r"(?:in|after|within|at|for|if|when|given|since)\s", re.IGNORECASE)
"""The beginning of a text that states its answer later: ``In 3 years, she will be 42``."""
REMARK = re.compile(
    rf"(?<=\S)(?:\s+{_WORDS_IN_BRACKETS}[^()]*\)|,\s+(?:not|which|{_REASONS})\s.*)$", re.IGNORECASE
)
"""A remark behind an answer: ``a, b (in this order)``, ``New York, not Boston``."""

ASIDE = re.compile(
    rf"(?<=\S)\s+\((?!\s*{_UNSURE}|[-+$]?[\d.,]+\)|base)(?![^()]*\bor\b)"
    r"[^()]*[a-z+*/×%,-][^()]*\)(?=[^()]*$)",
    re.IGNORECASE,
)
"""A remark in the last brackets: ``24 (12 + 4 + 8)``."""
REASON = re.compile(rf",?\s(?:{_REASONS})\s", re.IGNORECASE)
"""The beginning of a reason: ``, because ``."""
SO = re.compile(r",\s+(?:so|thus|therefore|hence)\b|,\s+which (?:has|contains)\b", re.IGNORECASE)
"""The beginning of a conclusion: ``, so``."""

# Choices and options
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
TRUTH = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
"""Answers to a question of truth, with their meanings."""
_CLAUSE_WORD = rf"(?:it|they|he|she|this|that|there|we|you|the|{_REASONS}|but)"
_NO_NOUN_BEHIND = rf"(?!\s+(?!{_CLAUSE_WORD}\b)\w)"  # "no bird" and "no idea" choose nothing
TRUTH_NAME = re.compile(rf"\b{_any(*TRUTH)}\b(?:(?<!\bno)|{_NO_NOUN_BEHIND})", re.IGNORECASE)
"""A word of :data:`TRUTH`: ``no, it is not``."""
_BEYOND = "".join(rf"(?<!\b{word}\s)" for word in ("before", "after", "from", "since", "past"))
DAY_NAME = re.compile(rf"{_BEYOND}\b{_any(*DAYS)}\b", re.IGNORECASE)
"""A day that is not counted from: ``Monday``, but not ``after Monday``."""
THEREFORE = re.compile(
    rf"^\s*(?:{_THEREFORE}(?=(?:yes|no)\b)|[a-z]+ ?/ ?[a-z]+ ?: *(?=\w))", re.IGNORECASE
)
"""Words before a verdict: ``So yes``, ``Yes/No: yes``."""
COMES_TO = re.compile(r"=|→|,\s+so\b|,\s+which (?:is|gives)\b", re.IGNORECASE)
"""A sign or word before the last day: ``Sunday + 1 day = Monday``."""
LISTED = re.compile(r"\[[^]\[]*,")
"""The beginning of a list: ``["a", "b"]``."""
PREMISE = re.compile(
    rf"^\s*(?:{_THEREFORE})?(?:{_REASONS}|if|given|when)\b[^,]*,|,?\s\(?(?:{_REASONS})\s.*$",
    re.IGNORECASE | re.DOTALL,
)
"""A reason before or behind a conclusion: ``Since it is so,``."""
_FALSE = r"(?!\)?\s+(?:is|was|are|were)\s+(?:wrong|incorrect|false))"
_NAMED_OPTION = rf"(?:\b(?:option|choice)\s+)\(?([A-Za-z])\b{_FALSE}"
_BRACKETED_OPTION = rf"\(([A-Za-z])\){_FALSE}"
_BEHIND_OPTION = rf"(?=[.:,;|/]|\s+(?:is|and|{_REASONS})\b|\s+[-–—|/]\s|\W*$)"
_LISTED_OPTION = rf"([A-Za-z])\){_FALSE}|([A-Z]){_BEHIND_OPTION}{_FALSE}"
OPTION = re.compile(rf"{_NAMED_OPTION}|{_BRACKETED_OPTION}|(?<![\w'(])(?:{_LISTED_OPTION})")
"""The letter of an option: ``option B``, ``(B)``, ``B)``, ``B.``"""

OPTION_WITH_TEXT = re.compile(
    r"\W*(?:(?:the )?(?:correct )?(?:option|choice|answer) (?:is )?)?\W{0,3}"
    r"(?:\(([A-Z])\)|([A-Z])(?:[.:)]|\s[-–—]\s))\W{0,3}\s\W{0,3}(?!or\b|and\b)\w",
    re.IGNORECASE,
)
"""The letter of an option, and the beginning of its text: ``(D) n``, ``B. P``."""
OTHER_OPTION = re.compile(
    r"\([A-Z]\)|(?<![\w'])[A-Z](?:\)|[.:]\s+\S)|\b(?:or|not|option|choice)\s+\(?(?-i:[A-Z])\b(?!\))"
    r"|\b(?:wait|actually|instead|maybe|perhaps|sure|likely|meant|wrong|(?:not |in)correct)\b"
    r"|[-–—;:/,.?!]\s*(?-i:[A-Z])\W*$",
    re.IGNORECASE,
)
"""Another option behind the first, or a doubt: ``(C)``, ``C) 6``, ``or B``, ``wait``."""

# Numbers
_BEFORE = r"(?<![\w.^])(?<![\^_]\{)"  # neither a word nor an exponent or index
_SIGN = r"(?:(?<![)\]])[-+])"  # behind a bracket it is an operator
_BASE = r"_\{?\d{1,2}\}?(?!\w)"
_UNIT = (
    r"(?:[kcm]?m|km/h|k[mp]h|mph|ft|in|yd|[km]?g|lbs?|oz|m?[lL]"
    r"|h|hrs?|mins?|sec|ms|k?Wh?|[kM]?Hz|[kKMGT]B)"
)
NUMBER = re.compile(
    rf"{_BEFORE}{_SIGN}?{_UNSIGNED}(?:(?={_BASE})|(?={_UNIT}(?![\w(]))|(?!\w|\.\d))", re.ASCII
)
"""A number within a text: ``-1,234.5``, ``101`` before ``_2``, or ``42`` before ``km/h``."""
QUANTITY = re.compile(
    r"[\d¼-¾]|\b(?:zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|dozen|half|none|nothing)\b",
    re.IGNORECASE,
)
"""A number in digits or words: ``three``."""
VALUE = re.compile(rf"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:{_EXPONENT})?", re.ASCII)
"""A number without commas: ``-1234.5``."""
WHOLE_NUMBER = re.compile(
    rf"[-+]?(?:0|[1-9]\d*)(?:\.\d+(?:{_EXPONENT})?|[eE][-+]\d{{1,3}})?", re.ASCII
)
"""A right answer that is a number: ``1.5e3``, but not ``1e1``, which may be in base 16."""
IN_THOUSANDS = re.compile(
    r"[-+]?(?:\d\d?|\d{3}(?=(?:,\d{3})*,0))(?:,\d{3}){1,9}(?:\.\d+)?", re.ASCII
)
"""A right answer with commas that is not a list: ``1,234``, ``100,000``, unlike ``100,200``."""
FRACTION = re.compile(r"[-+]?\s*\d+\s*/\s*\d+", re.ASCII)
"""A fraction: ``3 / 4``."""
SHORT_FRAC = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)", re.ASCII)
r"""A fraction of two digits without braces: ``\frac12``."""
THOUSANDS = re.compile(r"(?<=\d)(?:['’\u2009\u202f]|\\[ :;])(?=\d{3}(?!\d))", re.ASCII)
r"""A separator of thousands other than a comma: ``1'234``, ``1\;234``."""
POWER_OF_TEN = re.compile(
    rf"{_BEFORE}(?:({_DIGITS}(?:\.\d+)?)\s*(?:[×x·*]|\\(?:times|cdot))\s*)?"
    r"10\s*(?:(?:\^|\*\*)\s*[{(]?([-−+]?\d{1,3})[)}]?|([⁻⁰¹²³⁴-⁹]{1,4}))(?!\w|\.\d|[\^}!])",
    re.ASCII,
)
"""A power of ten: ``10^6``, ``6.02 × 10⁸``. Groups: the factor before it, the exponent twice."""
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")
"""Digits of an exponent as those of a number."""
_SCALE = r"(?:hundred|thousand|million|billion|trillion|dozens?|squared|cubed|factorial)"
SCALES = {"thousand": "e3", "million": "e6", "billion": "e9", "trillion": "e12"}
SCALED = re.compile(
    rf"(?<=\d) +({'|'.join(SCALES)})\b(?!,? +(?:and +)?[a-z]* ?\d)", re.ASCII | re.IGNORECASE
)
"""A scale behind a number: ``2 million``. The group holds it."""
_ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", *(f"{each}teen" for each in ("thir", "four", "fif", "six")))
_TEENS += ("seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
NAMES = dict(zip(("zero", *_ONES, *_TEENS), range(20), strict=True))
NAMES |= {name: 10 * number for number, name in enumerate(_TENS, 2)}
"""Words for numbers, with their values."""
NUMBER_NAME = re.compile(
    rf"\A(one)\Z|\b(?:({_any(*_TENS)})(?:[- ]({_any(*_ONES)}))?"
    rf"|({_any('zero', *_ONES[1:], *_TEENS)}))\b(?!-\w)",
    re.IGNORECASE,
)
"""A number below a hundred in words: ``forty-two``; ``one`` if it is all. Groups: its words."""
OTHER_QUANTITY = re.compile(rf"\d|\b(?:{_SCALE}|half|halves|thirds?|quarters?)\b", re.IGNORECASE)
"""A number in digits, or a word that changes one: ``hundred``."""
POWER = re.compile(r"[\d.]+\s*\^\s*\{?-?[\d.]+\}?", re.ASCII)
"""A power: ``2^{10}``."""
_LATEX_RATIO = r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}"
_PLAIN_RATIO = r"(?<![\w.])(?<!\d )(\d++)\s*/\s*(\d++)(?![\w.]*\d)"
RATIO = re.compile(rf"(?:([-+])\s*)?(?:{_LATEX_RATIO}|{_PLAIN_RATIO})", re.ASCII)
r"""A fraction within a text: ``-\frac{3}{4}``. Groups: its sign, and two numbers twice."""

_CHANGING = r"\\(?:sqrt|times|cdot|div|pm|mp|pi|ln|log|exp|sin|cos|tan)(?![a-z])"
_LINKED = r"(?:[,;&]|\b(?:and|plus|times)\b)"
PART_BEFORE = re.compile(
    rf"(?:[-*+/^√]|[}}c]\s*(?={{)|\d(?:\s*{_LINKED})?|{_CHANGING}|\b(?:minus|negative))\s*[({{]?\s*$"
)
r"""The formula or list before a fraction that is a part of it: ``\sqrt{``, ``2 ``, ``2, ``."""
PART_BEHIND = re.compile(
    rf"\s*[)}}]?\s*(?:[*+/^√]|{_LINKED}?\s*[-+]?\s*\d|{_CHANGING}|[a-z]\b(?!\s+\w))"
)
r"""The formula or list behind such a fraction: `` + 1``, ``\pi``, `` x``, `` and 5``."""
SUBJECT = re.compile(
    rf"(?:{_THEREFORE})?([-+]?[\d.,/]*\d)\s+is\s+(?:the|an?|what)\s+(?!answer|.*\bso\b)",
    re.ASCII | re.IGNORECASE,
)
"""A number that a sentence is about: ``42 is the product of 6 and 7``."""

# Numbers with others
_TERM = r"[\s.()]*+\d[\d\s.()]*+"
EXPRESSION = re.compile(rf"{_TERM}(?:[-+*/×÷·]{_TERM})+", re.ASCII)
"""Arithmetic: ``3 * (4 + 1)``."""
LINK = re.compile(rf"\s*+([-+*/×÷]?)\s*+([-+]?{_UNSIGNED})\s*+", re.ASCII)
"""A link in a chain of numbers: ``+ 4``. Groups: the operator and the number."""
OPERATION = re.compile(r"\d\s*[-+*/×÷^]\s*\{?-?\d", re.ASCII)
"""An operator between numbers: ``6 * 7``."""
_SEPARATORS = r"[\s,;/|+*×÷&^()-]*"
JOINT = re.compile(rf"{_SEPARATORS}+(?:\b(?:or|and|to)\b)?{_SEPARATORS}", re.IGNORECASE)
"""The text between numbers of which neither is the answer: `` or ``."""
JOINED = re.compile(r"\d\s*(?:,|\bor\b|\band\b)\s*[-\\\d]", re.IGNORECASE)
"""Two numbers in a list: ``3/4 and 1/2``."""
EQUALS = re.compile(r"=+>?|≈|→")
"""The sign between the sides of an equation: ``=``."""
_EQUALS_WORD = r"(?:is(?: equal to)?|equals|gives|makes)"
IS = re.compile(
    rf"(?<=[\d)]),?\s+(?:which\s+)?{_EQUALS_WORD}\s+(?=(?:\*\*)?[-+$]?\d)", re.IGNORECASE
)
"""A word for an equals sign between numbers: ``9 + 4 is 13``."""

# Signs and words beside a number
MINUS = re.compile(
    rf"\b(?:minus|negative)\s+(?={_CURRENCY}?[\d.])|-\s*(?={_CURRENCY}\s*\d)", re.IGNORECASE
)
"""The sign of a negative number: ``minus 5``, ``-$5``."""
UNEQUAL = re.compile(r"[<>]=|(?<![\w)])!=")
"""A sign that is not an equals sign, but has one: ``!=``, unlike that of ``5!=120``."""
_SYMBOL = r"(?:[±√≤≥≠]|(?:(?<![\w\"'=|/-])|(?<![<\w/].)\b[a-z])[<>]|\bsqrt\b|-\s*(?=\())"
_RAISED = r"[¹²³⁰-⁹¼½¾⅐-⅞]"
_STRUCK = r"[\u0300-\u036f\u20d0-\u20ff]"
_OTHER_DIGIT = r"(?![0-9])\d"  # of another script
_UNKNOWN = r"(?:\s*[-+*/^]\s*[{(]?[a-z]|\s*(?-i:[xyz])(?![-'’]))\b(?!\s*\w)"  # ``42 - x``, ``42 x``
CHANGED = re.compile(
    rf"{_SYMBOL}\s*[({{]?-?{_CURRENCY}?\d|\|-\d|\d\s+{_SCALE}\b|{_OTHER_DIGIT}[0-9]"
    rf"|[0-9](?:\s*{_RAISED}|{_OTHER_DIGIT}|{_STRUCK}|\s*[πθ∞]|{_UNKNOWN})",
    re.IGNORECASE,
)
"""A number beside what changes its value, or leaves it none: ``√16``, ``2 million``."""
_COMPARISON = r"\b(?:than|at least|at most|over|under|except|excluding|twice|double|triple"
_COMPARISON += "|half of|root of|but|log)"
COMPARED = re.compile(
    rf"(?:{_COMPARISON}\s+|\b[a-z]{{1,6}}\(\s*)[-+$]?\d[\d.,]*|\d[\d.,]{{0,20}}\s+and a half",
    re.IGNORECASE,
)
"""A number that an answer is compared with or computed from: ``at least 5``, ``sin(5``."""
_IN_BASE = r"(?:in|\(?base)\s+(?:base[ -]?)?"
_TAIL = _any(
    *("after", "among", "out of", "of (?:its|the|those|these)", "over the", "(?:at|by) the end of"),
    *("to (?:buy|earn|reach|finish|travel|read|download|complete)", "between", "for working"),
)
_CLAUSE = r"=|\b(?:is|are|was|gives?|gets?|has|have|equals|it|he|she|we|they|you)\b"
_GOES_ON = rf"(?![^,]*,\s)(?!.*(?:{_CLAUSE}))"
WITHIN = re.compile(
    rf"(?<=\w)\s+(?:{_IN_BASE}\d[\d.,]*(?:\s+{_LETTER}+)?\)?\s*$"
    rf"|{_TAIL}\s+(?:[\w-]+\s+){{0,3}}\$?\d{_GOES_ON}.*$)"
)
"""A tail with a number of its own: ``720 minutes in 12 hours``, ``101 in base 2``."""

# Markup
_COMMAND_END = "(?![a-z])"
LAYOUT = re.compile(
    r"\\(?:displaystyle|textstyle|[lL]arge|LARGE|[hH]uge|bf|rm)(?![a-zA-Z])|\\(?:text)?color\s*\{\w+\}"
)
r"""LaTeX that changes only the look of what follows: ``\displaystyle``, ``\textcolor{red}``."""
_TEXT = r"\\(?:text(?:bf|it|rm)?|mbox|math(?:rm|bf|it|sf)|boldsymbol|bm|operatorname)(?![a-z])"
UNITS = re.compile(rf"\d\s*{_TEXT}\s*\{{\s*[a-z]", re.IGNORECASE)
r"""The beginning of a unit behind a number: ``42\text{ m``."""
TEXT = re.compile(_TEXT)
r"""A command around text or a whole formula: ``\text``."""
_SIGN_COMMANDS = (
    *(("times|cdot", "*"), ("div", "/"), ("neq?", "≠"), ("approx", "≈"), ("pm|mp", "±")),
    *(("leq?", "≤"), ("geq?", "≥"), ("lt", "<"), ("gt", ">")),
)
LATEX = (
    (LAYOUT, " "),
    (re.compile(rf"{_TEXT}\s*\{{([^{{}}]*)\}}(?:\^\{{?-?\d\}}?)?"), r" \1 "),
    (re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}"), r" \1/\2 "),
    (re.compile(rf"\\not\s*(?:=|\\approx{_COMMAND_END})"), "≠"),
    *((re.compile(rf"\\(?:{names}){_COMMAND_END}"), sign) for names, sign in _SIGN_COMMANDS),
    (re.compile(r"\^\{?\\circ\}?\s*[CF](?![a-zA-Z])"), " "),
    (re.compile(rf"\^\{{?\\circ{_COMMAND_END}\}}?|\\(?:degree|pounds){_COMMAND_END}|\\\$"), ""),
    (re.compile(rf"\\[()\[\] ;]|\$|\\q?quad{_COMMAND_END}|\\\\"), " "),
)
r"""Usual LaTeX of arithmetic and units, with the text that replaces it: ``6 \times 7``."""
GRID_MARKUP = (
    (
        re.compile(
            r"\\(?:begin|end)\{?[a-z]?matrix\}?|^\s*\w+\s*=\s*(?=\[)|^\s*row \d+:", re.I | re.M
        ),
        "",
    ),
    (re.compile(r"^[ \t|:+]*-{3}[- \t|:+]*$", re.MULTILINE), ""),
    (re.compile(r"(?<=[^\s&])\s*&\s*"), " "),
    (re.compile(r"\\\\|\]\s*+,?\s*+\["), "\n"),
)
r"""Markup around the items of a grid, with the text that replaces it: ``],\n[``, ``\\``."""
ARROW = re.compile(rf"→|⇒|⟹|[-=]>|\\(?:rightarrow|to){_COMMAND_END}")
"""An arrow: ``->``."""
HALF_OPEN = re.compile(r"\[[^\[\]()]*\)|\([^\[\]()]*\]")
"""An interval whose brackets count: ``[1, 5)``."""
AND = re.compile(r"(?<=\w),?\s+and\s+(?=\S+$)")
"""The word before the last item of a list: ``a, b and c``."""
_NAME = r"\b[a-z](?:_?\{?\d\}?|[₀-₉])?\s*=\s*(?=\S)"
NAMED = re.compile(_NAME)
"""The name of a value: ``x = 3``, ``x_1=3``."""
_ALONE = r"(?<![-+*/^=\d])(?<![-+*/^=\d] )"  # not the end of ``2x`` or ``x + y``
SOLUTIONS = re.compile(
    rf"{_ALONE}{_NAME}[^=]{{1,60}}?(?:[,;&]|\band\b)[^=\w]*+{_NAME}[^=]*$", re.IGNORECASE
)
"""Values of several names at the end of a text: ``x = 3 and y = 5``."""
JOINER = re.compile(rf",?\s++(?:and|or\s++(?={_NAME}))\s*+", re.IGNORECASE)
"""A word between items: ``a and b``, ``x = 1 or x = 2``."""
MARKED_JOINER = re.compile(
    r"(?:\\\)|\$)\s+(and|or)\s+(?:\\\(|\$)|(?:\\q?quad\s*)?\\text\s*\{\s*(and|or)\s*\}(?:\s*\\q?quad)?"
)
r"""A word between formulas or within one: ``\(x\) or \(y\)``, ``\text{ or }``. A group holds it."""
INTERVAL = re.compile(r"∪|∞|\\(?:cup|infty)(?![a-z])")
r"""A sign of a right answer in which round and square brackets differ: ``\cup``."""
SIZES = re.compile(rf"\\(?:left|right|displaystyle){_COMMAND_END}")
r"""LaTeX that changes only the size of what follows: ``\left``."""
ESCAPE = re.compile(rf"\\(?:left|right){_COMMAND_END}|\\(?=[{{}}$])")
r"""LaTeX before a bracket or a currency: ``\left``, ``\``."""
SPACE = re.compile(r"\\[ ,:;!]|\\q?quad(?![a-z])")
r"""LaTeX for a space: ``\ ``."""
SIGN = re.compile(r"(?<=[\w)\]])(?:\s*([*/^=<>])\s*|(?<!\s)([-+])(?!\s))(?=[\w(\[-])")
"""An operator between items: ``x=3``."""
LANGUAGE = re.compile(r"[\w+-]*+[ \t]*+\n?")
r"""The name of a language behind an opening fence: ``python\n``."""
BOLD = re.compile(r"(?<![\w)*])\*\*(?=[^\s*])([^*\n]{1,2000})(?<=\S)\*\*(?![\w(*])")
"""Bold text, which is not a power: ``is **42** here``. The group holds the text."""
CODE = re.compile(r"(?<!`)`([^`\n]{1,2000})`(?!`)")
"""Code in a line, which the group holds: ```42```."""
