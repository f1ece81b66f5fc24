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
_WORDS_IN_BRACKETS = r"\((?=[^()]*[a-z]{2})"  # begins ``(or 43)``, but not ``(x, y)``
_DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,9}(?![\d,])|\d+)"  # ``1,234`` or ``1234``
_EXPONENT = r"[eE][-+]?\d{1,3}"
_UNSIGNED = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:{_EXPONENT})?"

# Thinking, and the marks of an answer
_THOUGHT = r"(?:think|thinking|thought|thoughts|reasoning|seed:think)"
THINKING = re.compile(rf"<\s*(/?){_THOUGHT}\s*>|\[(/?)THINK\]", re.IGNORECASE)
"""A tag of thinking: ``</think>``. One of the groups holds the slash of an end."""
OPEN = re.compile(r"<\s*answer\s*>", re.IGNORECASE)
"""The tag before an answer: ``<answer>``."""
CLOSE = re.compile(r"<\s*/\s*answer\s*>", re.IGNORECASE)
"""The tag behind an answer: ``</answer>``."""
BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{?)")
r"""The beginning of a box: ``\boxed{``. The group holds the brace, if there is one."""
_QUESTION = r"(?: to [^.:\n]{1,80}?)"  # ``(the answer) to the question``
_SAYS = _any(r"\bis\b", r"\bwould be\b", ":", "=", r"\n")
SAID = re.compile(
    rf"\banswer\b{_QUESTION}?{_BOLD_MARK}? *{_SAYS} *{_BOLD_MARK}? *:?", re.IGNORECASE
)
"""Words before an answer: ``**Answer:**``, ``answer to this is``."""
IS_IT = re.compile(r" (?:is|are) (?:the|my) (?:final |correct )?answer\b", re.IGNORECASE)
"""Words behind an answer: ``42 is the answer``."""

# Lines and blocks
SENTENCE = re.compile(r"\n+|(?<=[.!?])\s+")
r"""The end of a sentence or line: ``So.\nIt``."""
_FENCE = r"```[\w+-]*"
FENCED = re.compile(rf"{_FENCE}[ \t]*\n(.*?)```", re.DOTALL)
r"""A block of code, which the group holds: `````text\n42\n`````."""
BARE = re.compile(rf"(?:(?:{_FENCE}|\$\$|\\\[|---+)[ \t]*\n\s*)+")
r"""Lines of markup alone: ``$$\n``."""
ITEM = re.compile(r"[ \t]*(?:[-*•]|\d{1,3}[.)])[ \t]+(?=\S)")
"""The mark of a line in a list: ``1. apple``."""
BULLET = re.compile(r"^\s*-\s+(?=.*=)")
"""The mark of an equation in a list, which is not a minus sign: ``- 6 * 7 = 42``."""
PROSE = re.compile(rf"(?:\b{_LETTER}{{2,}}+[,.'’!?]*+\s+){{2,}}{_LETTER}{{2,}}")
"""Three words in a row, as in a sentence: ``Here it is``."""

# Words around an answer in its sentence
_COLON = r"(?::(?!\d)|(?<!\d):)"  # not that of a time
LEAD = re.compile(rf"^.*(?:{_VERB}\b|{_COLON})\s*", re.IGNORECASE)
"""All up to the last verb or colon: ``The total is: 42``."""
VERB_LEAD = re.compile(rf"^.*{_VERB}\s+", re.IGNORECASE)
"""All up to the last verb: ``The order is a: 1``."""
ARTICLE = re.compile(r"^(?:the|a|an)\s+", re.IGNORECASE)
"""An article before a noun: ``the apple``."""
UNDECIDED = re.compile(
    r"\b(?:not|never|neither|cannot|[a-z]{2,5}n['’]t|no answer|or)\b", re.IGNORECASE
)
"""A denial, or a choice left open: ``41 or 42``."""
CLAUSE = re.compile(
    rf";|,\s(?=[a-z])(?!or\b)|\.\s| {_WORDS_IN_BRACKETS}|\s(?:{_REASONS})\b", re.IGNORECASE
)
"""The beginning of a remark behind an answer: ``42, because of it``."""
CANDIDATE = re.compile(r"[\s;,(]*(?:or\b|[-+$]?\d)|.*\bor\s+[-+$]?\d", re.IGNORECASE)
"""A remark that offers another number: ``(or 43)``."""
REMARK = re.compile(rf"(?<=\S)\s+{_WORDS_IN_BRACKETS}[^()]*\)$")
"""A remark in brackets behind an answer: ``a, b (in this order)``."""

# Choices and options
CHOICES = {
    **{day: day for day in ("monday", "tuesday", "wednesday", "thursday", "friday")},
    **{day: day for day in ("saturday", "sunday")},
    "yes": "yes",
    "true": "yes",
    "no": "no",
    "false": "no",
}
"""Words that questions let you choose from, with their meanings."""
_CLAUSE_WORD = rf"(?:it|they|he|she|this|that|there|we|you|the|{_REASONS}|but)"
_NO_NOUN_BEHIND = rf"(?!\s+(?!{_CLAUSE_WORD}\b)\w)"  # "no bird" and "no idea" choose nothing
CHOICE = re.compile(rf"\b{_any(*CHOICES)}\b(?:(?<!\bno)|{_NO_NOUN_BEHIND})", re.IGNORECASE)
"""A word of :data:`CHOICES`: ``no, it is not``."""
_NAMED_OPTION = r"(?:\b(?:option|choice)\s+)\(?([A-Za-z])\b"
_BRACKETED_OPTION = r"\(([A-Za-z])\)"
_LISTED_OPTION = rf"([A-Za-z])\)|([A-Z])(?=[.:,]|\s+(?:is|{_REASONS})\b|\W*$)"
OPTION = re.compile(rf"{_NAMED_OPTION}|{_BRACKETED_OPTION}|(?<![\w'(])(?:{_LISTED_OPTION})")
"""The letter of an option: ``option B``, ``(B)``, ``B)``, ``B.``"""

# Numbers
_BEFORE = r"(?<![\w.^])(?<![\^_]\{)"  # neither a word nor an exponent or index
_SIGN = r"(?:(?<![)\]])[-+])"  # behind a bracket it is an operator
_BASE = r"_\{?\d{1,2}\}?(?!\w)"
NUMBER = re.compile(rf"{_BEFORE}{_SIGN}?{_UNSIGNED}(?:(?={_BASE})|(?!\w|\.\d))", re.ASCII)
"""A number within a text: ``-1,234.5``, or ``101`` before ``_2``."""
VALUE = re.compile(rf"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:{_EXPONENT})?", re.ASCII)
"""A number without commas: ``-1234.5``."""
WHOLE_NUMBER = re.compile(
    rf"[-+]?(?:0|[1-9]\d*)(?:\.\d+(?:{_EXPONENT})?|[eE][-+]\d{{1,3}})?", re.ASCII
)
"""A right answer that is a number: ``1.5e3``, but not ``1e1``, which may be in base 16."""
FRACTION = re.compile(r"[-+]?\s*\d+\s*/\s*\d+", re.ASCII)
"""A fraction: ``3 / 4``."""
POWER = re.compile(r"[\d.]+\s*\^\s*\{?-?[\d.]+\}?", re.ASCII)
"""A power: ``2^{10}``."""
_LATEX_RATIO = r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}"
_PLAIN_RATIO = r"(?<![\w.])(?<!\d )(\d++)\s*/\s*(\d++)(?![\w.]*\d)"
RATIO = re.compile(rf"(?:([-+])\s*)?(?:{_LATEX_RATIO}|{_PLAIN_RATIO})", re.ASCII)
r"""A fraction within a text: ``-\frac{3}{4}``. Groups: its sign, and two numbers twice."""

# Numbers with others
_TERM = r"[\s.()]*+\d[\d\s.()]*+"
EXPRESSION = re.compile(rf"{_TERM}(?:[-+*/×÷]{_TERM})+", re.ASCII)
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
_SYMBOL = r"(?:[±√≤≥≠]|(?<![\w\"'=|/-])[<>]|\bsqrt\b)"
_RAISED = r"[¹²³⁰-⁹¼½¾⅐-⅞]"
_STRUCK = r"[\u0300-\u036f\u20d0-\u20ff]"
_OTHER_DIGIT = r"(?![0-9])\d"  # of another script
_SCALE = r"(?:hundred|thousand|million|billion|dozen)"
CHANGED = re.compile(
    rf"{_SYMBOL}\s*[({{]?-?{_CURRENCY}?\d|\d\s+{_SCALE}\b|{_OTHER_DIGIT}[0-9]"
    rf"|[0-9](?:\s*{_RAISED}|{_OTHER_DIGIT}|{_STRUCK})",
    re.IGNORECASE,
)
"""A number beside what changes its value, or leaves it none: ``√16``, ``2 million``."""
_COMPARISON = r"\b(?:than|at least|at most|twice|half of|but|log)"
COMPARED = re.compile(rf"{_COMPARISON}\s+[-+$]?\d|\d\s+and a half", re.IGNORECASE)
"""A number that an answer is compared with: ``at least 5``."""
_IN_BASE = r"(?:in|\(?base)\s+(?:base[ -]?)?"
WITHIN = re.compile(rf"(?<=\w)\s+{_IN_BASE}\d[\d.,]*(?:\s+{_LETTER}+)?\)?\s*$")
"""A tail with a number of its own: ``720 minutes in 12 hours``, ``101 in base 2``."""

# Markup
_COMMAND_END = "(?![a-z])"
LATEX = (
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|mathit)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}"), r" \1/\2 "),
    (re.compile(rf"\\(?:times|cdot){_COMMAND_END}"), "*"),
    (re.compile(rf"\\div{_COMMAND_END}"), "/"),
    (re.compile(rf"\^\{{?\\circ{_COMMAND_END}\}}?|\\\$"), ""),
    (re.compile(rf"\\[()\[\] ;]|\$|\\q?quad{_COMMAND_END}|\\\\"), " "),
)
r"""Usual LaTeX of arithmetic and units, with the text that replaces it: ``6 \times 7``."""
FRAC = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", re.IGNORECASE)
r"""A fraction of anything: ``\frac{a}{b}``."""
ARROW = re.compile(rf"→|->|\\(?:rightarrow|to){_COMMAND_END}")
"""An arrow: ``->``."""
HALF_OPEN = re.compile(r"\[[^\[\]()]*\)|\([^\[\]()]*\]")
"""An interval whose brackets count: ``[1, 5)``."""
AND = re.compile(r"(?<=\w),?\s+and\s+(?=\S+$)")
"""The word before the last item of a list: ``a, b and c``."""
LANGUAGE = re.compile(r"[\w+-]*+[ \t]*+\n?")
r"""The name of a language behind an opening fence: ``python\n``."""
BOLD = re.compile(r"(?<![\w)*])\*\*(?=[^\s*])([^*\n]{1,2000})(?<=\S)\*\*(?![\w(*])")
"""Bold text, which is not a power: ``is **42** here``. The group holds the text."""
CODE = re.compile(r"(?<!`)`([^`\n]{1,2000})`(?!`)")
"""Code in a line, which the group holds: ```42```."""
