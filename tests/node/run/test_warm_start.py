"""A warm start teaches a model the answer format of the swarm's tasks."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError

from node.config.config import Config, load, write_config
from node.config.learning import LearnerSection
from node.errors import DiskFullError, NodeError
from node.evaluation.evaluator import Evaluation
from node.learner.supervised import RECORD, SupervisedLearner
from node.network.creation import create_swarm
from node.policy.policy import Policy
from node.run.warm_start import enough, warm_start
from node.storage.run_folder import RunFolder
from node.tasks.task_set import Allowed, load_task_set
from node.tasks.verifier.verifier import Verifier
from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef


@pytest.fixture
def node(tmp_path: Path) -> RunFolder:
    """Return the folder of an untrained node in a swarm with easy tasks."""
    tasks = tmp_path / "easy.toml"
    tasks.write_text(
        'source = "reasoning-gym"\nversion = "0.1.25"\nextract = "answer_tag"\n'
        'template = "{question} <answer>"\n[[env]]\nname = "spell_backward"\n'
        "levels = [{ min_word_len = 3, max_word_len = 3 }]\n"
    )
    folder = RunFolder(tmp_path / "node").create()
    identity = Identity.from_seed(bytes(32))
    folder.manifest.write_bytes(create_swarm(identity, name="easy", task_set=str(tasks)))
    keys = {"policy.model": "tiny", "policy.device": "cpu", "engine.max_new_tokens": 12}
    write_config(folder.config, Config.with_overrides(keys))
    return folder


def warmed(node: RunFolder, steps: int = 1, tell=lambda line: None):
    return warm_start(load(node.config), node, node.config, steps, tell)


def test_warm_start_saves_a_model_and_prints_a_summary(node):
    lines: list[str] = []
    record = warmed(node, 3, lines.append)
    assert record.base == "tiny" and record.families == ("spell_backward",)
    assert (record.steps, record.examples) == (3, 48)
    model = node.root / "warm-start"
    assert json.loads((model / RECORD).read_text())["steps"] == 3
    assert load(node.config).policy.model == str(model)
    assert Policy.load(load(node.config).policy).model.num_parameters() > 0
    assert lines[0].startswith("before: ") and "loss" in lines[1] and str(model) in lines[-1]


def test_warm_start_refuses_to_overwrite_a_model(node):
    warmed(node)
    with pytest.raises(NodeError, match="warm-start"):
        warmed(node)
    assert (node.root / "warm-start" / RECORD).exists()


def test_interrupted_warm_start_names_the_key_to_change(node, monkeypatch):
    killed = Mock(side_effect=SystemExit)
    monkeypatch.setattr("node.run.warm_start.set_keys", killed)
    with pytest.raises(SystemExit):
        warmed(node)
    assert load(node.config).policy.model == "tiny"
    with pytest.raises(NodeError, match=r"policy\.model = '.*warm-start' in .*node\.toml"):
        warmed(node)


def test_warm_start_on_a_full_disk_fails_and_cleans_up(node, monkeypatch):
    partial = node.root / ".warm-start-killed"
    partial.mkdir()
    full = SafetensorError("Error while serializing: I/O error: (os error 28)")
    monkeypatch.setattr(Policy, "save", Mock(side_effect=full))
    with pytest.raises(DiskFullError, match="Free some space there"):
        warmed(node)
    assert list(node.root.glob("*warm-start*")) == [] and load(node.config).policy.model == "tiny"


def test_failed_warm_start_leaves_no_files(node):
    node.manifest.unlink()
    with pytest.raises(NodeError):
        warmed(node)
    assert not (node.root / "warm-start").exists()
    assert load(node.config).policy.model == "tiny"


def test_supervised_steps_teach_the_policy_one_example():
    policy = Policy.load(Config.with_overrides({"policy.device": "cpu"}).policy)
    learning = LearnerSection(lr=1e-3, warmup_steps=1)
    learner = SupervisedLearner(policy, learning)
    losses = [learner.step([("Spell it backward: sun\nAnswer:", "nus")]) for _ in range(12)]
    assert losses[-1] < 0.2 * losses[0] and policy.version == 12
    ids = policy.encode_prompt("Spell it backward: sun\nAnswer:")
    with torch.no_grad():
        first = policy.model(torch.tensor([ids])).logits[0, -1].argmax()
    assert first == policy.encode_completion("nus", stopped=True)[0]


def test_example_answer_has_the_format_of_its_prompt():
    specs = load_task_set("reasoning-gym")
    with Verifier(specs, Allowed(), outside=False, counters=Counters()) as verifier:
        verifier.start()
        names = ("base_conversion", "propositional_logic")
        tasks = [TaskRef(name, 0, 7, Split.TRAIN) for name in names]
        (prompt, written), (_, unknown) = verifier.examples(tasks)
        assert verifier.prompts(tasks)[0] == prompt and "<answer>" in prompt
        assert written is not None and written.startswith("<answer>")
        assert verifier.verify(tasks[0], [written]).rewards == (1.0,)
        assert unknown is None


@pytest.mark.parametrize(
    ("rewards", "useful"),
    [
        (((0.1, 0.3), (0.2, 0.0)), False),  # only partial credit
        (((1.0, 0.0), (0.0, 0.0)), True),
        (((1.0, 1.0), (0.0, 0.0)), True),
        (((1.0, 0.0), (0.0, 0.0), (0.0, 0.0)), False),
    ],
)
def test_enough_requires_correct_answers(rewards, useful):
    tasks = tuple(TaskRef("sums", 0, number, Split.HELDOUT) for number in range(len(rewards)))
    assert enough(Evaluation(tasks, rewards)) is useful
