import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from os import pathsep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import TaskSetError
from node.tasks.task import ScoringError, TaskError, TaskSource, draw_number, split_of
from node.tasks.task_set import Allowed, load_task_set, open_envs
from protocol.manifest import EnvSpec
from swarm.groups import Split
from tests.node.programs import python

GCD = EnvSpec("gcd", "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")
SHIPPED = ("tiny", "reasoning-gym", "starter")

HEAD = 'source = "reasoning-gym"\nversion = "0.1.25"\nextract = "text"\ntemplate = "{question}"\n'


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


def test_shipped_task_sets_open_and_include_the_nine_paper_tasks():
    for name in SHIPPED:
        specs = load_task_set(name)
        opened = open_envs(specs, Allowed(code_execution=["binary_matrix"]))[0]
        assert set(opened) == {spec.name for spec in specs}
    nine = {"arc_1d", "basic_arithmetic", "base_conversion", "bf", "binary_matrix"}
    nine |= {"calendar_arithmetic", "decimal_arithmetic", "fraction_simplification"}
    names = {spec.name for spec in load_task_set("reasoning-gym")}
    assert names == nine | {"propositional_logic"}


def test_top_level_keys_are_defaults_and_levels_are_canonical_json(written):
    gcd = '[[env]]\nname="gcd"\nlevels=[{ min_value = 1, max_value = 9 }]\n'
    lcm = '[[env]]\nname="lcm"\nlevels=[{}, {}]\ntemplate="Q: {question}"\n'
    gcd, lcm = load_task_set(written(HEAD + gcd + lcm))
    assert (gcd.template, lcm.template) == ("{question}", "Q: {question}")
    assert (gcd.levels, len(lcm.levels)) == (('{"max_value":9,"min_value":1}',), 2)


def test_env_version_is_its_file_digest(tmp_path, written):
    content = json.dumps({"prompt": "1+1", "answer": "2"}).encode()
    (tmp_path / "sums.jsonl").write_bytes(content)
    path = written(
        'extract="text"\ntemplate="{question}"\n[[env]]\nname="sums"\nsource="jsonl"\n'
        'file="sums.jsonl"\nlevels=[{match="exact"}]\n'
    )
    assert load_task_set(path)[0].version == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no toml", "is not TOML"),
        (HEAD, "has no env"),
        (HEAD + "[[env]]\nlevels=[{}]", "needs a name"),
        (HEAD + '[[env]]\nname="gcd"', "'gcd' .* lacks levels"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\nmax=3', "unknown max; keys are"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=7', "'gcd'"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[]', "levels"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[3]', "level"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\nextract="regex"', "extract"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\nsource="web"', "source"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\ntemplate="?"', "question"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\n[[env]]\nname="gcd"\nlevels=[{}]', "twice"),
        (HEAD + '[[env]]\nname="x"\nlevels=[{}]\nfile="none.jsonl"', "cannot be read"),
    ],
)
def test_bad_task_set_raises_one_line_error(written, text, message):
    with pytest.raises(TaskSetError, match=message) as refusal:
        load_task_set(written(text))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("teeny", "name one of games, reasoning-gym, starter, starter-games, tiny"),
        ("nowhere/mine.toml", r"nowhere/mine\.toml"),
    ],
)
def test_error_lists_known_task_sets_or_names_the_missing_file(name, told):
    with pytest.raises(TaskSetError, match=told):
        load_task_set(name)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(GCD, name="gdc"), "'gdc' is not a family of reasoning-gym"),
        (replace(GCD, version="0.1.1"), r"pip install reasoning-gym==0\.1\.1"),
        (replace(GCD, levels=('{"max":3}',)), "'gcd' level 0: setting 'max' = 3: no such"),
        (replace(GCD, levels=('{"min_value":-3}',)), "'gcd' level 0"),
        (replace(GCD, levels=('{"seed":3}',)), "'gcd' level 0"),
        (replace(GCD, name="spell_backward", levels=('{"data_file":"/etc/passwd"}',)), "data_file"),
        (replace(GCD, name="composite", levels=('{"datasets":[{"name":"gcd"}]}',)), "composite"),
    ],
)
def test_open_envs_rejects_unsupported_settings(spec, message):
    with pytest.raises(TaskSetError, match=message):
        open_envs([spec], Allowed(code_execution=["composite"]))[0]


def test_open_envs_skips_env_without_its_file_or_package():
    sums = EnvSpec("sums", "jsonl", "0" * 64, ('{"match":"exact"}',), "{question}", "text")
    theirs = EnvSpec("theirs", "plugin", "1", ("{}",), "{question}", "text")
    assert set(open_envs([GCD, sums, theirs], Allowed())[0]) == {"gcd"}


def test_list_based_family_accepts_the_largest_seed():
    source = open_envs([replace(GCD, name="list_functions")], Allowed())[0]["list_functions"]
    assert source.build(0, (1 << 63) - 1).prompt


def test_partial_credit_requires_the_level_setting():
    spec = replace(GCD, name="spell_backward", levels=("{}", '{"partial_credit":true}'))
    source = open_envs([spec], Allowed())[0]["spell_backward"]
    whole, partial = source.build(0, 3), source.build(1, 3)
    almost = str(whole.entry["answer"])[:-1] + "?"
    assert whole.prompt == partial.prompt and source.score(whole, almost) == 0.0
    assert 0.0 < source.score(partial, almost) < 1.0


REBUILD = """
import json, sys
from node.tasks.task_set import Allowed, load_task_set, open_envs
from swarm.groups import Split
sources = {
    (task_set, name): source
    for task_set in ("tiny", "reasoning-gym", "starter")
    for name, source in open_envs(load_task_set(task_set), Allowed())[0].items()
}
wanted = [
    (key, level, seed, split)
    for key, source in sources.items()
    for level in range(source.levels)
    for seed in (0, 1, 2**62 + 11, 2**63 - 1)
    for split in Split
]
if sys.argv[1] == "backwards":
    wanted.reverse()
built = {}
for key, level, seed, split in wanted:
    task = sources[key].build(level, seed, split)
    answer = str(task.entry["answer"])
    scored = task.prompt, answer, sources[key].score(task, answer)
    built[f"{key} {level} {seed} {split}"] = scored
print("\\n" + json.dumps(built))
"""


class Numbers:
    levels = 1
    evaluates_text = False

    def __init__(self, bound: int) -> None:
        self._bound = bound

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        return {"question": str(number % self._bound)}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        return float(answer)


def numbers(bound: int = 10_000) -> TaskSource:
    return TaskSource("numbers", "{question}!", "text", Numbers(bound))


@pytest.fixture(scope="module")
def shipped():
    opened = {name: open_envs(load_task_set(name), Allowed())[0] for name in SHIPPED}
    return {(name, env): source for name in SHIPPED for env, source in opened[name].items()}


def rebuilt(hash_seed: str, order: str) -> dict[str, list[Any]]:
    env = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": pathsep.join(sys.path)}
    done = python(REBUILD, order, env=env, check=True)
    # One of the families prints while it builds.
    return json.loads(done.stdout.splitlines()[-1])


def test_shipped_tasks_do_not_depend_on_process_order_or_hash_seed():
    forwards, backwards = rebuilt("1", "forwards"), rebuilt("77", "backwards")
    assert len(forwards) > 100 and forwards == backwards


@given(seed=st.integers(0, (1 << 63) - 1))
@settings(max_examples=25, deadline=None)
def test_shipped_tasks_match_the_requested_split(shipped, seed):
    for source in shipped.values():
        for split in Split:
            task = source.build(0, seed, split)
            assert split_of(task.entry["question"]) is split
            assert task.entry["question"] in task.prompt


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 255))
def test_draw_number_fits_63_bits(seed, attempt):
    assert 0 <= draw_number(seed, attempt) < 1 << 63


def test_split_holds_out_one_in_eight_and_seeds_vary_questions():
    held_out = sum(split_of(str(n)) is Split.HELDOUT for n in range(8000))
    assert 900 < held_out < 1100
    assert len({numbers(1 << 60).build(0, seed).prompt for seed in range(500)}) == 500


def test_error_names_env_without_enough_questions():
    here = split_of("0")
    elsewhere = next(split for split in Split if split is not here)
    assert numbers(bound=1).build(0, 1, here).prompt == "0!"
    with pytest.raises(TaskError, match=rf"'numbers' level 0: no {elsewhere.value} question"):
        numbers(bound=1).build(0, 1, elsewhere)


@pytest.mark.parametrize("entry", [{}, {"question": 3}, {"question": "cut \ud83d"}])
def test_error_names_env_with_a_non_text_question(entry):
    class Forgetful(Numbers):
        def draw(self, level: int, number: int) -> Mapping[str, Any]:
            return entry

    source = TaskSource("numbers", "{question}!", "text", Forgetful(1))
    with pytest.raises(TaskError, match="'numbers' level 0 cannot draw"):
        source.build(0, 1)


@pytest.mark.parametrize(("level", "seed"), [(1, 0), (-1, 0), (0, -1), (0, 1 << 63)])
def test_build_rejects_invalid_level_or_seed(level, seed):
    with pytest.raises(TaskError, match="numbers"):
        numbers().build(level, seed)


@pytest.mark.parametrize("reward", ["1.5", "-0.1", "nan", "inf"])
def test_score_rejects_reward_outside_zero_to_one(reward):
    source = numbers()
    with pytest.raises(ScoringError, match="numbers"):
        source.score(source.build(0, 0), reward)
