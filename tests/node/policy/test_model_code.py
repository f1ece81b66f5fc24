"""Code of a model never runs, whatever its files and the user's input say."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from node.policy.model_files import PolicyError
from node.policy.model_source import check_model, config_folder
from tests.node.policy.test_model_source import write
from tests.parsing import parse
from tests.support import loaded, saved_policy

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(sys.executable).with_name("swarm-node")
CODE = """from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
open({!r}, "w").close()
class Config(LlamaConfig):
    model_type = "{}"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast): ...
"""
MAP = {
    "config.json": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    "tokenizer_config.json": {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]},
}


@pytest.fixture
def folder(tmp_path):
    return saved_policy(tmp_path / "model")


@pytest.fixture(params=["unheard-of", "llama"])
def model(request, folder, tmp_path, monkeypatch):
    """A model of unknown or known type, whose code would create the file ``ran``."""
    (folder / "own.py").write_text(CODE.format(str(tmp_path / "ran"), request.param))
    for name, classes in MAP.items():
        write(folder, name, auto_map=classes)
    write(folder, model_type=request.param)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return folder


def answer_yes(*arguments):
    return subprocess.run(
        [PROGRAM, *arguments], input="y\n" * 9, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    "line",
    [
        *("plan model", "plan model --probe", "play maze --model model"),
        "join --set policy.model=model --rounds 1",
        "demo --model model --run-dir demo --rounds 1",
    ],
)
def test_commands_reject_model_code_and_do_not_run_it(line, model):
    if json.loads((model / "config.json").read_text())["model_type"] == "llama":
        pytest.skip("a known type is loaded, below")
    result = answer_yes(*line.split())
    assert result.returncode == 2, result.stderr
    output = " ".join((result.stdout + result.stderr).split())
    assert "its own code, which is never run: own.py" in output and "'unheard-of' has" in output
    assert not Path("ran").exists()


def test_known_type_uses_library_class_and_unknown_is_rejected(model):
    known = json.loads((model / "config.json").read_text())["model_type"] == "llama"
    for check in (check_model, config_folder, loaded):
        if known:
            found = check(str(model))
        else:
            with pytest.raises(PolicyError, match=r"never run: own\.py.*Name a model type"):
                check(str(model))
    if known:
        assert type(found.model).__module__ == "transformers.models.llama.modeling_llama"
        answer_yes("plan", "model", "--probe", "--task-tokens", "32")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "name", ["generation_config.json", "additional_chat_templates/tool_use.jinja", "more"]
)
def test_non_weight_symlinks_out_of_folder_are_rejected(folder, name, tmp_path):
    secret = tmp_path / "secrets" / "key"
    secret.parent.mkdir()
    secret.write_text('{"refresh_token": "secret"}')
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret.parent if name == "more" else secret)
    with pytest.raises(PolicyError, match=rf"{name} is a link out of its folder.*Replace it"):
        loaded(folder)


def test_symlinks_to_weights_and_within_folder_are_followed(folder, tmp_path):
    weights = (folder / "model.safetensors").rename(tmp_path / "weights.safetensors")
    (folder / "model.safetensors").symlink_to(weights)
    (folder / "settings.json").symlink_to("config.json")
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert loaded(link).name == str(link)


def test_config_that_names_another_file_is_rejected(folder):
    write(folder, configuration_files=["config.4.0.0.json"])
    for check in (check_model, config_folder):
        with pytest.raises(PolicyError, match=r"configuration_files has another file read"):
            check(str(folder))


def test_adapter_config_in_the_folder_is_rejected(model):
    other = model.rename(model.with_name("other"))
    saved_policy(model)
    (model / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(other), "peft_type": "LORA"})
    )
    with pytest.raises(PolicyError, match=r"adapter_config\.json.*Name the whole model"):
        loaded(model)


@pytest.mark.parametrize(
    "keys",
    [
        {"attn_implementation": "owner/kernel"},
        {"_attn_implementation": "flash|owner/kernel@v1:function"},
        {"attn_implementation": {"": "owner/kernel"}},
        {"text_config": {"experts_implementation": "owner/kernel"}},
        {"per_layer_config": [{"_experts_implementation": "owner/kernel"}]},
    ],
)
def test_model_that_names_a_hub_kernel_is_rejected(folder, keys):
    write(folder, **keys)
    for check in (check_model, config_folder, loaded):
        with pytest.raises(PolicyError, match=r"its own code, which is never run: .*owner/kernel"):
            check(str(folder))


@pytest.mark.parametrize(
    "template",
    [
        *("{{ ''.__class__.__mro__ }}", "{% include '/etc/passwd' %}", "{{ missing.a }}"),
        *("{% for i in range(10 ** 9) %}x{% endfor %}", "{{ 1 / 0 }}", "{% if %}"),
        "{{ raise_exception('no') }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_failing_chat_template_gives_a_one_line_error(folder, template):
    write(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(PolicyError, match=r"chat template of .* fails: .+\. Choose ") as error:
        loaded(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("template", ["{{ messages[0]['role'] }}: hello", ""])
def test_chat_template_without_the_message_is_rejected(folder, template):
    write(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(PolicyError, match=r"chat template of .* omits the user's message.*Choose"):
        loaded(folder)


class Writes:
    def __reduce__(self):
        return open, ("ran", "w")


def test_pickled_weights_may_contain_only_tensors(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    loaded(folder)
    torch.save({**weights, "more": Writes()}, folder / "pytorch_model.bin")
    with pytest.raises(PolicyError, match=r"more than tensors.*safetensors"):
        loaded(folder)
    assert not Path("ran").exists()


LOADS = {"from_pretrained": "trust_remote_code", "from_config": "trust_remote_code"}
CLASSES = {"EngineArgs": "trust_remote_code", "LLM": "trust_remote_code"}


def unguarded(tree):
    """Yield lines that load a model without the keyword that disables its code."""
    guarded = set()
    for call in (item for item in ast.walk(tree) if isinstance(item, ast.Call)):
        given = {each.arg: ast.unparse(each.value) for each in call.keywords}
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        if name in CLASSES and given.get(CLASSES[name]) != "False":
            yield call.lineno
        if name in LOADS and given.get(LOADS[name]) == "False":
            guarded.add(call.func)
        if ast.unparse(call.func) == "torch.load" and given.get("weights_only") != "True":
            yield call.lineno
    for item in ast.walk(tree):
        if isinstance(item, ast.Attribute) and item.attr in LOADS and item not in guarded:
            yield item.lineno


@pytest.mark.parametrize("folder", ["node", "experiments", "benchmarks", "install", "examples"])
def test_every_model_load_disables_remote_code(folder):
    for path in (ROOT / folder).rglob("*.py"):
        assert list(unguarded(parse(path.read_text(encoding="utf-8")))) == [], path
