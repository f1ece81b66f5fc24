"""A real instruct model learns in a swarm of two nodes; run ``make test-real``."""

import json
from pathlib import Path

import pytest

from node.config.config import Config, load
from node.policy.policy import Policy
from node.storage.run_folder import RunFolder
from tests.node.programs import program

MODEL = Path(__file__).resolve().parents[2] / ".venv" / "SmolLM2-135M-Instruct"
ROUNDS = 3

pytestmark = pytest.mark.real_model


def command(*arguments: str, cwd: Path, module: str = "node.cli.main") -> str:
    done = program("-m", module, *arguments, cwd=cwd, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """Run a demo of three rounds; return its summary and its folder."""
    folder = tmp_path_factory.mktemp("real")
    options = ("--model", str(MODEL), "--rounds", str(ROUNDS), "--run-dir", "run", "--json")
    return json.loads(command("demo", *options, cwd=folder)), folder / "run"


def test_two_nodes_train_the_model_and_learn_from_peers(demo):
    summary, folder = demo
    assert [node["rounds"] for node in summary["nodes"]] == [ROUNDS, ROUNDS]
    assert sum(node["groups_external"] for node in summary["nodes"]) > 0
    assert all(not node["groups_refused"].get("rewards") for node in summary["nodes"])
    output = (folder / "node-1" / "output.log").read_text()
    assert "result: the policy can learn from its own rollouts" in output
    first, second = (load(folder / f"node-{n}" / "node.toml") for n in (1, 2))
    assert first.engine.max_new_tokens == second.engine.max_new_tokens < 256
    assert first.tasks.levels == second.tasks.levels != {}


def test_engine_and_learner_agree(demo):
    _, folder = demo
    config = load(folder / "node-1" / "node.toml")
    lines = (folder / "node-1" / "metrics.jsonl").read_text().splitlines()
    gaps = [json.loads(line)["logprob_mismatch"] for line in lines]
    known = [gap for gap in gaps if gap is not None]
    assert len(gaps) == ROUNDS and known and max(known) <= config.widest_mismatch


def test_turn_ends_with_the_template_token():
    policy = Policy.load(Config.with_overrides({"policy.model": str(MODEL)}).policy)
    assert policy.encode_completion("4", stopped=True)[-1] == policy.eos_id
    text = policy.tokenizer.decode(policy.encode_prompt("What is 2 + 2?"))
    assert text.endswith("<|im_start|>assistant\n") and "<|im_end|>" in text
    assert policy.tokenizer.decode([policy.eos_id]) == "<|im_end|>"


def test_one_step_warm_start_gives_a_loadable_model(tmp_path):
    command("init", "--model", str(MODEL), "node", cwd=tmp_path)
    command("create", "--config", "node", "--name", "warm", cwd=tmp_path)
    folder = RunFolder(tmp_path / "node")
    few = ("levels={products=[0]}", "weights={products=1.0}")
    options = [part for each in few for part in ("--set", f"tasks.{each}")]
    options += ["--set", "engine.max_new_tokens=16"]
    command("warm-start", "--config", "node", "--steps", "1", *options, cwd=tmp_path)
    config = load(folder.config)
    assert config.policy.model == str(folder.root / "warm-start")
    assert Policy.load(config.policy).model.num_parameters() > 1e8


def test_experiment_reports_measures_of_a_real_model(tmp_path):
    row = ("--model", str(MODEL), "--mix", "8/0", "--seeds", "1", "--run-dir", "table")
    small = ("--nodes", "1", "--rounds", "1", "--warm-start", "1")
    shown = command("sapo", *row, *small, "--json", cwd=tmp_path, module="experiments")
    (arm,) = json.loads(shown)["arms"]
    measured = {name: estimate["mean"] for name, estimate in arm["measures"].items()}
    assert measured["tokens"] > 0 and 0 < measured["coverage"] <= 1
    assert measured["heldout"] <= measured["coverage"]
