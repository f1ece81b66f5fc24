"""Simulated swarms: repeatable, resumable, and with the code of real nodes."""

import asyncio
import gc
import io
import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from experiments.arms import AUTO, CONTROLS, Arm, mix, varied
from experiments.folder import ExperimentFolder
from experiments.recording import Recording
from experiments.report import run_sapo
from experiments.run import Plan
from experiments.settings import (
    EPOCH_SECONDS,
    START,
    Configuration,
    Settings,
    SwarmContext,
    node_config,
    node_identity,
    signed_manifest,
)
from experiments.setups import Base
from experiments.simulation import SimulatedNode, run_simulation
from experiments.virtual_clock import VirtualClock
from experiments.workers import Job, WorkerPool
from node.config.config import Config
from node.errors import ConfigError, NodeError
from node.policy.policy import Policy
from node.run.node import Node
from node.run.update_groups import Outcome, Rules
from node.storage.run_folder import RunFolder

SMALL = Settings(nodes=3, rounds=4, model="tiny", bury=0, eval_every=2, eval_tasks=4)
MODELS: dict[Base, str] = {"weak": "tiny", "wide": "tiny-wide"}


def control(name: str) -> Arm:
    return next(arm for arm in CONTROLS if arm.name == name)


def simulated(arm: Arm, seed: int = 0, settings: Settings = SMALL) -> Recording:
    return run_simulation(settings, Configuration(arm, seed), MODELS)


@pytest.fixture(scope="module")
def shared() -> Recording:
    torch.set_num_threads(1)
    return simulated(mix("4/4"))


def test_same_seed_repeats_a_run_exactly_and_another_differs(shared: Recording):
    assert simulated(mix("4/4")).as_json() == shared.as_json()
    assert simulated(mix("4/4"), seed=1).rounds != shared.rounds


def test_run_releases_its_models(monkeypatch: pytest.MonkeyPatch):
    models, copied = list[weakref.ref[torch.nn.Module]](), SwarmContext.policy

    def tracked(context: SwarmContext, number: int) -> Policy:
        policy = copied(context, number)
        models.append(weakref.ref(policy.model))
        return policy

    monkeypatch.setattr(SwarmContext, "policy", tracked)
    gc.disable()  # The collector runs at unpredictable times.
    try:
        simulated(mix("4/4"), settings=replace(SMALL, rounds=1))
        assert models and not [each for each in models if each() is not None]
    finally:
        gc.enable()


def test_recording_round_trips(shared: Recording):
    assert Recording.from_json(shared.as_json(), shared.seconds) == shared


def test_next_round_uses_published_groups_up_to_the_cap(shared: Recording):
    first, *later = shared.rounds
    assert first.external == 0
    assert 0 < max(figures.external for figures in later) <= 4


def test_local_groups_do_not_fill_empty_peer_slots(shared: Recording):
    context = SwarmContext(SMALL, Configuration(mix("4/4"), 0), MODELS)
    outcome = SimulatedNode(context, 0).step()
    assert (len(outcome.local), len(outcome.external)) == (4, 0)


def test_auto_arm_uses_the_default_node_config():
    arm = node_config(SMALL, Configuration(mix("auto"), 0), 0, "tiny")
    assert arm.mixture == Config().mixture
    assert AUTO.rules == Rules()


def test_variation_changes_only_its_own_config_keys():
    arm = varied(" mixture.local=3  learner.lr=1e-4 ")
    assert arm.name == "auto mixture.local=3 learner.lr=1e-4"
    changed = node_config(SMALL, Configuration(arm, 0), 0, "tiny")
    default = node_config(SMALL, Configuration(mix("auto"), 0), 0, "tiny")
    assert (changed.mixture.local, changed.learner.lr) == (3, 1e-4)
    assert changed.mixture.model_copy(update={"local": default.mixture.local}) == default.mixture
    names = ("tasks.weights={gcd=1}", "tasks.weights={gcd=10}", "mixture.filters=[]")
    assert len({varied(name).file_name for name in names}) == 3
    with pytest.raises(ConfigError, match=r"engine\.top_k"):
        varied("engine.top_k=1")


def test_auto_arm_can_exceed_its_nominal_peer_group_count():
    unlimited = {**AUTO.overrides, "mixture.author_share": 1.0, "mixture.unproven_share": 1.0}
    arm = replace(AUTO, overrides=unlimited)
    swarm = simulated(arm, settings=replace(SMALL, nodes=8, rounds=3))
    assert max(figures.external for figures in swarm.rounds) > AUTO.external


def test_undiscarded_arm_shares_and_uses_uninformative_groups():
    swarm = simulated(control("4/4 undiscarded"), settings=replace(SMALL, rounds=2))
    assert swarm.rounds[1].external == 4
    assert swarm.rounds[1].trained < 4 + 4 * swarm.rounds[1].informative


def test_update_keeps_only_informative_local_groups():
    context = SwarmContext(SMALL, Configuration(control("32/0 best 8"), 0), MODELS)
    outcome = SimulatedNode(context, 0).step()
    informative = sum(group.informative for group in outcome.local)
    assert len(outcome.local) == 32
    assert 0 < outcome.update.groups_informative == min(8, informative)


def test_partial_credit_rewards_more_than_right_answers():
    swarm = simulated(control("8/0 partial"), settings=replace(SMALL, rounds=1, nodes=1))
    assert swarm.rewards([0])[0] > swarm.rounds[0].solved


def traces(outcomes: list[Outcome]) -> list[tuple[object, ...]]:
    """Return all that is observed of rounds except their times."""
    return [(o.round, o.policy_step, o.local, o.update, o.evaluation) for o in outcomes]


@pytest.mark.processes
def test_isolated_simulated_node_matches_a_real_node(tmp_path: Path):
    this = Configuration(mix("8/0"), 5)
    context = SwarmContext(SMALL, this, MODELS)
    node = SimulatedNode(context, 1)
    alone = [_step(node, context.clock, n) for n in range(SMALL.rounds)]
    folder = RunFolder(tmp_path).create()
    folder.identity.write_bytes(node_identity(5, 1).export())
    folder.identity.chmod(0o600)
    folder.manifest.write_bytes(signed_manifest(SMALL, this))
    config = node_config(SMALL, this, 1, "tiny").model_dump()
    config["network"]["listen"] = ("/ip4/127.0.0.1/tcp/0",)
    clock = VirtualClock(START)
    with Node(Config.model_validate(config), folder, clock) as real:
        joined = [_step(real, clock, n) for n in range(SMALL.rounds)]
    assert traces(joined) == traces(alone)


def _step(node: SimulatedNode | Node, clock: VirtualClock, number: int) -> Outcome:
    outcome = node.rounds.step(last=number + 1 == SMALL.rounds)
    asyncio.run(clock.advance(EPOCH_SECONDS))
    return outcome


class Killed(Exception):  # noqa: N818 - the name is clear
    """Ends the experiment in the middle."""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run jobs in this process; the fourth is killed. Return the titles of the jobs."""
    titles: list[str] = []

    def do(crew: WorkerPool, jobs: Sequence[Job], progress) -> None:
        for job in jobs:
            if len(titles) == 3:
                titles.append("killed")
                raise Killed
            Job.decode(job.encode()).do(lambda rounds: None)
            progress(job, SMALL.rounds, True)
            titles.append(job.title)

    monkeypatch.setattr(WorkerPool, "do", do)
    return titles


def test_killed_experiment_resumes_the_missing_runs(tmp_path: Path, done: list[str]):
    settings = replace(SMALL, nodes=2, rounds=2)
    plan = Plan(settings, (mix("8/0"), mix("4/4")), (0, 1), workers=1)
    with pytest.raises(Killed):
        run_sapo(plan, tmp_path, Console(quiet=True))
    assert not ExperimentFolder(tmp_path).results.exists()
    screen = Console(record=True, width=400, file=io.StringIO())
    run_sapo(plan, tmp_path, screen)
    assert f"3 finished runs of 4 in {tmp_path / 'runs'}; delete" in screen.export_text()
    runs = ["equal 8/0, seed 0", "equal 4/4, seed 0", "equal 8/0, seed 1"]
    assert done == [*runs, "killed", "equal 4/4, seed 1"]
    folder = ExperimentFolder(tmp_path)
    reference, arm = json.loads(folder.results.read_text())["arms"]
    assert (reference["arm"], reference["comparison"]) == ("8/0", None)
    assert arm["seeds"] == [0, 1]
    pairs = zip(_cumulative(arm), _cumulative(reference), strict=True)
    gains = [local - other for local, other in pairs]
    assert arm["comparison"]["gain"]["values"] == pytest.approx(gains)
    assert "| 4/4 | 2 |" in folder.table.read_text()
    assert folder.chart.read_bytes().startswith(b"\x89PNG")


def _cumulative(arm: dict) -> list[float]:
    return arm["measures"]["cumulative"]["values"]


def test_folder_refuses_different_settings(tmp_path: Path):
    ExperimentFolder(tmp_path).open(SMALL)
    ExperimentFolder(tmp_path).open(SMALL)
    with pytest.raises(NodeError, match="rounds 4 there, 5 here"):
        ExperimentFolder(tmp_path).open(replace(SMALL, rounds=5))


@pytest.mark.parametrize("damage", ["{", "[]", "{}", "null", "\xff"])
def test_error_names_damaged_experiment_file_and_the_fix(tmp_path: Path, damage: str):
    folder, of = ExperimentFolder(tmp_path), Configuration(mix("4/4"), 0)
    folder.open(SMALL)
    folder.seconds(of).write_text("[]")
    folder.run(of).write_text(damage, "latin-1")
    with pytest.raises(NodeError, match=r"a damaged file: \S*equal\.4-4\.0\.json\. Remove "):
        folder.read(of)
    folder.seconds(of).write_text(damage, "latin-1")
    with pytest.raises(NodeError, match=r"a damaged file: .*Remove \S*equal\.4-4\.0\.json"):
        folder.read(of)
    folder.settings.write_text(damage, "latin-1")
    with pytest.raises(NodeError, match=r"experiment\.json|rounds None there, 4 here"):
        folder.open(SMALL)


def test_long_variation_gets_a_unique_short_file_name():
    keys = "learner.lr=1e-4 " * 30
    some, other = (varied(f"{keys}learner.epochs={n}") for n in "12")
    assert some.file_name != other.file_name
    assert len(some.file_name.encode()) < 200
    assert varied("learner.lr=1e-4").file_name == "auto_learner.lr=1e-4"


@pytest.mark.processes
def test_worker_processes_match_local_runs_and_report_failures(tmp_path: Path):
    folder = ExperimentFolder(tmp_path)
    settings = replace(SMALL, nodes=2, rounds=2)
    folder.open(settings)
    jobs = [Job(str(tmp_path), settings, seed, mix("4/4")) for seed in (0, 1)]
    seen: list[tuple[str, bool]] = []
    with WorkerPool(1, folder.log) as crew:
        crew.do(jobs, lambda job, rounds, finished: seen.append((job.title, finished)))
        missing = replace(settings, model=str(tmp_path / "nothing"))
        broken = Job(str(tmp_path), missing, 2, mix("4/4"))
        with pytest.raises(NodeError, match=r"4/4, seed 2\. .*nothing"):
            crew.do([broken], lambda *event: None)
    with WorkerPool(1, folder.log) as crew:
        lost = replace(broken, settings=None)
        with pytest.raises(NodeError, match=r"4/4, seed 2 ended.*workers\.log"):
            crew.do([lost], lambda *event: None)
    ended = [title for title, finished in seen if finished]
    assert ended == ["equal 4/4, seed 0", "equal 4/4, seed 1"]
    assert "ValidationError" in folder.log.read_text()
    here = simulated(mix("4/4"), settings=settings)
    assert folder.read(Configuration(mix("4/4"), 0)).rounds == here.rounds
