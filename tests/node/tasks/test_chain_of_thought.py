from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.recipe.corpus import WORKING
from node.errors import TaskSetError
from node.tasks.chain_of_thought import FAMILIES, MOST_STEPS, Bill, Walk
from node.tasks.task_set import (
    Allowed,
    level_settings,
    load_task_set,
    misnamed,
    open_envs,
    overview,
    summary,
)
from protocol.manifest import EnvSpec, canonical_json
from swarm.groups import Split

SPECS = load_task_set("working")
SOURCES = open_envs(SPECS, Allowed())[0]
PLACES = [(name, level) for name, source in SOURCES.items() for level in range(source.levels)]
numbers = st.integers(0, (1 << 63) - 1)


def scored(name: str, state: object, answer: str, partial=False) -> float:
    easiest = {key: allowed.start for key, allowed in FAMILIES[name].settings.items()}
    questions = FAMILIES[name]([easiest])
    if isinstance(state, str):  # written as its two numbers
        state = type(questions.draw(0, 0)["state"])(*map(int, state.split()))
    return questions.score({"state": state, "partial_credit": partial}, answer)


@pytest.mark.parametrize(
    ("name", "state", "right"),
    [
        ("adding", (7, 15, 4), ["7+15=22 22+4=26", "4+15=19 7+19=26", "  15+4=19\n19+7=26 "]),
        ("climbing", "4 19", ["8 16 19", "9 14 19", "5 6 7 8 16 17 19"]),
        ("halving", "20 3", ["10 7 6 3", "19 12 6 3", "13 6 3"]),
        ("paying", Bill(27, (1, 2, 5, 20)), ["27-20=7 7-5=2 2-2=0", "27-5=22 22-20=2 2-1=1 1-1=0"]),
        ("waiting", "460 555", ["8:40 9:10 9:15", "7:45 7:50 8:20 8:50 9:00 9:05 9:15"]),
        ("walking", Walk((1, 1), (3, 2), frozenset()), ["c2 c3 d3", "b3 c3 d3", "b1 c1 d1 d2 d3"]),
    ],
)
def test_all_valid_solutions_score(name, state, right):
    for answer in right:
        assert scored(name, state, answer) == 1.0, answer


WRONG = [
    ("adding", (7, 15, 4), "7+15=23 23+4=27; 7+15=22; 7+7=14 14+4=18; 26; 7+15=022 22+4=26"),
    ("climbing", "4 19", "8 16 20; 10 19; 19; 8 16 18; 08 16 19; 3 6 12 17 19"),
    ("halving", "20 3", "10 5 3; 10 7 6 2 3; 20 10 7 6 3; 10 7 6 3 2"),
    ("paying", Bill(27, (1, 2, 5, 20)), "27-10=17 17-17=0; 27-20=7 7-5=2; 7-5=2 2-2=0"),
    ("waiting", "460 555", "8:40 9:15; 8:40 9:10 9:20; 9:15; 8:40 9:10 09:15; 8:40 9:10 8:75"),
    (
        "walking",
        Walk((1, 1), (3, 2), frozenset({(2, 1)})),
        "c2 c3 d3; c3 d3; b3 c3; b2 b3 c3 d3; b3 c3 d3 d3; bb c3 d3",
    ),
]


@pytest.mark.parametrize(("name", "state", "wrong"), WRONG)
def test_one_wrong_step_fails_the_answer(name, state, wrong):
    for answer in ["", "answer", *wrong.split("; ")]:
        assert scored(name, state, answer) == 0.0, answer


@pytest.mark.parametrize(("name", "level"), PLACES)
@given(number=numbers)
def test_reference_answer_scores(name, level, number):
    questions = SOURCES[name].questions
    drawn = questions.draw(level, number)
    assert questions.score(drawn, drawn["answer"]) == 1.0 and questions.draw(level, number) == drawn


@pytest.mark.parametrize("name", SOURCES)
@given(text=st.text(max_size=60))
def test_scorer_handles_any_text(name, text):
    questions = SOURCES[name].questions
    assert questions.score(questions.draw(0, 1), text) in (0.0, 1.0)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    "text", ["9" * 100_000, "1 " * 100_000, "٣+٤=٧", "1+1=2 " * 50_000, "a1" * 9999]
)
def test_long_answer_earns_no_reward(name, text):
    questions = SOURCES[name].questions
    assert questions.score(questions.draw(3, 1), text) == 0.0


def test_answer_above_the_step_limit_scores_zero():
    there_and_back = "b2 b1 " * MOST_STEPS
    assert scored("walking", Walk((1, 0), (1, 1), frozenset()), "b2") == 1.0
    assert scored("walking", Walk((1, 0), (1, 1), frozenset()), there_and_back + "b2") == 0.0


def test_partial_credit_stops_at_the_first_wrong_step():
    bill = Bill(27, (1, 2, 5, 20))
    answers = {"27-20=7 7-5=2 2-2=0": 1.0, "27-20=7 7-5=2": 0.5, "27-20=7 7-5=3": 0.25, "": 0.0}
    for answer, reward in {**answers, "x 27-20=7": 0.0}.items():
        assert scored("paying", bill, answer, partial=True) == reward


@pytest.mark.parametrize(("name", "level"), PLACES)
def test_level_has_many_questions_per_split_and_several_solutions(name, level):
    source = SOURCES[name]
    for split in Split:
        tasks = [source.build(level, seed, split) for seed in range(60)]
        assert len({task.prompt for task in tasks}) > 20
    state = source.questions.draw(level, 5)["state"]
    ways = {" ".join(source.questions.way(Random(seed), state)) for seed in range(40)}
    assert len(ways) > 2


@pytest.mark.parametrize("name", SOURCES)
def test_hardest_allowed_level_has_correct_reference_answers(name):
    family = FAMILIES[name]
    hardest = family([{key: allowed.stop - 1 for key, allowed in family.settings.items()}])
    for number in range(5):
        drawn = hardest.draw(0, number)
        assert hardest.score(drawn, drawn["answer"]) == 1.0


@pytest.mark.parametrize("name", SOURCES)
def test_answer_length_grows_with_the_level(name):
    source = SOURCES[name]
    lengths = [
        fmean(len(source.questions.draw(level, number)["answer"]) for number in range(200))
        for level in range(source.levels)
    ]
    assert lengths == sorted(lengths) and 10 <= lengths[0] <= 30 and 70 <= lengths[-1] <= 220


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "most"),
        ({"most": 30, "least": 3}, "most"),
        ({"most": 3}, "24 to 1999"),
        ({"most": 30.0}, "24 to 1999"),
        ({"most": True}, "24 to 1999"),
        ({"most": 30, "partial_credit": 1}, "true or false"),
    ],
)
def test_open_envs_rejects_invalid_settings(settings, told):
    spec = EnvSpec("paying", "plugin", "1", (canonical_json(settings),), "{question}", "text")
    with pytest.raises(TaskSetError, match=told):
        open_envs([spec], Allowed())[0]


def test_experiment_uses_the_easier_levels():
    assert {source.levels for source in WORKING.open().values()} == {2}
    assert all(len(level_settings(spec)) == 4 for spec in SPECS)


def test_summary_names_few_families_and_counts_many():
    assert summary(SPECS[:5], Allowed()) == overview(SPECS[:5], Allowed())[0]
    count = sum(len(spec.levels) for spec in SPECS)
    told = f"this swarm's tasks here: {len(SPECS)} families with {count} levels, of "
    assert summary(SPECS, Allowed()) == f"{told}the task set working"
    assert summary(SPECS[::-1], Allowed()) == f"{told}swarm-node"
    risky = EnvSpec("puzzle24", "reasoning-gym", "1", ("{}",), "{question}", "text")
    trusting = Allowed(code_execution=["puzzle24"])
    assert summary([*SPECS, risky], trusting).endswith("; puzzle24: evaluates answers")


def test_overview_names_package_for_each_family():
    (told,) = overview(SPECS[:2], Allowed())
    unknown = Allowed({SPECS[0].name: "a", "sum": "b"}, ["codes"], {"sum": ["c"]}, ["nets"])
    lines = [line.partition(": ")[0] for line in misnamed(SPECS, unknown)]
    assert lines == [
        *("tasks.files names 'sum'", "tasks.allow_code_execution names 'codes'"),
        *("sandbox.read names 'sum'", "sandbox.network names 'nets'"),
    ]
    assert told.endswith("adding (4 levels of swarm-node), climbing (4 levels of swarm-node)")
