"""Right answers are scored right in whatever form they are written, and wrong ones wrong.

More of both are in tests/protocol/answers.jsonl.
"""

import ast
import re
import sys
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.tasks import answer_patterns
from node.tasks.answer_forms import Form, equal, form_of, number_value
from node.tasks.answers import behind_answer, read_answer, without_thinking
from node.tasks.sources import propositional_logic
from node.tasks.sources.reasoning_gym import fit, unsolved, without_format
from node.tasks.task import Task
from node.tasks.task_set import Allowed, load_task_set, open_envs
from tests.parsing import parse

FORMS = (
    *("{}", "  {}\n", "{}.", "**{}**", "`{}`", '"{}"', "'{}'", "```\n{}\n```", "```text\n{}\n```"),
    *("\\boxed{{{}}}", "$\\boxed{{{}}}$", "${}$", "= {}", "The answer is {}", "The answer is {}."),
    *("Final answer: {}", "**Answer:** {}", "**Answer: {}**", "Answer:\n{}", "So it is:\n\n{}"),
    *("<answer>{}</answer>", "<Answer>{}</ANSWER>", "<answer> {} </answer>", "<answer>{}"),
    *("<answer><answer>{}</answer></answer>", "<answer>{}</answer> I hope that this helps!"),
    *("<answer>**{}**</answer>", "<answer>{}.</answer>", "<answer>\\boxed{{{}}}</answer>"),
    *("<answer>The answer is {}</answer>", "<answer>foo</answer> No, wait. <answer>{}</answer>"),
    *("<think>Let me see. 1, 2, 3?</think>\n{}", "so 3 and 4</think>\n\n{}"),
    "<think>is it <answer>7</answer>?</think><answer>{}</answer>",
    "Let me think step by step.\nFirst I add things up.\n\nThe final answer is: {}",
    "Let me think.\n\nTherefore, the answer is **{}**.",
    *("Answer:\n```\n{}\n```", "### Final Answer:\n$$\n{}\n$$", "\\[ \\boxed{{{}}} \\]"),
)
WRONG_FORMS = (
    *("{wrong}", "<answer>{wrong}</answer>", "The answer is {wrong}"),
    "<think>{right}</think>{wrong}",
    *("{right} or {wrong}", "<answer>{wrong} or {right}</answer>", "It is not {right}.", ""),
    *("<think>the answer is {right}", "<answer></answer>", "{right} \\boxed{{{wrong}}}"),
    "<answer>{right}</answer> No: <answer>{wrong}</answer>",
    "{right}. So the answer is {wrong}.",
)
SHIPPED = ("tiny", "reasoning-gym", "working", "starter")


@cache
def tasks() -> dict[str, list[Task]]:
    mapping = {}
    for name in SHIPPED:
        allowed = Allowed(code_execution=["binary_matrix"])
        sources, _ = open_envs(load_task_set(name), allowed)
        for source in sources.values():
            levels = range(source.levels)
            mapping[f"{name} {source.name}"] = [
                (source, source.build(level, seed)) for level in levels for seed in range(6)
            ]
    return mapping


FAMILIES = [f"{name} {spec.name}" for name in SHIPPED for spec in load_task_set(name)]


@pytest.mark.parametrize("family", FAMILIES)
def test_correct_answer_scores_in_every_form(family):
    for source, task in tasks()[family]:
        right = task.entry["answer"] or task.entry["metadata"]["example_answer"]
        if source.score(task, right) < 1.0:
            assert family.endswith("propositional_logic"), "its own examples are weak there"
            continue
        rejected = [form for form in FORMS if source.score(task, form.format(right)) < 1.0]
        assert rejected == [], right
        assert source.score(task, f"<answer>{right.lower()}</answer>") == 1.0
        assert source.score(task, right.upper()) == 1.0
        assert source.score(task, "no answer at all, @") == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_answer_fails_in_every_form(family):
    samples = tasks()[family]
    for (source, task), (_, other) in zip(samples, samples[1:] + samples[:1], strict=True):
        right, wrong = task.entry["answer"], other.entry["answer"]
        if right is None or wrong is None or source.score(task, wrong) == 1.0:
            continue
        matched = [
            form
            for form in WRONG_FORMS
            if source.score(task, form.format(right=right, wrong=wrong)) == 1.0
        ]
        assert matched == [], (right, wrong)


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        *(("1,234", "1234"), ("+5", "5"), ("5.0", "5"), ("21 days", "21"), ("$42", "42")),
        *(("x = 21", "21"), ("12 + 9 = 21 days", "21")),
        *(("The answer is 42 because 40 + 2 = 42.", "42"), ("− 7", "-7")),
        ("I count 4 of them", "4"),
        *(("42 (about six weeks)", "42"), ("42 is the answer", "42"), ("007", "7")),
        ("1e3", "1000"),
        *(
            (text, "1000000")
            for text in ("10^6", "$10^{6}$", "It is 10⁶ m.", "1 × 10**6", "It is 10^6. So.")
        ),
        *((text, "602000") for text in (r"\boxed{6.02 \times 10^5}", "so 6,020x10^2 = 602000")),
        *((text, "0.0025") for text in (r"2.5 \cdot 10^{-3}", "25*10^−4")),
        *(
            (text, "1500000")
            for text in ("1.5 million", "It costs $1,500 thousand.", "x = 1.5 million m")
        ),
        *(("2 million", "2000000"), ("<answer>7.5 billion</answer>", "7.5e+9")),
        *((text, "42") for text in ("Forty-two.", "The answer is forty two.", "It is 6 * 7 = 42")),
        *((text, "-12") for text in (r"\boxed{\text{minus twelve}}", "Answer: negative twelve")),
        *((text, "1") for text in ("One", "<answer>one</answer>", "3 - 2. The answer is one.")),
        *(("monday", "Monday"), ("Wednesday.", "Wednesday")),
        ("So it is MONDAY, as I said.", "Monday"),
        *(("No, 1900 is not a leap year", "No"), ("Yes", "True"), ("It is wife.", "wife")),
        *(("enod\n\nI hope this helps!", "enod"), ("[1, 2, 3]", "1 2 3"), ("1,2,3", "1, 2, 3")),
        *(("['a', 'b']", "a, b"), ("2 4\n1 3", "2 4\n1 3"), ("[2,4]\n[1,3]", "2 4\n1 3")),
        *(("3 * (4 + 1) = 15", "3 * (4 + 1)"), ("\\frac{1}{2}", "1/2"), ("24", "24")),
        ("Here is the grid:\n\n```\n2 4\n1 3\n```\nI hope that this helps you!", "2 4\n1 3"),
        ("so \\dfrac 3 4", "3/4"),
        *((text, "1234") for text in ("1\u2009234 m", "\\boxed{1\\;234}", "1\\ 234")),
        *((text, "42") for text in ("42cm", "\\boxed{42kg}", "x = 42m")),
        *(
            (text, "42")
            for text in ("6 * 7 = 42in", "It takes 42min in all.", "about 42MB", "42m^2")
        ),
        *(
            (text, "2, 3")
            for text in ("\\{2, 3\\}", "\\boxed{\\{2,3\\}}", "\\left\\{2,\\ 3\\right\\}")
        ),
        *(("(2,\\,3)", "(2, 3)"), ('{"final_answer": "42", "n": 2}', "42")),
        ('```json\n{"steps": ["6 * 7"], "answer": "42", "unit": "km, or 1"}\n```', "42"),
        ('{"answer": "B", "why": "A"}', "B"),
        ('{"answer": "\\\\frac{1}{2}", "n": 1}', "1/2"),
        ('You asked for {"answer": "..."}. The answer is 42.', "42"),
        ('{"answer": 41}\n\nI was wrong: the answer is 42.', "42"),
        *(("\\boxed{x^{2}}", "x^{2}"), ("The value is 3/4 of it", "3/4")),
        ("$x \\approx \\dfrac{3}{4}$", "3/4"),
        *(("Step 2: 3/4", "3/4"), ("\\displaystyle\\frac34", "3/4"), ("2. 3/4", "3/4")),
        *(("-$\\frac{2}{3}$", "-2/3"), ("4/2 = 2, 6/2 = 3, so 2/3", "2/3")),
        ("f(2) = 2/3", "2/3"),
        *(("For n = 3, m = 5", "5"), ("<b>5</b>", "5")),
        *(("Yes/No: yes", "Yes"), ("No; it is odd", "No"), ("B; the second", "B")),
        *(("Paris (in France)", "Paris"), ("cat, dog (in this order)", "cat, dog")),
        *(("$x=1$ and $x=2$", "1, 2"), ("$x \\approx 3.14$", "3.14"), ("(0, ∞)", "(0, ∞)")),
        ("The final answer: 7 + 1 =\n\n**8**", "8"),
        ("The final answer: 7 + 1 =\nLet me see. It is 8.", "8"),
        ("$(-\\infty, 3) \\cup (5, \\infty)$", "(-\\infty, 3) \\cup (5, \\infty)"),
    ],
)
def test_read_answer_accepts_equal_forms(completion, right):
    assert read_answer(completion, right) == right


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        *(("41=42", "42"), ("x=41=42", "42"), ("4 + 4 = 7", "7"), ("1, 2, 3", "3")),
        ("4 and 2", "2"),
        *(("41 or 42", "42"), ("1/1/1", "1"), ("42/43", "42"), ("not 42", "42"), ("4 2", "42")),
        ("42 43", "43"),
        ("It is not Monday", "Monday"),
        ("true or false", "True"),
        *(("1 2 3 4", "1 2 3"), ("3 2 1", "1 2 3"), ("wife or sister", "wife"), ("0110", "110.5")),
        *((text, "42") for text in ("42nd", "42k", "42x", "42km or 43km", "not 42cm", "42m(")),
        *(("1\u202f2345", "12345"), ("\\{2, 3\\}", "2, 4")),
        *((text, "10") for text in ("10⁶", "2^10^1", "1,0×10^1", "10^x", "5 × 10^", "10^2!")),
        *((text, "5") for text in ("2 million and 5", "5 million", "5 hundred thousand")),
        *((text, "12") for text in ("twelve hundred", "<answer>twelve or ten</answer>", "twelfth")),
        *(
            (text, "12")
            for text in ("Twelve of them are red. Is it 13?", "The answer is not twelve")
        ),
        ("The answer is one of the two others", "1"),
        *(
            (text, "3")
            for text in ("The answer is a three-digit number", "three quarters", "a two")
        ),
        *(('{"answer": ["B", "C"]}', "B"), ('{"answer": null, "guess": 42, "n": 1}', "42")),
        ('The "answer": "42" or "41"', "42"),
        *(("\\sqrt{\\frac12}", "1/2"), ("\\boxed{\\frac{1}{2} + 1}", "1/2")),
        *(("\\boxed{3\\frac12}", "31/2"), ("\\boxed{\\frac12 x}", "1/2")),
        ("\\boxed{2^{\\frac12}}", "1/2"),
        *(("\\boxed{\\frac12\\pi}", "1/2"), ("\\boxed{(\\frac12)^2}", "1/2")),
        *((text, "2/3") for text in ("negative $\\frac23$", "-(2/3)", "1 minus 2/3")),
        *((text, "2/3") for text in ("5, 2/3", "2/3 and 5", "2/3 7", "cos(2/3)")),
        ("\\boxed{\\frac12 \\quad \\frac23}", "2/3"),
        *((text, "2/3") for text in ("x≥2/3", "at least 2/3", "3 times 2/3")),
        *((text, "2/3") for text in ("$x \\le \\frac{2}{3}$", "\\pm\\frac23")),
        *((text, "2/3") for text in ("x = 1/3 and y = 2/3", "-2/3")),
        ("minus -2/3", "-2/3"),
        *((text, "5") for text in ("The solutions are $x = 3$ and $x = 5$.", "x = 3; y = 5")),
        ("\\boxed{x = 5, x = 3}", "5"),
        *(
            ("[0,1] \\cup [2,3]", "(0,1) \\cup (2,3)"),
            ("[0, ∞]", "(0, ∞)"),
            ("[0, 1] ∪ 2", "(0, 1) ∪ 2"),
        ),
        ("Paris (perhaps Lyon)", "Lyon"),
        *((f"<answer>{text}</answer>", "Yes") for text in ("Yes; No", "Yes | No")),
        *(("True/False", "True"), ("No/Yes", "No"), ("A/B", "B"), ("A/B/C/D", "D"), ("A; B", "B")),
        *(("1 or 2", "1, 2"), ("\\boxed{\\not\\approx 3}", "3")),
        ("The final answer: 7 + 1 =\n9", "9"),
    ],
)
def test_read_answer_rejects_ambiguous_or_contradictory_answers(completion, right):
    assert read_answer(completion, right) != right


@given(st.integers(-(10**12), 10**12))
def test_number_equals_its_other_notations(number):
    right = str(number)
    for written in (f"{number:,}", f"{number}.0", f"**{number}**", f"= {number}", f"{number:+}"):
        assert read_answer(written, right) == right
    assert read_answer(str(number + 1), right) != right


@given(
    st.lists(st.integers(0, 99), min_size=2, max_size=9), st.sampled_from([", ", " ", ",", "; "])
)
def test_list_equality_ignores_brackets_and_separators(numbers, between):
    right = " ".join(map(str, numbers))
    for opening, closing in ("[]", "()", ("", "")):
        assert equal(opening + between.join(map(str, numbers)) + closing, right, form_of(right))
    assert not equal(right + " 1", right, form_of(right))


@given(
    st.text(alphabet="<>/answerthik ABC12=.,*`\\boxed{}[]\n$()or", max_size=200),
    st.text(max_size=20),
)
@example("<answer>" * 50, "4")
@example(",b)1heh $", "M")
@example("1'234 + \\frac12", "4")
def test_read_answer_handles_any_completion(completion, right):
    for verbatim in (False, True):
        answer = read_answer(completion, right, verbatim=verbatim)
        known = {*completion, *completion.upper(), *"-1 \n≠,{}"}
        assert answer == right or set(answer) <= known


@given(st.text(alphabet="ab <>/", max_size=60))
def test_without_thinking_strips_plain_text(text):
    assert without_thinking(text) == text.strip()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        *(("<think>a</think>b", "b"), ("a</think>b", "b"), ("b<think>a", "b"), ("<think>", "")),
        *(("<think>a<think>b</think>c</think>d", "d"), ("[THINK]a[/THINK]b", "b")),
        *(("<Thinking>a</Thinking> b", "b"), ("a<think>b</think>c", "ac")),
    ],
)
def test_without_thinking_drops_thoughts(text, left):
    assert without_thinking(text) == left


def test_verbatim_answer_keeps_its_markup():
    assert read_answer(" **x** ", "x", verbatim=True) == "**x**"
    assert read_answer("<answer>`x`</answer>", "`x`", verbatim=True) == "`x`"


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        *(("42", Form.NUMBER), ("-1.5", Form.NUMBER), ("0110", Form.WORD), ("Monday", Form.DAY)),
        *(("False", Form.TRUTH), ("wife", Form.WORD), ("82 + 20 - 1", Form.EXPRESSION)),
        *(("1 2", Form.LINE), ("1\n2", Form.GRID), (None, Form.LINE), ("1e1", Form.WORD)),
        *(("1e+3", Form.NUMBER), ("-3/4", Form.FRACTION), ("B", Form.OPTION)),
    ],
)
def test_form_of_classifies_the_correct_answer(answer, form):
    assert form_of(answer) is form


def test_form_of_classifies_a_long_near_expression_as_line():
    assert form_of("11 + " * 400 + "x") is Form.LINE


def test_number_value_limits_exponent():
    assert number_value("1e999") is not None and number_value("1e9999") is None


@pytest.mark.parametrize(
    ("completion", "behind"),
    [
        *(("<answer>4</answer> and so on", "and so on"), ("4 and so on", ""), ("<answer>4", "")),
        *((r"\boxed{4} and", "and"), (r"\boxed{4", ""), ("<ANSWER>4</ANSWER>.", ".")),
    ],
)
def test_behind_answer_returns_trailing_text(completion, behind):
    assert behind_answer(completion) == behind


def examples() -> dict[str, str]:
    """The first literal in the docstring of each pattern."""
    mapping = {}
    for item, text in pairwise(parse(Path(answer_patterns.__file__).read_text()).body):
        match item, text:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(ast.Constant(value=str(about))):
                literal = re.search(r"``(.+?)``(?=[\s,.:]|$)", about)
                mapping[name] = literal[1].replace(r"\n", "\n") if literal else ""
    return mapping


def test_patterns_match_their_examples():
    literals = examples()
    for name, pattern in vars(answer_patterns).items():
        if isinstance(pattern, re.Pattern):
            assert literals.get(name) and pattern.search(literals[name]), name


def test_patterns_exclude_code_points_newer_than_unicode_14():
    known = (chr(code) for code in range(sys.maxunicode + 1))
    assert sum(category(c) != "Cn" and not answer_patterns.NEWER.match(c) for c in known) == 284_278


LOGIC = {
    "metadata": {"variables": ["P", "Q", "R"], "premises": ["P", "(P → Q)"], "source_index": 0}
}


@pytest.mark.parametrize(
    ("conclusion", "reward"),
    [
        *(("Q", 1.0), ("q", 1.0), ("(Q)", 1.0), ("¬¬Q", 1.0), ("~~Q", 1.0), ("Q & Q", 1.0)),
        *(("P", 0.0), ("P ∧ Q", 0.0), ("P ∨ R", 0.0), ("Q ∨ R", 0.0), ("P -> Q", 0.0), ("R", 0.0)),
        *(("Q ∨ ¬Q", 0.0), ("¬Q", 0.0), ("", 0.0), ("Q Q", 0.0), ("(Q", 0.0), ("S", 0.0)),
        *(("Q ∧", 0.0), ("abcdefghijklmnopqr", 0.0), (" ∨ ".join("abcdefghijklmnopqr"), 0.0)),
    ],
)
def test_logic_scorer_requires_all_premises_for_a_conclusion(conclusion, reward):
    assert propositional_logic.score(LOGIC, conclusion) == reward


def test_fit_rejects_contradictory_or_trivial_premises():
    about = LOGIC["metadata"]
    assert propositional_logic.fit(LOGIC)
    for premises in (["P", "¬P"], ["P", "Q"], ["P"]):
        assert not propositional_logic.fit({"metadata": {**about, "premises": premises}})


def test_fit_rejects_ambiguous_or_contradictory_dates():
    task = {"task": "weekday_of_date"}
    assert not fit("calendar_arithmetic", {"question": "Name 05/04/2022.", "metadata": task})
    assert fit("calendar_arithmetic", {"question": "Name 05/14/2022.", "metadata": task})
    days = {"task": "count_business_days", "start_date": "2022-12-01", "end_date": "2023-01-07"}
    assert not fit("calendar_arithmetic", {"question": "How many?", "metadata": days})


@pytest.mark.parametrize(
    ("family", "answer"),
    [("complex_arithmetic", text) for text in ("nan", "NaN + nan i", "0+nanj", "1nan+1j", "nani")]
    + [("coin_flip", "0"), ("coin_flip", "{right}")]
    + [("puzzle24", "1*1*4*6"), ("puzzle24", "{right}")]
    + [("intermediate_integration", "Integral({integrand}, {variable})")]
    + [("game_of_life_halting", text) for text in ("True", "False", "maybe")]
    + [("letter_jumble", "{right} and more"), ("letter_jumble", "{right}")]
    + [("decimal_arithmetic", "{right}"), ("game_of_life", "{right}"), ("figlet_font", "{right}")],
)
def test_source_accepts_only_right_answers_for_lenient_scorers(family, answer):
    spec = replace(load_task_set("reasoning-gym")[0], name=family, levels=("{}",))
    source = open_envs([spec], Allowed(code_execution=[family]))[0][family]
    for seed in range(4):
        task = source.build(0, seed)
        right = str(task.entry["answer"])
        given = answer.format(**task.entry["metadata"], right=right)
        assert source.score(task, f"<answer>{given}</answer>") == float(given == right)


@pytest.mark.parametrize(
    ("family", "right", "wrong"),
    [
        ("boxnet", '["move(box_red, target_red)"]', '["move(target_red, square[0.5, 1.5])"]'),
        ("boxnet", '["move(box_red, target_red)"]', r'["move(\u0074arget_red, square[0.5, 1.5])"]'),
        ("game_of_life", "[[0, 1]]", '[[0,1,"more"]]'),
        ("game_of_life", "[[1,1]]", "[[0,1],[0,1]]"),
        ("decimal_arithmetic", "0.0006335903", "0.00063"),
        ("decimal_arithmetic", "6.3359027e-4", "0"),
        ("decimal_arithmetic", "0.00063359027732", "0.000633"),
    ],
)
def test_answers_that_lenient_scorers_misread_solve_nothing(family, right, wrong):
    answers = {"game_of_life": "[[0,1]]", "decimal_arithmetic": "0.000633590277322"}
    question = "Please solve this problem to a maximum of 12 significant digits, ..."
    entry = {"question": question, "answer": answers.get(family)}
    assert not unsolved(family, entry, right) and unsolved(family, entry, wrong)


@pytest.mark.parametrize("settings", ["{}", '{"precision":6}', '{"precision":100}'])
def test_decimal_answers_of_the_library_and_exact_ones_are_right(settings):
    """The library rounds every step, so its answer may differ in the last digits."""
    spec = replace(load_task_set("reasoning-gym")[0], name="decimal_arithmetic", levels=(settings,))
    source = open_envs([spec], Allowed())[0]["decimal_arithmetic"]
    for seed in range(60):
        task = source.build(0, seed)
        assert source.score(task, f"<answer>{task.entry['answer']}</answer>") == 1.0
        terms = task.entry["question"].splitlines()[-1].removesuffix(" = ?")
        exact = eval(re.sub(r"[\d.]+", r"Fraction('\g<0>')", terms), {"Fraction": Fraction})
        rough = settings == '{"precision":6}'  # beyond the library's tolerance, too
        assert rough or source.score(task, f"<answer>{float(exact):.15f}</answer>") == 1.0


def test_fit_rejects_item_without_an_answer():
    assert not fit("base_conversion", {"answer": "", "question": "Convert", "metadata": {}})


def test_prompt_with_tags_states_one_format():
    question = "Simplify 2/4. Give only the simplified fraction as your final answer."
    assert without_format(question) == "Simplify 2/4."
    for source, task in tasks()["reasoning-gym decimal_arithmetic"]:
        assert "Only reply" not in task.prompt and source.template[:20] in task.prompt
    assert not any(re.search("as your final answer", t.prompt) for _, t in tasks()["tiny lcm"])
