import json
import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from transformers import MambaConfig, MambaForCausalLM

from node.config.config import Config
from node.errors import NodeError
from node.evaluation.comparison import Comparison, evaluate
from node.evaluation.evaluator import Evaluation, ForgettingAlarm, heldout_tasks
from node.evaluation.export import ModelOrigin, Training, licence_of, model_card, write_card
from node.learner.supervised import RECORD, WarmStarted
from node.monitor.record import RoundRecord
from node.network.creation import create_swarm
from node.policy.model_files import PolicyError
from node.policy.policy import Policy
from node.storage.checkpoints import Loaded
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import open_manifest, swarm_id
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from tests.support import character_tokenizer

GOOD = (1.0,) * 24 + (0.0,) * 40
POOR = (1.0,) * 4 + (0.0,) * 60
MANY = [TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(64)]
TASKS = heldout_tasks([("add", 0), ("mul", 0)], 40)
UNKNOWN = ModelOrigin(None, None, None)
SIGNED = create_swarm(Identity.from_seed(bytes(32)), name="ours")
OURS = ModelOrigin(SIGNED, open_manifest(SIGNED), None)
UNTRAINED = Training.of([], 0, None)


def test_error_names_model_family_the_engine_cannot_sample():
    model = MambaForCausalLM(MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=98))
    policy = Policy(model, character_tokenizer(), "mamba")
    with pytest.raises(PolicyError, match="the transformers engine on 'mamba' fails"):
        evaluate(Config(), open_manifest(SIGNED), policy, tasks=1, samples=1)


def alarm(state=None):
    """Return a forgetting alarm, restored from a JSON copy of ``state``."""
    alarmed = ForgettingAlarm(Counters(), MANY)
    if state:
        alarmed.load_state_dict(json.loads(json.dumps(state)))
    return alarmed


def alarms(*evaluations):
    return list(map(alarm().look, evaluations))


def test_alarm_reports_each_lasting_drop_once_but_no_single_drop():
    counters = Counters()
    told = map(ForgettingAlarm(counters, MANY).look, (GOOD, POOR, POOR, POOR))
    assert list(told) == [False, False, True, False]
    assert counters.snapshot() == {"forgetting_alarms": 1}
    assert sum(alarms(GOOD, POOR, GOOD, POOR, GOOD)) == 0
    assert sum(alarms(GOOD, POOR, POOR, GOOD, POOR, POOR)) == 2, "a recovery resets it"


@pytest.mark.parametrize(("tasks", "told"), [(MANY, True), (MANY[::-1], False)])
def test_alarm_detects_drop_across_restart_on_the_same_tasks(tasks, told):
    before, after = alarm(), ForgettingAlarm(Counters(), tasks)
    assert not any(map(before.look, (GOOD, POOR)))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.look(POOR) == told


@pytest.mark.parametrize("restarted", [False, True])
def test_alarm_counts_each_policy_version_once(restarted):
    here = alarm()
    assert not any(here.look(each, version) for each, version in ((GOOD, 0), (POOR, 7), (POOR, 7)))
    if restarted:
        here = alarm(here.state_dict())
    assert not here.look(POOR, 7) and here.look(POOR, 8)


def test_alarm_ignores_a_task_that_is_never_built():
    good, poor = (None, *GOOD[1:]), (None, *POOR[1:])
    assert alarms(good, poor, poor) == [False, False, True]


def test_alarm_compares_tasks_built_in_both_runs():
    nothing, few = (None,) * 64, (1.0, *(None,) * 63)
    assert alarms(nothing, GOOD, nothing, few, POOR, nothing, POOR)[-2:] == [False, True]
    assert not any(alarms(GOOD, *[(None,) * 24 + GOOD[24:]] * 5)), "solved tasks are missing"


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_unchanged_policy_raises_no_alarm(rewards):
    assert not any(alarms(*[rewards] * 5))


def test_alarm_has_at_most_one_false_alarm_per_1000_evaluations():
    rng = random.Random(0)
    rates = [rng.choice((0.0, 0.1, 0.5, 0.9)) for _ in range(64)]
    runs = [[[float(rng.random() < p) for p in rates] for _ in range(40)] for _ in range(100)]
    assert sum(any(alarms(*run)) for run in runs) <= 4


def evaluation(*rewards):
    return Evaluation(TASKS[: len(rewards)], rewards)


def test_gain_is_the_mean_gain_per_task():
    found = Comparison.of(evaluation((0.0, 1.0), (0.0,)), evaluation((1.0, 1.0), (0.25,)))
    assert (found.all.tasks, found.all.first, found.all.second) == (2, 0.25, 0.625)
    assert found.all.gain.mean == 0.375 and found.all.gain.margin == pytest.approx(12.706 * 0.125)
    gains = {env: part.gain.mean for env, part in found.families.items()}
    assert gains == {"add": 0.5, "mul": 0.25}
    with pytest.raises(ValueError, match="same tasks"):
        Comparison.of(evaluation((0.0,)), evaluation((0.0,), (1.0,)))


def test_policy_compared_with_itself_has_zero_gain():
    same = evaluation(*[(float(n % 2),) for n in range(40)])
    found = Comparison.of(same, same)
    assert found.all.gain.mean == found.all.gain.margin == 0.0
    assert not found.all.gain.beyond_noise and found.disputed == ()


def test_comparison_lists_most_disputed_tasks_first():
    first = Evaluation(TASKS[:3], ((1.0,), (0.5,), (0.0,)), prompts=("1+1", None, "3*3"))
    found = Comparison.of(first, evaluation((1.0,), (0.25,), (1.0,)))
    told = [(row.prompt, row.first, row.second) for row in found.disputed]
    assert told == [("3*3", 0.0, 1.0), (None, 0.5, 0.25)]


def test_interval_covers_the_true_gain_in_95_percent():
    rng, held = random.Random(0), 0
    for _ in range(400):
        base = [rng.random() * 0.5 for _ in TASKS]
        first, second = (
            evaluation(*[tuple(float(rng.random() < p + gain) for _ in range(8)) for p in base])
            for gain in (0.0, 0.2)
        )
        gain = Comparison.of(first, second).all.gain
        assert gain.margin is not None
        held += abs(gain.mean - 0.2) < gain.margin
    assert math.isclose(held / 400, 0.95, abs_tol=3 * math.sqrt(0.95 * 0.05 / 400))


def test_interval_counts_a_repeated_question_once():
    rng, held = random.Random(0), 0
    prompts = tuple(f"question {number % 10}" for number in range(len(TASKS)))
    for _ in range(400):
        gains = dict.fromkeys(prompts, 0.0)
        gains = {prompt: rng.gauss(0.2, 0.15) for prompt in gains}
        first = Evaluation(TASKS, ((0.25,),) * len(TASKS), prompts=prompts)
        second = evaluation(*[(0.25 + gains[prompt],) for prompt in prompts])
        found = Comparison.of(first, second).all
        assert (found.tasks, found.questions) == (40, 10)
        assert found.gain.mean == pytest.approx(found.second - found.first)
        assert found.gain.margin is not None
        held += abs(found.gain.mean - 0.2) < found.gain.margin
    assert held / 400 > 0.9


def test_pairing_by_task_narrows_interval_for_unequal_difficulty():
    rng, hard = random.Random(1), range(len(TASKS))
    first = evaluation(*[(float(rng.random() < 0.1 + 0.7 * (n % 2)),) * 4 for n in hard])
    second = evaluation(*[tuple(min(1.0, r + 0.05) for r in row) for row in first.rewards])
    found = Comparison.of(first, second)
    assert found.all.gain.beyond_noise
    gains = [found.families[env].gain.mean for env in ("add", "mul")]
    assert found.all.gain.mean == pytest.approx(fmean(gains))


def rounds(*numbers):
    groups = {"reward_local": 0.5, "groups_local": 3, "groups_external": 1, "tokens_trained": 100}
    return [RoundRecord(round=n, policy_step=n, time=0.0, **groups) for n in numbers]


def test_training_counts_end_at_exported_round_and_fill_gaps():
    assert Training.of(rounds(1, 2, 3, 4), 3, 2) == Training(3, 2, 300, 0.25, exact=True)
    for records, last, claims in ((rounds(1, 4, 6, 7), 7, (700, 0.25)), ([], 5, (0, None))):
        training = Training.of(records, last, None)
        assert (training.tokens, training.external, training.exact) == (*claims, False)


def test_model_card_names_swarm_training_data_and_reward():
    signed = create_swarm(Identity.from_seed(bytes(32)), name="a `name` | [x](y)")
    origin = ModelOrigin(signed, open_manifest(signed), 0.4567)
    card = model_card(Config(), Training.of(rounds(1, 2), 2, 2), origin)
    data = ModelCard(card).data
    assert (data.license, data.library_name) == ("apache-2.0", "transformers")
    assert data.base_model is None, "a shipped model is not on a hub"
    assert f"| swarm | `a 'name' / [x](y)` {swarm_id(signed).hex()} |" in card
    assert "| completion tokens trained on | 200 |" in card
    assert "| groups written by peers | 25% |" in card
    assert "| mean reward on held-out tasks | 0.457 |" in card
    assert "`chain_sum`" in card and "vllm serve" in card and "convert_hf_to_gguf.py" in card


def test_model_card_lists_only_selected_families_and_levels():
    chosen = {"tasks.weights": {"chain_sum": 1.0, "gcd": 0.0}, "tasks.levels": {"chain_sum": [0]}}
    config = Config.with_overrides(chosen)
    card = model_card(config, UNTRAINED, OURS)
    assert "On held-out questions of `chain_sum` (level 0):" in card and "gcd" not in card
    whole = model_card(Config(), UNTRAINED, OURS)
    assert "`chain_sum`, " in whole and "level 0" not in whole


def test_model_card_compare_command_names_or_explains_the_base(tmp_path):
    card = model_card(Config(), UNTRAINED, OURS)
    assert "swarm-node compare tiny . --config NODE" in card and "BASE" not in card
    config = Config.with_overrides({"policy.model": str(tmp_path)})
    card = model_card(config, UNTRAINED, OURS)
    assert "compare BASE . --config NODE" in card
    assert "BASE is the folder of the base model" in card
    assert f"| base model | `{tmp_path.name}`, a local folder that is not part" in card


def test_model_card_claims_only_actual_training_and_peers():
    alone = replace(rounds(1)[0], groups_external=0)
    claims = ("Not trained", "Post-trained", "and from those that peers", "its own rollouts alone.")
    for training, expected in (
        (Training.of(rounds(1), 1, 0), (True, False, False, False)),
        (UNTRAINED, (True, False, False, False)),
        (Training.of(rounds(1), 1, 1), (False, True, True, False)),
        (Training.of([alone], 1, 1), (False, True, False, True)),
        (Training.of([], 3, 2), (False, True, False, False)),
    ):
        card = model_card(Config(), training, UNKNOWN)
        assert tuple(claim in card for claim in claims) == expected
        assert (", not trained in a swarm" in card) is expected[0]


def test_model_card_links_public_base_and_hides_local_path(tmp_path):
    public = Config.with_overrides({"policy.model": "Qwen/Qwen2.5-0.5B-Instruct"})
    card = model_card(public, UNTRAINED, OURS, adapter=True)
    data = ModelCard(card).data
    assert (data.base_model, data.library_name) == ("Qwen/Qwen2.5-0.5B-Instruct", "peft")
    assert "base = AutoModelForCausalLM.from_pretrained('Qwen/" in card
    assert "look it up before sharing" in card
    assert "without `--adapter`" in card and "swarm-node eval " not in card
    folder = tmp_path / "secret place" / "mine"
    folder.mkdir(parents=True)
    private = Config.with_overrides({"policy.model": str(folder)})
    card = model_card(private, UNTRAINED, UNKNOWN)
    assert "`mine`" in card and "secret place" not in card
    assert ModelCard(card).data.base_model is None


def test_exported_adapter_names_its_base_and_not_the_folder(tmp_path):
    settings, base = tmp_path / "adapter_config.json", tmp_path / "secret place" / "mine"
    settings.write_text(json.dumps({"base_model_name_or_path": str(base), "r": 8}))
    config = Config.with_overrides({"policy.model": str(base), "policy.lora_rank": 8})
    run, loaded = RunFolder(tmp_path / "run"), Loaded(tmp_path / "step-1", {"policy_step": 1})
    write_card(config, run.create(), loaded, tmp_path, adapter=True)
    assert json.loads(settings.read_text()) == {"base_model_name_or_path": "mine", "r": 8}
    card = tmp_path / "README.md"
    text = card.read_text()
    assert "from_pretrained('BASE'" in text and "BASE is the folder of the base model" in text
    assert "secret place" not in text
    assert card.stat().st_mode == settings.stat().st_mode, "README.md is as readable as the rest"


def test_model_card_describes_base_and_warm_start_data(tmp_path):
    started = WarmStarted("tiny", 15, 240, ("sums", "words"), 0.0, 0.19, 0.5)
    started.write(tmp_path)
    assert WarmStarted.read(str(tmp_path)) == started and WarmStarted.read("tiny") is None
    config = Config.with_overrides({"policy.model": str(tmp_path)})
    trained = model_card(config, Training.of(rounds(1, 2), 2, 2), UNKNOWN)
    said = "15 steps, 240 examples of `sums`, `words`; success on held-out tasks 0% → 19% |"
    assert f"| warm start | {said}" in trained and "| base model | `tiny` |" in trained
    assert "after a warm start" in trained and ModelCard(trained).data.license == "apache-2.0"
    assert "# `tiny`, trained in a swarm" in trained and tmp_path.name not in trained
    untrained = model_card(config, UNTRAINED, UNKNOWN)
    assert "no optimizer step was done after the warm" in untrained
    adapter = model_card(config, UNTRAINED, UNKNOWN, adapter=True)
    assert "exported\nwithout `--adapter`" in adapter and ModelCard(adapter).data.base_model is None
    replace(started, base="/home/anna/secret place/mine").write(tmp_path)
    moved = model_card(config, UNTRAINED, UNKNOWN)
    assert "`mine`" in moved and "secret place" not in moved
    wrong = (tmp_path / RECORD).read_text().replace("15", "{}")
    for damaged in ("{}", '{"steps": "x"}', "[", wrong):
        (tmp_path / RECORD).write_text(damaged)
        with pytest.raises(NodeError, match="record of a warm start cannot be read"):
            model_card(config, UNTRAINED, UNKNOWN)


def test_model_card_escapes_text_from_a_model(tmp_path, monkeypatch):
    acts = "mit\n\n## Requirements\n\n`pip install evil`"
    WarmStarted(f"tiny{acts}", 15, 240, (f"sums{acts}",), 0.0, 0.19, 0.5).write(tmp_path)
    monkeypatch.setattr("node.evaluation.export.licence_of", lambda base: acts)
    config = Config.with_overrides({"policy.model": str(tmp_path)})
    body = model_card(config, UNTRAINED, UNKNOWN).split("---", 2)[2]
    assert "evil" in body and "\n## Requirements" not in body


def test_licence_comes_from_the_base_card(tmp_path):
    assert licence_of(str(tmp_path)) is None and licence_of("nobody/has-this") is None
    others = ["---\ntags: [x]\n---\n", "# no metadata\n", "---\nlicense: [a, b]\n---\n"]
    others += (f"---\n{bad}\n---\n" for bad in ("license: [", "- a", "1: 2", "tags: 9999-99-99"))
    for card, licence in (("---\nlicense: mit\n---\n# m\n", "mit"), *((c, None) for c in others)):
        (tmp_path / "README.md").write_text(card)
        assert licence_of(str(tmp_path)) == licence
