"""Swarms whose nodes differ, and the nodes that are measured."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from experiments.arms import AUTO, Arm, mix
from experiments.folder import ExperimentFolder
from experiments.hostile import CONSTANT
from experiments.measures import RegimeSummary, Summary, judge_default
from experiments.recipe.corpus import training_questions, untaught
from experiments.recording import Recording
from experiments.regimes import find_regime
from experiments.report import run_regimes, summary_row
from experiments.run import Plan
from experiments.settings import Configuration, Settings, SwarmContext, node_identity
from experiments.setups import SETUPS, Base, Length
from experiments.simulation import SimulatedSwarm, run_simulation
from node.errors import UsageError
from node.evaluation.comparison import ScoreEstimate
from node.run.update_groups import Outcome

SMALL = Settings(nodes=4, rounds=4, model="tiny", bury=0, eval_every=2, eval_tasks=4)
SHORT = replace(SMALL, rounds=3)
KINDS: tuple[Base, ...] = ("weak", "strong", "able", "half-a", "half-b")
MODELS: dict[Base, str] = {**dict.fromkeys(KINDS, "tiny"), "wide": "tiny-wide"}


def simulated(regime: str, arm: Arm, settings: Settings = SMALL) -> Recording:
    return run_simulation(settings, Configuration(arm, 0, find_regime(regime)), MODELS)


def make_context(regime: str, arm: Arm) -> SwarmContext:
    return SwarmContext(SMALL, Configuration(arm, 0, find_regime(regime)), MODELS)


def stepped(
    context: SwarmContext, rounds: int = SMALL.rounds
) -> tuple[SimulatedSwarm, list[list[Outcome | None]]]:
    """Return a swarm after some rounds, and its honest nodes' outcomes per round."""
    swarm = SimulatedSwarm(context)

    async def go() -> list[list[Outcome | None]]:
        return [await swarm.step(number) for number in range(1, rounds + 1)]

    outcomes = asyncio.run(go())
    swarm.check()
    return swarm, outcomes


@pytest.fixture(scope="module")
def equal() -> Recording:
    return simulated("equal", AUTO, SHORT)


@pytest.mark.parametrize("name", ["churn", "mixed", "useless"])
def test_regime_reproduces_its_figures(name: str, equal: Recording):
    first, second = (simulated(name, AUTO, SHORT) for _ in range(2))
    assert first.as_json() == second.as_json()
    assert first.rounds != equal.rounds


def test_churn_replaces_a_node_in_mid_run():
    swarm, outcomes = stepped(make_context("churn", AUTO), SMALL.rounds - 1)
    present = [[outcome is not None for outcome in round] for round in outcomes]
    assert present == [[True] * 4 + [False]] * 2 + [[True] * 3 + [False, True]]
    connected = {p.peer_id for p in swarm.nodes[0].member.status().peers if p.connected}
    assert connected == {node_identity(0, number).peer_id for number in (1, 2, 4)}


def test_absent_node_has_no_reward_and_present_nodes_count():
    swarm = simulated("churn", mix("8/0"))
    judged = find_regime("churn").judged(SMALL.nodes)
    early, late = swarm.rounds[0].reward, swarm.rounds[-1].reward
    assert [reward is None for reward in early] == [False] * 4 + [True]
    assert [reward is None for reward in late] == [False] * 3 + [True, False]
    here = [reward for reward in late if reward is not None]
    assert swarm.rewards(judged)[-1] == pytest.approx(sum(here) / 4)
    assert swarm.rounds[-1].evaluation is not None


@pytest.mark.parametrize("arm", [mix("2/6"), AUTO], ids=lambda arm: arm.file_name)
def test_update_excludes_useless_groups(arm: Arm):
    swarm, outcomes = stepped(make_context("useless", arm))
    useless = {node_identity(0, number).author for number in (2, 3)}
    known = {p.author: p.groups for p in swarm.nodes[0].member.status().peers}
    assert all(known[author] > 0 for author in useless)
    shared = [group for round in outcomes for o in round[:2] if o for group in o.external]
    assert shared
    constant = node_identity(0, 2).author
    assert all(group.key.author != constant for group in shared)
    assert all(len(set(group.group.rewards)) > 1 for group in shared)


def test_useless_nodes_ignore_tasks_and_use_no_peer_groups():
    _, outcomes = stepped(make_context("useless", mix("4/4")))
    for *_, constant, random in outcomes:
        assert constant and random
        assert {c.text for local in constant.local for c in local.group.completions} == {CONSTANT}
        assert len({c.text for local in random.local for c in local.group.completions}) > 8
        assert not constant.external and not random.external
        assert len(constant.local) == 4


def test_measures_use_only_strong_node():
    regime = find_regime("strong")
    assert [role.base for role in regime.roles(8)] == ["strong"] + ["weak"] * 7
    assert regime.judged(8) == (0,)
    swarm = simulated("strong", mix("4/4"))
    alone = SimulatedSwarm(make_context("strong", mix("4/4")))
    local, *_ = asyncio.run(alone.step(1))
    assert local is not None
    first = swarm.rounds[0]
    assert swarm.rewards(regime.judged(8))[0] == first.reward[0]
    assert first.tokens == sum(group.tokens for group in local.local)
    assert first.evaluation == local.evaluation


def test_nodes_with_different_tokenizers_share_groups():
    swarm, outcomes = stepped(make_context("mixed", AUTO))
    assert [len(node.config.policy.model) for node in swarm.nodes.values()] == [4, 4, 9, 9]
    other = {node_identity(0, number).author for number in (2, 3)}
    assert other & {group.key.author for o in outcomes[-1][:2] if o for group in o.external}


@pytest.mark.parametrize("length", ["short", "long"])
def test_each_family_is_taught_to_exactly_one_half(length: Length):
    (first, second), tasks = SETUPS[length].heterogeneous.halves, SETUPS[length].tasks
    assert sorted(first + second) == sorted(tasks.open())
    questions = untaught(training_questions(tasks, draws=20), second)
    taught = {env for (env, _), asked in questions.items() if all(q.taught for q in asked)}
    assert taught == set(first)


def test_unknown_regime_error_lists_the_known_regimes():
    with pytest.raises(UsageError, match="equal, divided, strong"):
        find_regime("storm")


def summary(arm: str, *rewards: float) -> Summary:
    return Summary(arm, tuple(range(len(rewards))), {"cumulative": ScoreEstimate.of(rewards)}, None)


def test_default_is_compared_with_the_best_mix_on_average():
    fixed = [summary("8/0", 10.0, 30.0), summary("4/4", 24.0, 20.0)]
    verdict = judge_default([*fixed, summary("auto", 24.0, 19.0)])
    assert verdict is not None
    assert (verdict.rival, verdict.ratio.values) == ("4/4", (1.0, 0.95))
    assert not verdict.hurts
    worse = judge_default([*fixed, summary("auto", 23.0, 19.0)])
    assert worse is not None and worse.hurts


def test_judge_default_needs_a_default_and_a_rival():
    assert judge_default([summary("8/0", 1.0)]) is None
    assert judge_default([summary("auto", 1.0)]) is None
    assert judge_default([summary("8/0", 0.0), summary("auto", 1.0)]) is None


@pytest.mark.usefixtures("in_this_process")
def test_report_has_a_summary_row_and_table_per_regime(tmp_path: Path):
    settings = replace(SMALL, nodes=3, rounds=2)
    regimes = (find_regime("equal"), find_regime("mixed"))
    plan = Plan(settings, (mix("8/0"), AUTO), (0,), 1, regimes)
    summaries = run_regimes(plan, tmp_path, Console(quiet=True))
    folder = ExperimentFolder(tmp_path)
    names = [each["regime"] for each in json.loads(folder.results.read_text())["regimes"]]
    assert names == ["equal", "mixed"]
    assert list(summaries[1].parts) == ["weak", "wide"]
    table = folder.table.read_text()
    assert "| equal | 1 |" in table
    assert "factor of weak | factor of wide" in table
    assert folder.chart.read_bytes().startswith(b"\x89PNG")


def test_table_marks_a_worse_default():
    arms = (summary("8/0", 10.0), summary("auto", 9.0))
    hurt = RegimeSummary("equal", "all are equal", (0,), arms, {}, judge_default(arms))
    assert summary_row(hurt, ["8/0", "auto"])[-1] == "0.90 (8/0) !"
