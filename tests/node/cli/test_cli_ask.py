import io
import random
import re
import sys
from pathlib import Path

import pytest

from node.cli.demo import typed_answers
from node.cli.model import differences
from node.errors import NodeError
from node.evaluation import comparison
from node.evaluation.comparison import Disputed, Question, silence
from node.tasks.sandbox.sandbox import sandbox_support
from swarm.common.util import counted
from swarm.groups import Split, TaskRef
from swarm.verification import UNKNOWN_ENV, VerifierError
from tests.node.dashboard import asked

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_environment"


@pytest.fixture
def said(monkeypatch):
    """Return a function that sets the lines of standard input."""
    return lambda *lines: monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))


def test_play_prints_the_reward_at_the_end_of_a_game(terminal, said):
    said("0", "0", "0", "0")
    asked, *answers = terminal.ok("play", "guess", "--seed", "7").splitlines()
    assert answers == ["» higher", "» higher", "reward 0.00"]
    low, high = map(int, re.findall(r"\d+", asked))
    said(*map(str, range(low, high + 1)))
    assert "reward " in terminal.ok("play", "guess", "--seed", "7", "--level", "0")


def test_play_prints_the_reward_so_far_at_end_of_input(terminal, monkeypatch):
    for typed in ("", "n\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        *_, last = terminal.ok("play", "maze", "--seed", "1").splitlines()
        assert last.startswith("reward so far 0.")


def test_play_asks_a_one_turn_family_once(terminal, said):
    said("no", "never")
    shown = terminal.ok("play", "gcd", "--task-set", "tiny", "--seed", "3")
    assert shown.startswith("» Find the Greatest")
    assert shown.endswith("reward 0.00\nanswer read: (none)\nright answer: 3\n")


@pytest.mark.skipif(not sandbox_support().whole, reason="code answers need a sandbox")
def test_play_runs_code_answers_without_configuration(terminal, said):
    said("0")
    shown = terminal.ok("play", "binary_matrix", "--task-set", "reasoning-gym", "--seed", "3")
    assert "taxicab" in shown and "\nreward 0.00\nanswer read: 0\nright answer: 3 2 1" in shown


MATRIX = """[[env]]
name = "rotate_matrix"
source = "reasoning-gym"
version = "0.1.25"
levels = [{ min_n = 2, max_n = 2 }]
template = "{question}"
extract = "answer_tag"
"""


@pytest.mark.parametrize("end", [('"""', "9"), ()], ids=["fence", "end of file"])
def test_play_reads_multiline_answers_between_quotes(terminal, said, end):
    Path("matrix.toml").write_text(MATRIX)
    said('"""', "<answer>", "3 5", "4 4", "</answer>", *end)
    shown = terminal.ok("play", "rotate_matrix", "--task-set", "matrix.toml", "--seed", "3")
    assert "by 810 degrees" in shown and "» 5 4\n» 3 4\nreward 1.00\n" in shown


def test_quoted_answer_keeps_indented_quotes_and_empty_lines(terminal, said):
    lines = ["def f():", '    """', "", '"""']
    assert [*typed_answers(["1\n", '"""\n', *(f"{line}\n" for line in lines), "2\n"])] == [
        "1",
        "\n".join(lines[:-1]),
        "2",
    ]
    said('"""', "0", '"""', "0")
    assert terminal.ok("play", "guess", "--seed", "7").count("» higher") == 2


def test_play_shows_every_turn_of_a_model(terminal):
    for family, task_set in (("bandit", "games"), ("gcd", "tiny")):
        arguments = ("--task-set", task_set, "--model", "tiny-games", "--seed", "3")
        shown = terminal.ok("play", family, *arguments)
        assert shown.startswith("» ") and "\nreward " in shown


def test_play_loads_the_environment_of_a_task_set_or_file(terminal, said):
    task_set = ("--task-set", str(EXAMPLE / "treasure.toml"))
    file = ("--file", str(EXAMPLE / "treasure.py"))
    for named in ((), file):
        said("w")
        assert terminal.ok("play", "treasure", *task_set, *named).startswith("» At house ")
    output = terminal.fails(2, "play", "treasure", *task_set, "--file", "no.py")
    assert output.startswith("error: --file: no.py. There is no such file")
    Path("other.py").write_text("")
    output = terminal.refuses(1, "play", "treasure", *task_set, "--file", "other.py")
    assert "'treasure' is of version" in output and "get the members' file" in output
    assert "evel" not in output, "the error does not mention levels"


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (("guesses",), 2, "FAMILY: guesses. Task set 'games' has: guess, maze"),
        (("guess", "--level", "9"), 2, "--level: 9. Levels begin at 0; this family has 2."),
        (("guess", "--task-set", "game"), 1, "no task set 'game'"),
        (("guess", "--model", "nowhere/at-all"), 2, "policy.model"),
    ],
)
def test_play_reports_bad_arguments_in_one_line(terminal, arguments, status, why):
    assert why in terminal.refuses(status, "play", *arguments)


AT = ("--config", "node")


@pytest.fixture
def trained(node):
    return asked.trained(node.root)


def test_ask_gives_reproducible_answers_and_rewards(terminal, trained):
    output = terminal.json("ask", *AT, "--family", "gcd")
    assert output["family"] == "gcd" and output["prompt"].endswith("Answer:")
    (answer,) = output["answers"]
    assert 0.0 <= answer["reward"] <= 1.0 and answer["unscored"] is None
    assert int(answer["right"]) and answer["read"] is not None
    assert "step-00000010" in answer["model"]
    asked = ("ask", output["prompt"], *AT, "--family", "gcd")
    first, again = (terminal.json(*asked)["answers"] for _ in range(2))
    assert first == again


class Lacking:
    """A verifier with held-out questions only for the families ``having``."""

    def __init__(self, *having):
        self._having = having

    def prompts(self, tasks):
        if any(task.env not in self._having for task in tasks):
            raise VerifierError(UNKNOWN_ENV, "no heldout question in 256 draws")
        return ["?"] * len(tasks)


def test_sampling_skips_families_without_heldout_questions():
    levels = [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    for seed in range(20):
        drawn = comparison.drawn(Lacking("b"), levels, random.Random(seed))
        assert drawn.task.env == "b" and drawn.task.split is Split.HELDOUT
        with pytest.raises(NodeError) as caught:
            comparison.drawn(Lacking("b"), levels[:2], random.Random(seed))
    assert str(caught.value) == (
        "no held-out question can be built: unknown_env: no heldout question in 256 draws. "
        "Type a question, or name another --family."
    )


def test_ask_scores_typed_questions_only_of_known_tasks(terminal, trained, monkeypatch):
    draw = comparison.drawn
    monkeypatch.setattr(comparison, "drawn", lambda *of: draw(*of[:2], random.Random(1)))
    drawn = terminal.json("ask", *AT, "--family", "leg_counting")
    question = drawn["prompt"].removesuffix("\nAnswer:")
    typed = terminal.json("ask", f"  {question} ", *AT)
    assert (typed["prompt"], typed["family"]) == (drawn["prompt"], "leg_counting")
    assert typed["answers"][0]["reward"] is not None

    shown = terminal.ok("ask", "Who are you?", *AT, "--family", "gcd")
    assert "no reward: it was not found among the swarm's tasks" in shown
    assert shown.startswith("question:\n  Who are you?\n")


def test_ask_explains_an_empty_answer(terminal, trained):
    asked = ("ask", "How many legs do two cats have?", *AT, "--base")
    *_, base = terminal.json(*asked)["answers"]
    assert base["text"] == "" and "the most probable completion is empty" in base["empty"]
    shown = terminal.ok(*asked)
    assert f"tiny:\n  ({base['empty']})\n" in shown and "--temperature 1" in shown
    drawn = Question("3 + 4", TaskRef("gcd", 0, 1, Split.HELDOUT))
    assert "without QUESTION" not in (silence(" \n", drawn) or "")
    assert silence("", drawn, 1.0) and silence("7", drawn) is None


def test_ask_shows_base_and_policy_answers(terminal, trained):
    output = terminal.json("ask", *AT, "--base", "--temperature", "0.7")
    assert [Path(answer["model"]).name for answer in output["answers"]] == ["step-00000010", "tiny"]
    assert "\nstep-00000010:\n" in terminal.ok("ask", *AT, "--base") and "\ntiny:\n" in terminal.out
    assert terminal.out.count("reward ") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--family", "sums"), "This swarm has: chain_sum"),
        ((" ",), "Type a question"),
        (("why " * 3000,), "Ask a shorter question"),
    ],
)
def test_ask_reports_bad_arguments(terminal, trained, arguments, said):
    assert said in terminal.fails(2, "ask", *arguments, *AT)


def test_compare_gives_reproducible_results(terminal, trained):
    asked = ("compare", "node", "tiny", "--tasks", "20", "--samples", "2")
    first, again = (terminal.json(*asked) for _ in range(2))
    assert first == again
    assert first["tasks"] == 20 == sum(part["tasks"] for part in first["families"].values())
    assert first["gain"] == pytest.approx(first["reward_second"] - first["reward_first"])
    gaps = [abs(row["second"] - row["first"]) for row in first["disputed"]]
    assert gaps == sorted(gaps, reverse=True)
    assert all(row["prompt"] for row in first["disputed"])

    shown = terminal.ok(*asked, "--show", "2")
    assert (f"they differ on {counted(len(gaps), 'task')};" if gaps else "differ") in shown
    assert "B − A" in shown


def test_comparison_table_shows_a_long_prompt_in_full():
    prompt = f"State the final answer to the following arithmetic problem: {'17 + 4 - ' * 12}5 ="
    row = Disputed(TaskRef("sums", 0, 1, Split.HELDOUT), prompt, 0.0, 1.0)
    table = differences([row], 5)
    assert table.title == "they differ on 1 task; the largest differences:"
    assert list(table.columns[1].cells) == [prompt]


def test_model_has_no_gain_over_itself(terminal, trained):
    asked = ("compare", "tiny", "tiny", "--tasks", "16", "--samples", "1", *AT)
    output = terminal.json(*asked)
    assert (output["gain"], output["margin"], output["disputed"]) == (0.0, 0.0, [])
    assert "no significant difference" in terminal.ok(*asked)


def test_compare_reports_invalid_models(terminal, trained, monkeypatch):
    assert terminal("compare", "node", "no-such-model/at-all") in (1, 2)
    assert "no-such-model/at-all" in terminal.err
    Path("empty").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("node.cli.model.model_of", pytest.fail)
        assert "config.json" in terminal.fails(2, "compare", "tiny", "empty", *AT)
        assert "This swarm has" in terminal.fails(2, "ask", "--family", "sums", *AT)
    trained.manifest.unlink()
    assert "swarm-node join" in terminal.fails(1, "compare", "node", "tiny")
