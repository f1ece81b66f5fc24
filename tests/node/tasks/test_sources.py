import importlib.metadata
import json
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from node.errors import TaskSetError
from node.tasks.sandbox import sandbox
from node.tasks.sources import environments, plugins
from node.tasks.sources.jsonl import file_digest
from node.tasks.sources.reasoning_gym import MOST_CHARACTERS, ReasoningGym
from node.tasks.task import Task
from node.tasks.task_set import Allowed, load_task_set, open_envs
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import EnvSpec
from swarm.groups import Split, TaskRef
from swarm.verification import VerifierError
from tests.node.packages import declare
from tests.node.programs import ended, newest_worker, python, until

PAIRS = [(f"{a} over {b}?", rf"\frac{{{a}}}{{{b}}}") for a in range(1, 33) for b in (4, 8)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "halves.jsonl"
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in PAIRS]
    path.write_text("\n".join(lines) + "\n\n")
    return path


def spec(path: Path, *matches: str) -> EnvSpec:
    levels = tuple(json.dumps({"match": m}, separators=(",", ":")) for m in matches)
    return EnvSpec("halves", "jsonl", file_digest(path), levels, "{question}", "text")


def test_jsonl_lines_are_tasks_and_splits_do_not_overlap(file):
    source = open_envs([spec(file, "exact")], Allowed({"halves": file}))[0]["halves"]
    assert {source.build(0, seed).prompt for seed in range(400)} <= {q for q, _ in PAIRS}
    assert not source.questions.evaluates_text
    train, held_out = ({source.build(0, s, split).prompt for s in range(400)} for split in Split)
    assert train and held_out and not train & held_out


@pytest.mark.parametrize("source", ["jsonl", "environment"])
@pytest.mark.parametrize("name", ["moved.py", "folder", "file.jsonl/moved"])
def test_error_names_the_missing_file(tmp_path, source, name):
    path = tmp_path / name
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.jsonl").touch()
    one = EnvSpec("halves", source, "0" * 64, ('{"match":"exact"}',), "{question}", "text")
    verifier = Verifier([one], Allowed({"halves": path}), outside=False)
    with verifier, pytest.raises(TaskSetError, match=f"file '{path}' cannot be read: [A-Z]"):
        verifier.start()


@pytest.mark.parametrize("key", ["prompt", "answer"])
def test_error_names_line_with_a_surrogate(tmp_path, key):
    path = tmp_path / "halves.jsonl"
    good = {"prompt": "1 / 2?", "answer": "0.5"}
    path.write_text("\n".join(map(json.dumps, [good, {**good, key: "half \ud83d"}])))
    with pytest.raises(TaskSetError, match=f"line 2: {key} has a lone surrogate"):
        open_envs([spec(path, "exact")], Allowed({"halves": path}))


def test_numeric_match_preloads_its_modules():
    script = """
import sys
from node.tasks.sources.jsonl import JsonLines, _equal_numbers
JsonLines([("?", "x")], ["numeric"])
before = {*sys.modules}
assert _equal_numbers("2+x", "x+2") and _equal_numbers("x+y=1", "y=1-x")
print(*{*sys.modules} - before)
"""
    assert python(script, check=True).stdout.strip() == ""


def test_match_modes_compare_text_value_or_every_character(file):
    specs = [spec(file, "exact", "numeric", "verbatim")]
    tasks = [TaskRef("halves", level, 7) for level in range(3)]
    with Verifier(specs, Allowed({"halves": file}), outside=True) as verifier:
        (question,) = verifier.prompts(tasks[:1])
        gold = dict(PAIRS)[question]
        top, bottom = (int(n) for n in gold.removeprefix(r"\frac{").rstrip("}").split("}{"))
        texts = [gold, f" {gold} ", f"{top}/{bottom}", str(top / bottom), "9", "", "no $ number"]
        exact, numeric, verbatim = (verifier.verify(task, texts) for task in tasks)
    assert exact.prompt == numeric.prompt == verbatim.prompt == question
    assert exact.rewards == (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    assert numeric.rewards == (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    assert verbatim.rewards == (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("1,000", "1000", "1"),
        ("-3", "-3.0", "3"),
        ("50\\%", "50\\%", "5"),
        ("2^{10}", "1024", "20"),
        ("\\sqrt{16}", "4", "16"),
        ("0.1", "1/10", "0.11"),
        ("1e3", "1,000", "3"),
        *(("x = 12", "12", "4, 8"), ("x = 5", "x = 5 \\text{ boxes}", "x + 7 = 12")),
        ("25 000", "25 000", "0"),
        ("2026-11-28", "2026-11-28", "1987"),
        ("10:30", "10:30", "1/3"),
        ("0x1f", "0X1F", "0"),
        ("50", "\\frac{100}{2}", "\\int_0^{10} x dx"),
        ("1", "1.0", "\\lim_{x \\to 0} \\frac{\\sin x}{x}"),
        ("55", "55", "\\frac{10 \\cdot 11}{2}"),
        ("55", "55", "\\binom{11}{2}"),
        ("1024", "1,024", "2^{10}"),
        ("2\\ln 2", "\\ln 4", "\\int_1^4 \\frac{1}{x} dx"),
        ("\\frac{\\sqrt{3}}{2}", "\\sqrt{3}/2", "\\sin 60^\\circ"),
        *(("Table", "table", "elbaT"), ("\\text{east}", "east", "s*e*a*t")),
        *(("12 apples", "12", "21"), ("x + y", "y + x", "x - y"), ("ab+bc", "bc+ab", "ab-bc")),
        *(("0.001", "1/1000", "0.0010001"), ("x^2", "x^{2}", "x^3"), ("\\infty", "infinity", "8")),
        ("\\sqrt2", "\\sqrt{2}", "2"),
        ("x^2 + x", "x + x^2", "x^2 + x + (x + y + z)^{32} - (x + y + z)^{32}"),
        *(("5/6", right, "1/2 + 1/3") for right in ("10/12", "\\frac12 + \\frac13 = \\frac56")),
        ("5/6", "\\boxed{\\frac56}", "\\boxed{\\frac12+\\frac13}"),
        ("\\frac{10}{3}", "\\frac{20}{6}", "\\frac{5\\cdot 4}{2\\cdot 3}"),
        *(("\\frac14", "0.25", wrong) for wrong in ("\\left(\\frac12\\right)^2", "2^{-2}")),
        *(("\\frac{\\pi}{4}", "\\frac{1}{4}\\pi", "\\pi"), ("x-1", "-1+x", "x+1")),
        *(("01/02/2024", "01/02/2024", "02/04/2024"), ("10-20", "10-20", "20-30")),
        *(("2 - 1", "2 - 1", "3 - 2"), ("555-1234", "555-1234", "556-1235"), ("1-2", "1-2", "-1")),
        *(("192.168.0.1", "192.168.0.1", "192.168.0.2"), ("\\text{H2O}", "H2O", "HO2")),
        *(("H2O", "h2o", "HO2"), ("CO2", "co2", "C2O"), ("B12", "b12", "12B"), ("e4", "E4", "4e")),
        *(("2x", "2x", "x2"), ("x2", "x2", "2x"), ("1e3", "1000", "e3"), ("3-2x", "-2x+3", "2x-3")),
        *(("2, 2, 3", "3, 2, 2", "2, 3"), ("1, 1", "1, 1", "1"), ("2, 3", "3 and 2", "2, 3, 3")),
        *(("-3, 3", right, "3") for right in ("3, -3", "\\pm 3", "$x=3$ and $x=-3$")),
        *(
            ("1{,}000", "1000", "1"),
            ("\\{1, 2\\}", "\\{2, 1, 1\\}", "1"),
            ("1,234 m", "1234 m", "1, 234"),
        ),
        ("\\sqrt{2}", "x=\\sqrt2", "\\boxed{x=-\\sqrt2, x=\\sqrt2}"),
        *(("90^\\circ", "90°", "9°"), ("45^{\\circ}", "\\boxed{45°}", "45^2")),
        *(("\\sqrt{2}", "√2", "2"), ("2\\sqrt{3}", "x = 2√3", "√6"), ("x^2+1", "x² + 1", "2x + 1")),
        *(
            ("\\sqrt{x+1}", "√(x+1)", "√x + 1"),
            ("x³", "x^3", "x^2"),
            ("4", "4", "√16"),
            ("9", "9", "3²"),
            ("(-\\infty, 3]", "(-∞, 3]", "(-∞, 3)"),
            ("R U R'", "r u r'", "U R R'"),
            ("go up", "Go up.", "up go"),
            *((three_halves, "1\\frac{1}{2}", "11/2") for three_halves in ("1 1/2", "1  1/2")),
        ),
    ],
)
def test_numeric_match_ignores_the_notation(tmp_path, answer, right, wrong):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "?", "answer": answer}))
    source = open_envs([spec(path, "numeric")], Allowed({"halves": path}))[0]["halves"]
    task = Task(TaskRef("halves", 0, 0), "?", source.questions.draw(0, 0))
    assert source.score(task, right) == 1.0
    assert source.score(task, wrong) == 0.0


@pytest.mark.parametrize("answer", ["6 * 7 = 42\n#### 42", "<answer>42</answer>", "\\boxed{42}"])
def test_jsonl_rejects_answer_with_completion_marks(tmp_path, answer):
    """Such an answer would equal only an identical completion."""
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "?", "answer": answer}))
    assert open_envs([spec(path, "verbatim")], Allowed({"halves": path}))[0]
    for match in ("exact", "numeric"):
        with pytest.raises(TaskSetError, match="has the mark"):
            open_envs([spec(path, match)], Allowed({"halves": path}))


def test_changed_file_is_refused_and_makes_verifier_unavailable(file):
    agreed, allowed = [spec(file, "exact")], Allowed({"halves": file})
    with Verifier(agreed, allowed, outside=False) as verifier:
        verifier.start()
        file.write_text(file.read_text() + json.dumps({"prompt": "more", "answer": "1"}))
        with pytest.raises(TaskSetError, match="get the members' file"):
            open_envs(agreed, allowed)
        worker = newest_worker()
        worker.kill()
        until(lambda: ended(worker))
        with pytest.raises(VerifierError, match="get the members' file") as refusal:
            verifier.verify(TaskRef("halves", 0, 1), ["1"])
    assert refusal.value.reason == "unavailable"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("PAR1\udc80", "save this Parquet file as JSON lines in UTF-8"),
        ("\x1f\udc8b", "save this compressed file as JSON lines"),
        ("", "has no line"),
        ("nonsense", "line 1"),
        ('{"prompt": "a"}', "line 1.*answer"),
        ('{"prompt": "a", "answer": true}', "line 1.*string"),
        ('{"prompt": "a", "answer": " "}', "line 1: the answer is empty.*remove the line"),
        ("[1]", "line 1"),
    ],
)
def test_error_names_line(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(TaskSetError, match=message):
        open_envs([spec(path, "exact")], Allowed({"halves": path}))[0]


def test_jsonl_reads_numbers_as_they_are_written(tmp_path):
    path = tmp_path / "numbers.jsonl"
    path.write_text("".join(f'{{"prompt": {n}, "answer": {n}.50}}\n' for n in range(40)))
    source = open_envs([spec(path, "exact")], Allowed({"halves": path}))[0]["halves"]
    task = source.build(0, 1)
    assert (
        task.entry["answer"] == f"{task.prompt}.50"
        and source.score(task, f"{task.prompt}.5") == 1.0
    )


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "with a byte-order mark"])
def test_jsonl_accepts_unicode_line_separators_and_a_bom(tmp_path, mark):
    path = tmp_path / "halves.jsonl"
    rows = [{"prompt": f"{n}\u2028{n}\u2029\x85?", "answer": "1"} for n in range(16)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text(mark + "\r\n".join(lines), encoding="utf-8", newline="")
    source = open_envs([spec(path, "exact")], Allowed({"halves": path}))[0]["halves"]
    assert "\u2028" in source.build(0, 1).prompt


@pytest.mark.parametrize("level", ["{}", '{"match":"close"}', '{"match":"exact","x":1}'])
def test_level_must_name_a_match_mode(file, level):
    wrong = EnvSpec("halves", "jsonl", file_digest(file), (level,), "{question}", "text")
    with pytest.raises(TaskSetError, match="match = 'exact'"):
        open_envs([wrong], Allowed({"halves": file}))[0]


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "own_task"
SPECS = load_task_set(str(EXAMPLE / "sorting.toml"))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"]["swarm_node.tasks"].items()
    monkeypatch.syspath_prepend(EXAMPLE)
    declare(monkeypatch, tmp_path, name, target)


@pytest.mark.usefixtures("installed")
def test_worker_samples_and_scores_the_example():
    task = TaskRef("sorting", 1, 5)
    with Verifier(SPECS, outside=True) as verifier:
        assert verifier.start() == ("sorting",)
        (prompt,) = verifier.prompts([task])
        right = "".join(sorted(word for word in prompt.split() if word.isdigit()))
        scores = verifier.verify(task, [right, right[:2], right * 2, right[::-1], ""])
    assert len(right) == 4 and scores.prompt == prompt
    assert scores.rewards == (1.0, 0.5, 0.5, 0.0, 0.0)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": "2"}, "of version '2', installed is '1'"),
        ({"levels": ("{}",)}, r"'sorting': sorting_task:Sorting fails: .*count"),
    ],
)
def test_error_names_wrong_version_or_invalid_settings(change, told):
    with pytest.raises(TaskSetError, match=told):
        open_envs([replace(SPECS[0], **change)], Allowed())[0]


def test_verifier_warns_about_env_without_its_package(caplog):
    with Verifier(SPECS, outside=True) as verifier:
        assert verifier.start() == ()
    assert "env 'sorting' is not available here: install its package" in caplog.text


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('no license')", r"odd:Odd fails: SystemExit\('no license'\)"),
        ("self.levels = None", "odd:Odd has levels = None, not 2"),
        ("self.levels = 3", "odd:Odd has levels = 3, not 2"),
        ("self.levels = len({}['levels'])", r"odd:Odd fails: KeyError\('levels'\)"),
    ],
)
def test_error_names_package_that_fails_to_open(tmp_path, monkeypatch, code, why):
    head = "class Odd:\n    version, evaluates_text = '1', False\n    def __init__(self, levels):\n"
    (tmp_path / "odd.py").write_text(f"{head}        {code}\n")
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    declare(monkeypatch, tmp_path, "odd", "odd:Odd")
    with pytest.raises(TaskSetError, match=why):
        open_envs([replace(SPECS[0], name="odd", levels=("{}", "{}"))], Allowed())


@pytest.mark.parametrize(
    ("group", "source"), [(plugins.GROUP, "plugin"), (environments.GROUP, "environment")]
)
def test_error_names_package_that_exits(tmp_path, monkeypatch, group, source):
    (tmp_path / "ends_here.py").write_text("raise SystemExit('no license')\n")
    declare(monkeypatch, tmp_path, "ends", "ends_here:Ends", group)
    spec = EnvSpec("ends", source, "1", ("{}",), "{question}", "text")
    with pytest.raises(TaskSetError, match=r"'ends': ends_here:Ends fails: SystemExit"):
        open_envs([spec], Allowed())


def test_package_must_declare_whether_it_evaluates_text(tmp_path, monkeypatch):
    silent = "class Silent:\n    version, levels = '1', 1\n    def __init__(self, _): ...\n"
    (tmp_path / "silent.py").write_text(silent)
    declare(monkeypatch, tmp_path, "silent", "silent:Silent")
    with pytest.raises(TaskSetError, match="evaluates_text"):
        open_envs([replace(SPECS[0], name="silent")], Allowed())[0]


class Finder:
    """Finds a module that is on no import path, like an editable installation."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None):
        return spec_from_file_location(name, self._path) if name == self._path.stem else None


@pytest.mark.parametrize("group", [plugins.GROUP, environments.GROUP])
def test_sandbox_can_read_editable_packages(group, tmp_path, monkeypatch):
    module = tmp_path / "brought_along.py"
    module.write_text("class Brought: ...\n")
    points = {group: [EntryPoint("brought", "brought_along:Brought", group)]}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder(module)])
    monkeypatch.setattr(sandbox, "entry_points", lambda group: points.get(group, []))
    assert str(module) in sandbox.readable()


def test_answer_above_the_length_limit_scores_zero():
    version = importlib.metadata.version("reasoning-gym")
    one = EnvSpec("chain_sum", "reasoning-gym", version, ("{}",), "{question}", "text")
    source = open_envs([one], Allowed())[0]["chain_sum"]
    right = source.build(0, 3).entry["answer"]
    gym = ReasoningGym.open(one, [{}])
    assert gym.score(source.build(0, 3).entry, right) == 1.0
    assert gym.score(source.build(0, 3).entry, right.zfill(MOST_CHARACTERS + 1)) == 0.0
