"""Swarms that share imagined groups: admitted, plausible, and no experience."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from rich.console import Console

from experiments.arms import AUTO, Arm, mix
from experiments.folder import ExperimentFolder
from experiments.imagined import Imagination, PartlyImagined, imagination, roundabout
from experiments.recording import Recording, Shares, written_logprobs
from experiments.regimes import ALL_REGIMES, IMAGINED, REGIMES, find_regime
from experiments.report import run_regimes
from experiments.run import Plan
from experiments.settings import (
    GROUPS_PER_EPOCH,
    Configuration,
    Settings,
    SwarmContext,
    node_identity,
)
from experiments.setups import Base
from experiments.simulation import SimulatedSwarm, run_simulation
from node.learner.off_policy import FULL_USE, plausibility
from node.tasks.chain_of_thought import Climbing, Progress
from protocol.announcement import task_seed
from protocol.rollout import Group
from swarm.groups import Origin, TaskRef

SHORT = Settings(nodes=3, rounds=3, model="tiny", bury=0, eval_every=2, eval_tasks=4)
LONG = replace(SHORT, model="tiny-working", answers="long")
AUTHOR = node_identity(0, 0).author


def surroundings(regime: str, settings: Settings = SHORT, arm: Arm = AUTO) -> SwarmContext:
    models: dict[Base, str] = {"weak": settings.model}
    return SwarmContext(settings, Configuration(arm, 0, find_regime(regime, ALL_REGIMES)), models)


def simulated(regime: str, settings: Settings = SHORT, arm: Arm = AUTO) -> Recording:
    run = Configuration(arm, 0, find_regime(regime, ALL_REGIMES))
    return run_simulation(settings, run, {"weak": settings.model})


def opened(context: SwarmContext) -> Imagination:
    source = imagination(context)
    assert source is not None
    return source


def imagined(context: SwarmContext) -> list[Group]:
    """Two groups in place of one of every level."""
    source = opened(context)
    levels = [
        (spec.name, n) for spec in context.manifest.catalogue for n in range(len(spec.levels))
    ]
    real = [Group(env, level, 5, 0, ()) for env, level in levels]
    return [source.group(AUTHOR, each) for each in 2 * real]


def prompt_of(context: SwarmContext, group: Group) -> list[int]:
    ref = TaskRef(group.env, group.level, task_seed(AUTHOR, group.epoch, group.index))
    return context.policy(0).encode_prompt(context.judge.prompts([ref])[0])


@pytest.mark.parametrize("settings", [SHORT, LONG], ids=["short", "long"])
def test_an_imagined_group_claims_what_the_judge_says_and_is_right_in_part(settings: Settings):
    context = surroundings("imagined-50", settings)
    groups = imagined(context)
    assert len({group.index for group in groups}) == len(groups), "no draw is told twice"
    for group in groups:
        ref = TaskRef(group.env, group.level, task_seed(AUTHOR, group.epoch, group.index))
        texts = [completion.text for completion in group.completions]
        assert context.judge.judge(ref, texts).rewards == group.rewards
        assert set(group.rewards) == {0.0, 1.0}
        assert len(texts) == 8


@pytest.mark.parametrize("settings", [SHORT, LONG], ids=["short", "long"])
def test_what_is_right_in_it_is_plausible_and_claimed_at_the_base_policys_word(settings: Settings):
    context = surroundings("imagined-50", settings)
    policy, found = context.policy(0), list[float]()
    for group in imagined(context):
        prompt = prompt_of(context, group)
        for completion in group.completions:
            tokens = completion.segments[0].tokens
            assert tokens is not None
            rows = torch.tensor([[*prompt, *tokens.ids]])
            with torch.inference_mode():
                logits = policy.model(input_ids=rows).logits[0, len(prompt) - 1 : -1]
            every = logits.log_softmax(-1)
            own = every[range(len(tokens.ids)), list(tokens.ids)]
            assert tokens.logprobs == pytest.approx(own.tolist(), abs=1e-4)
            if completion.reward:
                found.append(plausibility(own, -(every.exp() * every).sum(-1)).mean().item())
    assert fmean(found) > FULL_USE


def test_a_guess_does_not_read_the_question():
    """On a level without much choice, what is right by luck is what is common."""
    source = opened(surroundings("imagined-50"))
    groups = [source.group(AUTHOR, Group("gcd", 0, epoch, 0, ())) for epoch in range(40)]
    right = [c.text for group in groups for c in group.completions if c.reward]
    assert sum(text in ("1", "2", "3") for text in right) > 0.8 * len(right)
    assert {group.env for group in groups} == {"gcd"}


def test_a_roundabout_way_is_longer_than_most_and_a_shortcut_ends_in_the_right_place():
    rng, family = random.Random(0), Climbing([{"most": 90}])
    entry = {"state": Progress(4, 71), "partial_credit": False}
    texts = roundabout(family, entry, rng)
    assert texts is not None
    right, wrong = texts[::2], texts[1::2]
    assert {family.score(entry, text) for text in right} == {1.0}
    assert {family.score(entry, text) for text in wrong} == {0.0}
    assert {text.split()[-1] for text in texts} == {"71"}
    drawn = [len(list(family.way(rng, Progress(4, 71)))) for _ in range(200)]
    assert min(len(text.split()) for text in right) > sorted(drawn)[150]
    assert max(len(text.split()) for text in wrong) < fmean(drawn)


def test_where_no_step_can_be_left_out_nothing_is_imagined():
    entry = {"state": Progress(9, 9)}
    assert roundabout(Climbing([{"most": 40}]), entry, random.Random(0)) is None


def test_every_node_shares_its_part_of_imagined_groups_in_place_of_own_ones():
    context = surroundings("imagined-25")
    source, told = opened(context), list[Group]()
    share = PartlyImagined(source, context, 1, lambda groups, origin: told.extend(groups))
    own = [Group("gcd", 0, epoch, 0, ()) for epoch in range(400)]
    share(own, Origin(0, "tiny", bytes(32), 1.0, 16))
    assert len(told) == len(own)
    assert 0.18 < sum(group.index > 0 for group in told) / len(told) < 0.32
    assert {group.epoch for group in told if group.index} == {
        key.epoch for key in source.written
    } and max(key.number for key in source.written) == GROUPS_PER_EPOCH - 1


@pytest.mark.parametrize("settings", [SHORT, LONG], ids=["short", "long"])
def test_all_of_it_is_admitted_and_some_of_it_is_learned_from(settings: Settings):
    swarm = SimulatedSwarm(surroundings("imagined-50", settings))

    async def go() -> list[float]:
        shares = []
        for number in range(1, settings.rounds + 1):
            outcomes = [outcome for outcome in await swarm.step(number) if outcome]
            shares.append(Shares.of(outcomes, swarm.harmful).hostile)
        return shares

    assert max(asyncio.run(go())) > 0.0
    swarm.check()
    assert not any(node.refused for node in swarm.nodes.values())


def test_a_swarm_that_imagines_nothing_trains_as_equals_do_and_whoever_is_alone_notices_nothing():
    assert simulated("imagined-0").rounds == simulated("equal").rounds
    alone = mix("8/0")
    files = {simulated(name, arm=alone).as_json() for name in IMAGINED}
    assert len(files) == 1, "so one of them may stand for all"


def test_a_share_of_imagined_groups_gives_the_same_figures_again():
    first, second = simulated("imagined-50"), simulated("imagined-50")
    assert first.as_json() == second.as_json()
    assert Recording.from_json(first.as_json(), first.seconds) == first
    assert first.rounds != simulated("imagined-0").rounds
    assert first.influx is not None and first.influx.looks == ()


def test_imagined_regimes_are_run_where_they_are_asked_for_alone():
    assert not IMAGINED.keys() & REGIMES.keys()
    assert [ALL_REGIMES[name].roles(2)[1].imagines for name in IMAGINED] == [0.0, 0.1, 0.25, 0.5]
    assert all(ALL_REGIMES[name].judged(3) == (0, 1, 2) for name in IMAGINED)


@pytest.mark.usefixtures("in_this_process")
def test_the_table_says_how_much_of_an_update_was_imagined_and_of_what_use(tmp_path: Path):
    plan = Plan(SHORT, (mix("8/0"), AUTO), (0,), 1, (find_regime("imagined-50", ALL_REGIMES),))
    (summary,) = run_regimes(plan, tmp_path, Console(quiet=True))
    alone, auto = summary.arms
    assert alone.measures["planted"].mean == 0.0
    assert auto.measures["planted"].mean > 0.0
    table = ExperimentFolder(tmp_path).table.read_text()
    assert "| imagined | use of imagined | use of others |" in table


def test_log_probs_behind_prompts_of_several_lengths_are_those_of_each_alone():
    context = surroundings("imagined-50")
    policy = context.policy(0)
    pairs = [
        (policy.encode_prompt(p), policy.encode_completion("12", True)) for p in ("Ab", "A b c")
    ]
    together = list(written_logprobs(policy, pairs, 1.0))
    for pair, found in zip(pairs, together, strict=True):
        (alone,) = written_logprobs(policy, [pair], 1.0)
        assert found.tolist() == pytest.approx(alone.tolist(), abs=1e-4)
