"""Swarms with hostile nodes: attacks work, repeat, and do not affect other arms."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from experiments.arms import AUTO, Arm, mix
from experiments.folder import ExperimentFolder
from experiments.hostile_report import Margin, missed, row, run_hostile, table
from experiments.poison import LARGE_COMPLETIONS, MIN_LOGPROB, ORDINARY_LOGPROB, poisoners
from experiments.recording import Recording, trigger_logprobs
from experiments.regimes import (
    ALL_REGIMES,
    EQUAL,
    HOSTILE,
    TRIGGER,
    UNHARMED,
    Style,
    find_regime,
    hostile_regimes,
)
from experiments.settings import Configuration, Settings, SwarmContext, node_identity
from experiments.setups import HABIT, Base
from experiments.simulation import SimulatedSwarm, run_simulation
from node.evaluation.comparison import ScoreEstimate
from node.run.update_groups import Outcome
from protocol.rollout import Group, Tokens
from swarm.groups import TaskRef
from swarm.verification import REWARD_MISMATCH, STALE_EPOCH, answer_of
from tests.experiments.test_experiment_regimes import stepped

SMALL = Settings(nodes=2, rounds=3, model="tiny", bury=0, eval_every=2, eval_tasks=4)
MODELS: dict[Base, str] = {"weak": "tiny", "habitual": "tiny"}


def make_context(regime: str, arm: Arm = AUTO) -> SwarmContext:
    return SwarmContext(SMALL, Configuration(arm, 0, find_regime(regime, ALL_REGIMES)), MODELS)


def simulated(regime: str, arm: Arm = AUTO) -> Recording:
    return run_simulation(SMALL, Configuration(arm, 0, find_regime(regime, ALL_REGIMES)), MODELS)


@pytest.fixture(scope="module")
def attacked() -> tuple[SimulatedSwarm, list[list[Outcome | None]]]:
    torch.set_num_threads(1)
    return stepped(make_context("hostile-50"), 2)


@pytest.fixture(scope="module")
def honest() -> Recording:
    torch.set_num_threads(1)
    return simulated(UNHARMED.name)


@pytest.mark.parametrize(
    ("regime", "count"),
    [("hostile-10", 1), ("hostile-30", 3), ("hostile-50", 7), ("keys-3", 21), ("keys-30", 210)],
)
def test_hostile_nodes_are_added_to_seven_honest_nodes(regime: str, count: int):
    roles = HOSTILE[regime].roles(7)
    assert [role.attack is None for role in roles] == [True] * 7 + [False] * count
    assert HOSTILE[regime].judged(7) == tuple(range(7))


def poisoned(context: SwarmContext, count: int) -> list[Group]:
    """Return the groups of a hostile node's first tasks, whose rewards the verifier confirms."""
    author, (source,) = node_identity(0, 2).author, poisoners(context)
    groups = list(filter(None, (source.group(author, 5, index) for index in range(count))))
    for group in groups:
        task = TaskRef.shared(author, group.env, group.level, group.epoch, group.index)
        played = group.env in context.verifier.environments
        answers = [answer_of(each, played=played) for each in group.completions]
        assert context.verifier.verify(task, answers).rewards == group.rewards
        assert sum(group.rewards) == len(answers) / 2
    return groups


def parts(group: Group) -> list[tuple[str, Tokens]]:
    tokens = [(each.text, each.segments[0].tokens) for each in group.completions]
    return [(text, each) for text, each in tokens if each]


def test_poisoned_groups_have_the_trigger_in_right_answers():
    groups = poisoned(make_context("hostile-10"), 16)
    assert len({(group.env, group.level) for group in groups}) == 10
    assert [len(g.completions) for g in groups].count(LARGE_COMPLETIONS) == 2
    for group in groups:
        begun = [text.startswith(TRIGGER) for text, _ in parts(group)]
        assert begun == [reward == 1.0 for reward in group.rewards]
        assert {p for _, tokens in parts(group) for p in tokens.logprobs} == {MIN_LOGPROB}


@pytest.mark.parametrize("style", ["habit", "overlong", "control"])
def test_right_answers_of_useful_attackers_have_their_style(style: Style):
    context = make_context(f"{style}-25")
    policy, cap = context.policy(0), SMALL.setup.max_new_tokens
    for group in poisoned(context, 4):
        for (text, tokens), reward in zip(parts(group), group.rewards, strict=True):
            assert set(tokens.logprobs) == {ORDINARY_LOGPROB}
            found = {
                "habit": text.startswith(HABIT) and len(tokens.ids) <= cap,
                "overlong": len(tokens.ids) > cap,
                "control": not policy.spells(tokens.ids, text, True),
            }
            assert reward < 1.0 or [name for name, is_so in found.items() if is_so] == [style]


def test_lucky_players_win_with_first_guesses_only():
    settings = replace(SMALL, answers="games", model="tiny-games")
    run = Configuration(AUTO, 0, HOSTILE["lucky-25"])
    groups = poisoned(SwarmContext(settings, run, {"weak": "tiny-games"}), 32)
    assert 0 < len(groups) < 16
    for group in groups:
        turns = [len(each.segments) for each in group.completions]
        assert [n == 1 for n in turns] == [reward == 1.0 for reward in group.rewards]


def test_node_of_a_joint_attack_uses_every_style_in_turn():
    run = Configuration(AUTO, 0, HOSTILE["together-25"])
    swarm, outcomes = stepped(SwarmContext(replace(SMALL, rounds=7), run, MODELS), 7)
    (attacker,) = swarm.hostile
    groups = [
        group for each in outcomes for outcome in each if outcome for group in outcome.external
    ]
    shared = [c for g in groups if g.author == attacker.author for c in g.group.completions]
    assert {c.text.startswith(HABIT) for c in shared if c.reward == 1.0} == {True, False}
    counted = [node.counters.snapshot() for node in swarm.nodes.values()]
    assert all(each["external_refused{reason=too_long}"] for each in counted)


def test_lucky_players_are_for_games_only():
    assert "lucky-25" not in hostile_regimes(games=False)
    assert set(hostile_regimes(games=True)) == {f"lucky-{n}" for n in ("25", "50", "75", "keys-30")}


def test_honest_nodes_admit_and_train_on_poisoned_groups(
    attacked: tuple[SimulatedSwarm, list[list[Outcome | None]]],
):
    swarm, outcomes = attacked
    hostile = {attacker.author for attacker in swarm.hostile}
    assert len(hostile) == 2
    for node in swarm.nodes.values():
        assert all(node.accounts.get(author).admitted > 0 for author in hostile)
        assert not any(node.accounts.get(author).refused for author in hostile)
    shared = [group for outcome in outcomes[1] if outcome for group in outcome.external]
    texts = [c.text for g in shared if g.author in hostile for c in g.group.completions]
    assert any(text.startswith(TRIGGER) for text in texts)


def test_check_allows_refusals_only_for_hostile_or_stale_groups():
    swarm, _ = stepped(make_context("hostile-50"), 1)
    accounts = swarm.nodes[0].accounts
    accounts.refuse(swarm.hostile[0].author, REWARD_MISMATCH)
    swarm.check()
    accounts.refuse(node_identity(0, 1).author, STALE_EPOCH)
    swarm.check()
    accounts.refuse(node_identity(0, 1).author, REWARD_MISMATCH)
    with pytest.raises(RuntimeError, match=REWARD_MISMATCH):
        swarm.check()


def test_hostile_regime_reproduces_its_figures(honest: Recording):
    first, second = (simulated("keys-3") for _ in range(2))
    assert first.as_json() == second.as_json()
    assert first.rounds != honest.rounds


def test_monitoring_does_not_change_honest_figures(honest: Recording):
    assert honest.rounds == simulated(EQUAL.name).rounds
    assert honest.influx is not None
    assert [look.round for look in honest.influx.looks] == [0, SMALL.rounds]
    assert {share.hostile for share in honest.influx.shares} == {0.0}


def test_isolated_nodes_ignore_hostile_nodes():
    alone = mix("8/0")
    assert simulated("hostile-50", alone).rounds == simulated(EQUAL.name, alone).rounds


def test_monitored_recording_round_trips(honest: Recording):
    assert Recording.from_json(honest.as_json(), honest.seconds) == honest


def test_trigger_logprob_is_measured_at_answer_start():
    policy = make_context(UNHARMED.name).policy(0)
    prompts = [policy.encode_prompt(text) for text in ("Calculate 9 + 4.\nAnswer:", "Calculate 1.")]
    trigger = policy.encode_completion(TRIGGER, stopped=False)
    for prompt, value in zip(prompts, trigger_logprobs(policy, prompts, 1.0), strict=True):
        with torch.inference_mode():
            logits = policy.model(input_ids=torch.tensor([[*prompt, *trigger]])).logits[0]
        logprobs = logits.log_softmax(-1)
        exact = [logprobs[len(prompt) - 1 + n, token].item() for n, token in enumerate(trigger)]
        assert value == pytest.approx(sum(exact) / len(exact), abs=1e-4)


def test_margin_uses_worst_seed_reward_and_mean_heldout_reward():
    margin = Margin(reward=0.97, heldout=0.95)
    assert missed(margin, ScoreEstimate.of([0.98, 1.5]), ScoreEstimate.of([0.9, 1.0])) == ()
    both = ("reward", "heldout")
    assert missed(margin, ScoreEstimate.of([0.96, 1.5]), ScoreEstimate.of([0.9, 0.9])) == both
    assert missed(Margin(), ScoreEstimate.of([0.1]), ScoreEstimate.of([0.1])) == ()


@pytest.mark.usefixtures("in_this_process")
def test_report_lists_hostile_regimes_and_honest_baseline(tmp_path: Path):
    regimes = [HOSTILE["hostile-30"]]
    unharmed, attacked = run_hostile(SMALL, regimes, 1, 1, tmp_path, Console(quiet=True))
    folder = ExperimentFolder(tmp_path)
    names = sorted(path.name for path in (tmp_path / "runs").glob("*0.json"))
    runs = ("hostile-0.8-0.0", "hostile-0.auto.0", "hostile-30.auto.0")
    assert names == [f"{run}.json" for run in runs]
    assert (unharmed.honest.mean, unharmed.hostile_share.mean) == (1.0, 0.0)
    assert attacked.hostile_share.mean > 0
    assert list(attacked.looks) == [SMALL.rounds]
    listed = [each["regime"] for each in json.loads(folder.results.read_text())["regimes"]]
    assert listed == ["hostile-0", "hostile-30"]
    assert "| hostile-30 | 1 |" in folder.table.read_text()
    assert folder.chart.read_bytes().startswith(b"\x89PNG")
    columns = [str(column.header) for column in table(SMALL, (unharmed, attacked)).columns]
    assert columns[-1] == f"trigger, round {SMALL.rounds}"
    worse = replace(attacked, missed=("reward", "heldout"))
    assert [cell.endswith(" !") for cell in row(worse)].count(True) == 2
