"""The baseline evaluation of a policy and the settings that it suggests."""

import tomllib
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from node.config.config import Config, changed, load, set_keys, write_config
from node.engines.registry import open_engine
from node.errors import NodeError
from node.evaluation.baseline import Baseline, LevelResult, measured
from node.evaluation.baseline_evaluation import ENOUGH, BaselineEvaluation
from node.evaluation.evaluator import Evaluation
from node.policy.policy import Policy
from node.tasks.curriculum import served_levels
from node.tasks.task_set import Allowed, load_task_set
from node.tasks.verifier.verifier import Verifier
from protocol.rollout import Finish
from swarm.common.counters import Counters
from swarm.verification import UNKNOWN_ENV, VerifierError

RIGHT, WRONG, MIXED = (1.0, 1.0), (0.0, 0.0), (1.0, 0.0)
LADDER = {"sums": range(8), "words": range(8)}


def result(env="sums", level=0, temperature=1.0, rows=(MIXED,), cut=0, answered=None, tokens=6):
    right = int(sum(map(sum, rows)))
    written = 2 * len(rows)
    answered = written - cut if answered is None else answered
    return LevelResult((env, level), temperature, rows, answered, cut, (tokens,) * right, 0)


def baseline(*results, levels=LADDER, takes=True, cap=64, more=()):
    return Baseline(results, (*results, *more), 1.0, 64, cap, levels, takes)


def test_baseline_reports_each_temperature_and_each_family():
    cool = result(rows=(MIXED, WRONG), temperature=0.6, cut=1)
    lines = baseline(result(rows=(WRONG, WRONG), cut=4, answered=0), cool).lines()
    found = "1 of 4 completions are correct, 75% have an answer, 25% are truncated"
    assert lines[0] == (
        f"baseline on 2 tasks sampled at both temperatures, at 0.6: {found}"
        " at 64 tokens; 50% of groups are informative"
    )
    assert "temperatures, at 1: 0 of 4" in lines[1] and "100% are truncated" in lines[1]
    assert lines[2] == f"  sums level 0: {found}"
    assert lines[-1] == "result: the policy can learn from its own rollouts"


@pytest.mark.parametrize(
    ("rows", "cut", "takes", "verdict", "remedy"),
    [
        ((MIXED, WRONG), 0, False, "can learn from its own rollouts", ""),
        ((WRONG, WRONG), 0, True, "only from peers' groups", "warm-start"),
        ((WRONG, WRONG), 0, False, "cannot learn here", "mixture.external"),
        ((WRONG, WRONG), 3, True, "completions end before an answer", "engine.max_new_tokens"),
        ((RIGHT, RIGHT), 0, True, "these tasks are already solved", "tasks.levels"),
        ((RIGHT, WRONG), 0, True, "only from peers' groups", "warm-start"),
    ],
)
def test_baseline_result_names_source_and_fix(rows, cut, takes, verdict, remedy):
    report = baseline(result(rows=rows, cut=cut), takes=takes).verdict()
    assert verdict in report and remedy in report


def test_temperature_changes_only_if_it_is_clearly_more_informative():
    cool = result(temperature=0.6, rows=(MIXED, MIXED))
    assert baseline(result(rows=(WRONG, WRONG)), cool).settings()["engine.temperature"] == 0.6
    assert "engine.temperature" not in baseline(result(rows=(MIXED, MIXED)), cool).settings()


def test_temperature_comparison_uses_only_tasks_sampled_at_both():
    again = result(temperature=0.6, rows=(WRONG, WRONG, WRONG), level=1)
    found = baseline(result(rows=(WRONG,)), result(temperature=0.6, rows=(MIXED,)), more=[again])
    assert found.best == 0.6
    assert "baseline on 1 task sampled at both temperatures, at 0.6: 1 of 2" in found.lines()[0]
    assert "baseline on 1 task at temperature 1: 1 of 2" in baseline(result()).lines()[0]
    assert any(line.startswith("  sums level 1: 0 of 6 completions") for line in found.lines())


def test_token_cap_follows_correct_or_truncated_completions():
    words = result("words", tokens=5)
    assert baseline(result(tokens=11), words).settings()["engine.max_new_tokens"] == 24
    assert "engine.max_new_tokens" not in baseline(result(tokens=30), words).settings()
    many = result(rows=(RIGHT,) * 50, tokens=11)
    assert "engine.max_new_tokens" not in baseline(many, result("words", tokens=30)).settings()
    cut = result(rows=(WRONG,), cut=2)
    assert baseline(cut).settings() == {"engine.max_new_tokens": 256}
    assert baseline(cut, cap=24).settings() == {}, "the evaluation's own cap suggests no setting"


def test_families_truncated_by_a_reduced_cap_are_untried():
    words = result("words", rows=(WRONG, WRONG), cut=3)
    found = baseline(result(tokens=11), words, cap=24)
    assert found.settings() == {"tasks.levels": {"sums": [0, 1], "words": [0]}}
    untried = "most completions are truncated at 24 of 64 tokens"
    assert f"  not judged: words level 0, because {untried}" in found.lines()
    assert found.fair() == (result(tokens=11),)
    whole = baseline(result(tokens=11), words)
    assert whole.settings()["tasks.weights"] == {"sums": 1.0}, "words ran with the configured cap"
    assert not any("because" in line for line in whole.lines())
    assert untried in baseline(words, cap=24).verdict()
    higher = baseline(result(), result(level=1, rows=(WRONG,), cut=2), cap=24)
    assert higher.settings()["tasks.levels"]["sums"] == [0, 1]
    assert f"  not judged: sums level 1, because {untried}" in higher.lines()


def test_token_cap_stays_above_the_reduced_cap_if_a_family_is_untried():
    key, words = "engine.max_new_tokens", result("words", rows=(WRONG,), cut=2)
    slow = replace(baseline(result(tokens=11), words, cap=24), max_new_tokens=192)
    assert slow.settings()[key] == 96
    assert replace(slow, compared=(result(tokens=11),), results=(result(),)).settings()[key] == 96
    both = (result(tokens=11), result("words"))
    assert replace(slow, compared=both, results=both).settings()[key] == 24
    unsolved = (result(tokens=11), result("words", rows=(WRONG,)))
    few = {"sums": range(3), "words": range(3)}
    assert key not in replace(slow, results=unsolved, levels=few).settings()


def test_correct_truncated_completion_counts_as_answered():
    cut = SimpleNamespace(finish=Finish.LENGTH, text="17 is the", tokens=SimpleNamespace(ids=(1,)))
    found = Evaluation((), (MIXED,), trajectories=((cut, cut),))
    one = measured(found, ("sums", 0), 1.0, slice(0, 1))
    assert (one.right, one.answered, one.truncated) == (1, 1, 2)


def test_token_cap_falls_only_if_every_trained_family_is_solved():
    """Answers of unsolved families may be longer."""
    key, few = "engine.max_new_tokens", {"sums": range(3), "words": range(3)}
    unsolved = result("words", rows=(WRONG,))
    assert key not in baseline(result(tokens=11)).settings(), "words were not tried"
    assert key not in baseline(result(tokens=11), unsolved, levels=few).settings()
    assert baseline(result(tokens=11), unsolved).settings()[key] == 24, "words is dropped"


def test_baseline_names_the_untried_families():
    report = baseline(result(), levels={**LADDER, "chess": range(8)}).lines()
    assert "  not tried: words, chess" in report
    assert not any("not tried" in line for line in baseline(result(), result("words")).lines())


def test_levels_range_from_unmastered_to_one_above_solved():
    rows = [result(level=0, rows=(RIGHT,)), result(level=1), result(level=2, rows=(WRONG,))]
    found = baseline(*rows, result("words", rows=(WRONG,))).settings()
    assert found["tasks.levels"] == {"sums": [1, 2]}
    assert found["tasks.weights"] == {"sums": 1.0}
    partial = baseline(*rows).settings()
    assert partial["tasks.levels"] == {"sums": [1, 2], "words": [0]}, "words were not tried"
    assert "tasks.weights" not in partial
    few = {"sums": range(3), "words": range(3)}
    assert "tasks.levels" not in baseline(*rows, levels=few).settings(), "the levels are not graded"


def test_set_keys_keeps_other_file_content(tmp_path):
    path = tmp_path / "node.toml"
    write_config(path, Config(), full=True)
    before = load(path)
    keys = {"engine.temperature": 0.6, "tasks.levels": {"sums": [0, 1]}}
    set_keys(path, keys)
    assert load(path) == changed(before, keys) != before
    assert load(path).tasks.levels == {"sums": [0, 1]}
    assert "# Sampling temperature in training." in path.read_text()


def test_set_keys_keeps_comments_after_values(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text(
        "[policy]\nmodel = \"a # b\"  # mine\n[learner]\nlr = 1e-5 # low\nloss = 'x # y'\n"
    )
    set_keys(path, {"policy.model": "c", "learner.lr": 2e-5, "learner.loss": "z"})
    assert path.read_text() == (
        '[policy]\nmodel = "c"  # mine\n[learner]\nlr = 2e-05 # low\nloss = "z"\n'
    )


def test_set_keys_adds_missing_keys_and_refuses_conflicting_tables(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text("[policy]\nmodel = 'tiny'  # mine\n[tasks]\n")
    set_keys(path, {"engine.temperature": 0.6, "tasks.weights": {"gcd": 1.0}})
    assert "# mine" in path.read_text()
    assert tomllib.loads(path.read_text()) == {
        "policy": {"model": "tiny"},
        "tasks": {"weights": {"gcd": 1.0}},
        "engine": {"temperature": 0.6},
    }
    path.write_text("[tasks.weights]\ngcd = 1\n")
    with pytest.raises(NodeError, match=r"Write these lines yourself: tasks\.weights = "):
        set_keys(path, {"tasks.weights": {"lcm": 1.0}})
    assert path.read_text() == "[tasks.weights]\ngcd = 1\n"


class Lacking:
    """A verifier that cannot build tasks of the families ``lacking``."""

    def __init__(self, verifier, *lacking):
        self._verifier, self._lacking = verifier, lacking

    def __getattr__(self, name):
        return getattr(self._verifier, name)

    def prompts(self, tasks):
        if any(task.env in self._lacking for task in tasks):
            raise VerifierError(UNKNOWN_ENV, "no heldout question")
        return self._verifier.prompts(tasks)


@contextmanager
def opened(tokens):
    """Yield the parts of an evaluation of the shipped policy on tiny tasks."""
    config = Config.with_overrides({"engine.max_new_tokens": tokens, "policy.device": "cpu"})
    policy, specs, counters = Policy.load(config.policy), load_task_set("tiny"), Counters()
    with Verifier(specs, Allowed(), outside=False, counters=counters) as verifier:
        levels = served_levels(specs, verifier.start())
        yield config, policy, open_engine(config, policy, counters), verifier, levels, counters


@pytest.mark.parametrize("step", [0.0, 1000.0], ids=["together", "one by one"])
def test_baseline_skips_a_family_without_heldout_tasks(step):
    now = iter(range(10**6))
    clock = lambda: step * next(now)  # noqa: E731
    with opened(4) as (*parts, verifier, levels, counters):
        first, *others = sorted({env for env, _ in levels})
        lacking = Lacking(verifier, first)
        found = BaselineEvaluation(*parts, lacking, levels, counters, clock).run(1.0)
        none = BaselineEvaluation(*parts, Lacking(verifier, first, *others), levels, counters)
        with pytest.raises(VerifierError, match="can be built"):
            none.run(1.0)
    tried = {each.level[0] for each in found.results}
    assert tried and first not in tried
    assert f"  not tried: {first}" in "\n".join(found.lines())
    assert first in found.reached()


class Ticking:
    """An engine whose clock advances by one second per call."""

    def __init__(self, engine):
        self._engine, self.seconds = engine, 0.0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def generate(self, *arguments):
        self.seconds += 1.0
        return self._engine.generate(*arguments)


@pytest.mark.parametrize(("seconds", "both", "one"), [(2.5, 0, 1), (5.5, 1, 2), (7.5, 2, 3)])
def test_temperatures_share_tasks_if_the_time_limit_ends_between(seconds, both, one):
    with opened(12) as (config, policy, plain, *rest):
        engine = Ticking(plain)
        evaluation = BaselineEvaluation(config, policy, engine, *rest, lambda: engine.seconds)
        found = evaluation.run(seconds)
    assert engine.seconds < seconds + 1.0, "no sampling starts after the time limit"
    assert [len(found.at(temperature)) for temperature in (1.0, 0.6)] == [one, both]
    assert len(found.compared) == (2 * both or one)
    assert found.late == (None if both else 0.6)


def test_baseline_stops_at_the_time_limit():
    seen = []
    now = iter(range(0, 10**6, 1000))  # Each reading is 1000 s later.
    with opened(12) as parts:
        trial = BaselineEvaluation(*parts)
        found = trial.run(60.0, lambda done, what: seen.append((done, what)))
        late = BaselineEvaluation(*parts, clock=lambda: float(next(now))).run(1.0)
        alone = BaselineEvaluation(*parts[:4], parts[4][:1], parts[5]).run(60.0)
    assert {each.tasks for each in alone.compared} == {ENOUGH}, "one family has more tasks"
    families = {spec.name for spec in load_task_set("tiny")}
    assert {each.level[0] for each in found.at(1.0)} == families
    assert {each.level[0] for each in found.at(0.6)} == families
    assert all(0.0 <= each.success <= 1.0 for each in found.results)
    assert {each.tasks for each in found.at(*({0.6, 1.0} - {found.best}))} == {1}
    again = [each for each in found.at(found.best) if each.tasks == 3]
    assert again and all(each.rewards[0] in {(0.0,) * 4, (1.0,) * 4} for each in again)
    assert dict(trial.rewards()).keys() == {each.level for each in found.at(found.best)}
    assert all(len(rewards) in {4, 8, 12} for _, rewards in trial.rewards())
    assert seen[0] == (pytest.approx(0.0, abs=0.5), "generation speed")
    (one,) = late.results
    assert one.temperature == 1.0 and late.best == 1.0, "no time is left for temperature 0.6"
    assert late.lines()[1] == "  not tried: temperature 0.6, because the time ended"
    assert found.late is None and "because" not in "".join(found.lines())
    assert changed(parts[0], found.settings())
