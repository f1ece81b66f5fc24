import json
import logging
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from node.config.config import Config, load, write_config
from node.config.learning import LearnerSection
from node.doctor.checks import check_disk, check_model_memory
from node.engines import kinds
from node.engines.transformers.decoding import KEPT_SHARE
from node.engines.transformers.static_step import StaticStep
from node.errors import ConfigError, NodeError
from node.plan import machine, model_shape
from node.plan import model_shape as module
from node.plan.choice import LEARNING_RATES, choose, fits, learning_rate, methods, need_of
from node.plan.machine import GIB, bfloat16_instructions, by_data_sheet, card, this_machine
from node.plan.memory import Workload, activations, cached_token, estimate, laid_out, width
from node.plan.model_shape import by_sizes, check_memory, help_for, in_files, least_memory, shape_of
from node.plan.plan import instead, lines, plan
from node.plan.speed import estimated, probe, random_policy
from node.policy.model_source import PolicyError, shipped_folder
from node.run.preflight import check_start
from node.storage.run_folder import RunFolder
from tests.node.plan.hardware_table import PAGE, drawn, shape
from tests.node.plan.shapes import LLAMA_3B, QWEN3_MOE, QWEN_HALF, REAL, laptop, with_gpu, written
from tests.node.programs import python

FAMILIES = (
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "olmo",
    "olmo2",
    "phi3",
    "glm4",
    "hunyuan_v1_dense",
)
SMALL = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "head_dim": 64}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "pad_token_id": 0}
MACHINES = {"laptop": laptop(16), "small GPU": with_gpu(8), "GPU": with_gpu(24)}
MACHINES["large GPU"] = with_gpu(80, memory=256)
KEYS = {
    "policy.dtype": st.sampled_from(["float32", "bfloat16"]),
    "policy.lora_rank": st.sampled_from([0, 16]),
    "learner.offload": st.booleans(),
    "learner.optimizer": st.sampled_from(["adamw", "adamw8bit"]),
    "learner.gradient_checkpointing": st.booleans(),
    "schedule.mode": st.sampled_from(["sync", "async"]),
}


def chosen(name, machine):
    return choose(shape(name), machine, "some/model", 512)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("name", REAL)
def test_chosen_plan_fits_and_loads_from_node_toml(name, machine, tmp_path):
    try:
        choice = chosen(name, machine)
    except ConfigError as error:
        assert "can be used" in error.remedy and "--task-tokens" in error.remedy
        return
    assert fits(choice.estimate, machine) and choice.estimate.peak("memory") <= machine.usable
    assert choice.estimate.peak("device") <= machine.device.usable
    assert choice.estimate.disk <= machine.disk
    write_config(tmp_path / "node.toml", choice.config)
    assert load(tmp_path / "node.toml") == choice.config


@pytest.mark.parametrize("name", REAL)
def test_more_memory_never_picks_a_worse_method(name):
    words = [method.description for method in methods(laptop())]

    def place(memory):
        try:
            return words.index(chosen(name, laptop(memory, disk=1e5)).method.description)
        except ConfigError:
            return len(words)

    places = [place(memory) for memory in (8, 16, 24, 32, 64, 128, 1024)]
    assert places == sorted(places, reverse=True) and places[-1] == 0
    if name == "qwen-1.5":
        assert places[4] == 0 < places[1] < len(words), "less memory selects a later method"


@pytest.mark.parametrize("nodes", [1, 8])
@pytest.mark.parametrize("stays", [True, False], ids=["kept", "not kept"])
def test_plan_counts_gpu_step_in_updates_only_if_engine_keeps_it(stays, nodes):
    keys = {"policy.dtype": "bfloat16", "engine.max_new_tokens": 384}
    config, qwen = Config.with_overrides(keys), shape("qwen-half")
    work = Workload.of(config, qwen, 128)
    with torch.device("meta"):
        built = AutoConfig.for_model(**QWEN_HALF)
        step = StaticStep(AutoModelForCausalLM.from_config(built, dtype=torch.bfloat16))
        step.reserve(work.rows, work.prompt + work.answer)
    whole = step.bytes / KEPT_SHARE * (1.001 if stays else 0.999)
    found = need_of(qwen, machine.one_of(with_gpu(whole / GIB), nodes), config, 512)
    assert stays == any("update" in part.phases for part in found.parts if part.name == "cache")


def test_nodes_that_share_a_gpu_do_not_use_vllm(monkeypatch):
    monkeypatch.setattr(kinds.Vllm, "check", lambda kind: None)
    alone, shared = with_gpu(80), machine.one_of(with_gpu(80), 2)
    found = [chosen("qwen-half", each).config.engine.backend for each in (alone, shared)]
    assert found == ["vllm", "transformers"]


def test_micro_batches_grow_with_device_memory():
    machines = [laptop(16), laptop(64), *(with_gpu(n, memory=256) for n in (24, 48, 80))]
    tokens = [chosen("qwen-half", each).keys["learner.micro_batch_tokens"] for each in machines]
    assert tokens == [1024, 4096, 4096, 16384, 16384]


def test_cpu_without_bfloat16_instructions_prefers_float32():
    new = laptop(16)
    old = replace(new, device=replace(new.device, flops={"float32": 1.7e11, "bfloat16": 4e9}))
    dtypes = [chosen("qwen-half", machine).config.policy.dtype for machine in (old, new)]
    assert dtypes == ["float32", "bfloat16"]


def test_plan_keeps_fewer_checkpoints_or_fails_on_small_disk():
    each = chosen("qwen-half", laptop(16)).estimate.disk / 4 / GIB
    few = chosen("qwen-half", laptop(16, disk=2.5 * each)).config.schedule
    assert (few.keep_checkpoints, few.keep_best) == (1, 0)
    with pytest.raises(ConfigError, match=r"schedule\.keep_checkpoints: .*of disk.*are free"):
        chosen("qwen-half", laptop(16, disk=each))


@given(
    st.sampled_from(sorted(REAL)),
    st.floats(1.05, 4.0),
    st.sampled_from(["cpu", "cuda"]),
    st.fixed_dictionaries(KEYS),
)
def test_larger_model_needs_more_memory(name, factor, device, keys):
    config = Config.with_overrides(keys)
    small = estimate(shape(name), config, device=device, prompt=128)
    large = estimate(shape(name).scaled(factor), config, device=device, prompt=128)
    assert large.disk > small.disk
    for place in ("memory", "device"):
        assert large.peak(place) >= small.peak(place)
    assert large.peak("memory") + large.peak("device") > small.peak("memory") + small.peak("device")


@given(st.sampled_from(sorted(REAL)), st.integers(64, 4096), st.integers(64, 4096))
def test_longer_answers_never_need_less(name, first, second):
    def peak(tokens):
        keys = {"learner.micro_batch_tokens": 65536, "engine.max_new_tokens": tokens}
        told = estimate(shape(name), Config.with_overrides(keys), device="cpu", prompt=64)
        return told.peak("memory")

    assert peak(min(first, second)) <= peak(max(first, second))


def test_int8_copy_takes_a_quarter_of_memory_and_generates_faster():
    name, machine = "qwen-half", laptop()
    whole, rounded = (
        Config.with_overrides({"engine.backend_options": {"int8": int8}}) for int8 in (False, True)
    )
    assert laid_out(shape(name), rounded) * 4 == laid_out(shape(name), whole)
    work = Workload.of(rounded, shape(name), 64)
    speeds = [estimated(shape(name), each, work, machine.device).write for each in (whole, rounded)]
    assert speeds[0] < speeds[1]


def test_half_billion_fits_a_laptop_and_8_billion_a_large_gpu():
    assert not chosen("qwen-half", laptop(16)).config.policy.lora_rank
    assert chosen("qwen3-8b", with_gpu(80, 256)).config.policy.dtype == "bfloat16"
    with pytest.raises(ConfigError, match=r"policy\.model: .*at least .* of main memory"):
        chosen("qwen3-8b", laptop(8))
    busy = replace(laptop(64), usable=laptop(16).usable)
    assert fits(chosen("qwen-1.5", busy).estimate, laptop(16)), "plans use only usable memory"


@pytest.mark.parametrize("gib", [1, 2, 4, 8, 25])
def test_machine_does_not_depend_on_memory_used_by_others(monkeypatch, gib):
    def seen(free):
        total = gib * GIB
        used = SimpleNamespace(total=total, available=round(free * total))
        monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: used)
        return this_machine("cpu", Path())

    idle = seen(0.95)
    assert replace(seen(0.1), disk=idle.disk) == idle
    assert 0.75 * idle.memory <= idle.usable <= idle.memory


@pytest.mark.parametrize(
    ("words", "found"),
    [("flags : avx2 avx512_bf16", True), ("Features : asimd bf16", True), ("flags : avx2", False)],
)
def test_bfloat16_support_is_read_from_cpuinfo(tmp_path, words, found):
    (tmp_path / "cpuinfo").write_text(words)
    assert bfloat16_instructions(tmp_path / "cpuinfo") is found
    assert bfloat16_instructions(tmp_path / "nothing") is False


def test_gpu_speed_comes_from_its_data_sheet():
    named = by_data_sheet("NVIDIA GeForce RTX 4060 Ti", 16 * GIB)
    assert named.bandwidth == 288e9, "not the value of the RTX 4060"
    assert by_data_sheet("NVIDIA H200", 150 * GIB).bandwidth == 4800e9
    old = by_data_sheet("Tesla T4", 15 * GIB, half=False)
    assert 0 < old.flops["bfloat16"] < old.flops["float32"] == card(16).flops["float32"]


def test_slow_plan_is_reported_with_remedies_under_ten_minutes(tmp_path):
    folder = str(written(tmp_path, QWEN_HALF))
    slow, quick = plan(folder, laptop(32), 512), plan(folder, with_gpu(24), 512)
    assert slow.speed.round > 600 >= quick.speed.round and list(instead(quick)) == []
    head, _, *remedies = instead(slow)
    assert "not useful" in head
    shown = "\n".join(lines(slow))
    assert f"takes about {slow.speed.round / 60:.0f} min" in shown
    assert shown.index("takes about") < shown.index("main memory\n")
    for words in ("parameters", "--task-tokens", "fewer and smaller", "a GPU of 24 GB"):
        (line,) = [each for each in remedies if words in each]
        time, unit = line.rsplit(": ", 1)[1].split()[:2]
        assert float(time) <= (10 if unit == "min" else 60)
    (tokens,) = [int(line.split("--task-tokens ")[1].split(":")[0]) for line in remedies[1:2]]
    assert plan(folder, laptop(32), tokens).speed.round <= 600
    told = slow.as_json()
    assert told["useful"] is False and told["instead"] == list(instead(slow))
    measured = replace(slow, speed=replace(slow.speed, update=599.0, generate=0.0))
    assert list(instead(measured)) == [], "the measured speed counts"


def test_learning_rates_follow_the_documented_rule():
    rule = LearnerSection.model_fields["lr"].description
    for most, rate in LEARNING_RATES:
        assert f"{rate:.0e} below {most // 10**6} million".replace("e-0", "e-") in rule
    sizes = (1_000_000, 60_000_000, 135_000_000, 500_000_000)
    assert [learning_rate(size, adapters=False) for size in sizes] == [3e-4, 3e-5, 2e-5, 1e-6]
    assert [learning_rate(size, adapters=True) for size in sizes] == [3e-4, 3e-4, 2e-4, 1e-5]


@pytest.fixture
def sixteen(monkeypatch):
    """A machine of 16 GiB, half of them free, without swap and GPU."""
    monkeypatch.setattr(module, "main_memory", lambda: (16 * GIB, 8 * GIB))
    monkeypatch.setattr(module, "gpu_memory", lambda _: 0)
    monkeypatch.setattr(module.psutil, "swap_memory", lambda: SimpleNamespace(total=0))


def config_of(folder, **keys):
    named = {key.replace("__", "."): value for key, value in keys.items()}
    return Config.with_overrides({"policy.model": str(folder), **named})


def filled(folder):
    """Add a weights file, of which only the existence matters."""
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    return folder


def test_by_sizes_never_exceeds_the_weights_and_is_0_if_unknown():
    for config, parameters, _ in (REAL[name] for name in REAL.keys() - {"qwen3-moe"}):
        assert 0.999 * parameters < by_sizes(config) <= parameters
    assert by_sizes(QWEN3_MOE) == by_sizes({}) == by_sizes({"model_type": "llama"}) == 0


@pytest.mark.parametrize("model", ["tiny", "tiny-wide", "tiny-working"])
def test_file_weights_are_exact(model):
    folder = shipped_folder(model)
    counted = shape_of(folder, model).parameters
    assert in_files(folder) == model_shape.least_weights(folder) == counted


def test_model_without_attention_heads_is_rejected(tmp_path):
    folder = written(tmp_path, {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1})
    with pytest.raises(PolicyError, match="its family has no attention heads"):
        shape_of(folder, "mamba")


def test_weight_count_sums_shards_and_skips_vision_and_damaged_files(tmp_path):
    save_file({"model.a": torch.zeros(3, 5)}, tmp_path / "model-00001-of-00002.safetensors")
    parts = {"model.b": torch.zeros(7), "vision_tower.c": torch.zeros(100)}
    save_file(parts, tmp_path / "model-00002-of-00002.safetensors")
    assert in_files(tmp_path) == 22
    (damaged := tmp_path / "damaged").mkdir()
    for damage in (b"", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]", b'\x09\0\0\0\0\0\0\0{"a": 1 }'):
        (damaged / "model.safetensors").write_bytes(damage)
        assert in_files(damaged) == 0


@pytest.mark.parametrize("lora", [0, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_minimum_memory_is_below_the_estimate(lora, dtype, optimizer, mode, tmp_path, sixteen):
    keys = {"policy__lora_rank": lora, "policy__dtype": dtype, "learner__optimizer": optimizer}
    config = config_of(written(tmp_path, QWEN_HALF), **keys, schedule__mode=mode)
    told = estimate(shape_of(tmp_path, "half"), config, device="cpu", prompt=1)
    least = least_memory(config, model_shape.least_weights(tmp_path))
    assert 0 < least.memory < told.peak("memory")


def test_model_that_does_not_fit_is_rejected_with_advice(tmp_path, sixteen, monkeypatch):
    folder = filled(written(tmp_path / "model", LLAMA_3B))
    with pytest.raises(ConfigError, match=r"policy\.model: .*3\.21 billion.*Set policy\.") as told:
        check_start(config_of(folder), RunFolder(tmp_path / "run"))
    assert "policy.lora_rank = 16" in told.value.remedy
    check_memory(config_of(folder, policy__dtype="bfloat16", policy__lora_rank=16))
    monkeypatch.setattr(module, "main_memory", lambda: (GIB, GIB))
    assert "smaller model" in help_for(config_of(folder)), "no setting helps"


def test_model_that_exceeds_free_memory_causes_a_warning(tmp_path, sixteen, caplog, monkeypatch):
    half = config_of(filled(written(tmp_path / "half", QWEN_HALF | {"num_hidden_layers": 36})))
    large, run = config_of(written(tmp_path / "large", LLAMA_3B)), RunFolder(tmp_path / "run")
    assert check_memory(half).tight
    run.create()
    levels = [check_model_memory(each).level for each in (half, Config(), large)]
    assert levels == ["warn", "ok", "fail"]
    check_start(half, run)
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "but less is free now" in line
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=GIB))
    with pytest.raises(NodeError, match=r"no space for a checkpoint of 8\.\d GB, only 1\.1 GB"):
        check_start(half, run)
    assert "no space for a checkpoint" in check_disk(run, half).found
    check_start(config_of(tmp_path / "half", policy__lora_rank=4), run)


def test_memory_check_uses_gpu_memory(tmp_path, sixteen, monkeypatch):
    half = config_of(written(tmp_path, QWEN_HALF), policy__dtype="bfloat16")
    weights = model_shape.least_weights(tmp_path)
    on_cpu = least_memory(half, weights)
    assert (on_cpu.device, on_cpu.there[1]) == (0, 0)
    monkeypatch.setattr(module, "gpu_memory", lambda _: 4 * GIB)
    on_gpu = least_memory(half, weights)
    assert (on_gpu.device, on_gpu.memory, on_gpu.fits) == (on_cpu.memory, 0, False)
    assert "learner.offload = true" in help_for(half) or "adamw8bit" in help_for(half)


def test_unknown_family_skips_memory_check(tmp_path, sixteen):
    folder = written(tmp_path, {"model_type": "own-family"})
    assert json.loads((folder / "config.json").read_text())
    assert check_memory(config_of(folder)).weights == 0


def test_impossible_sizes_of_a_model_are_not_counted(tmp_path):
    usual = by_sizes(QWEN_HALF | {"head_dim": None})
    for size in ("x" * 99, [64], -64, 10**400, True):
        assert by_sizes(QWEN_HALF | {"head_dim": size}) == usual
        assert by_sizes(QWEN_HALF | {"hidden_size": size}) == 0
    for header in ('{"a": {"shape": ["x", 1000000000]}}', "[" * 100_000):
        (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little"))
        with (tmp_path / "model.safetensors").open("ab") as file:
            file.write(header.encode())
        assert in_files(tmp_path) == 0


def test_join_checks_memory_without_torch(tmp_path):
    filled(written(tmp_path / "model", LLAMA_3B | {"num_hidden_layers": 1_000_000}))
    watch = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules));"
        "from node.cli.main import run; run()"
    )
    model = f"policy.model={tmp_path / 'model'}"
    ended = python(watch, "join", "--set", model, cwd=tmp_path)
    assert ended.returncode == 2
    assert "of main memory with these settings, and this machine has" in ended.stderr
    assert "smaller model" in ended.stderr and ended.stdout.splitlines()[-1] == "False"


def test_parameter_counts_match_published_and_actual_models(tmp_path):
    for name, (config, parameters, active) in REAL.items():
        shape = shape_of(written(tmp_path / name, config), name)
        assert (shape.parameters, shape.active) == (parameters, active)
    for model in ("tiny", "tiny-wide"):
        folder = shipped_folder(model)
        loaded, shape = AutoModelForCausalLM.from_pretrained(folder), shape_of(folder, model)
        assert shape.parameters == loaded.num_parameters()
        assert shape.vocabulary == loaded.get_input_embeddings().num_embeddings


def test_adapter_size_matches_estimate(tmp_path):
    from node.config.learning import PolicySection
    from node.policy.policy import Policy

    policy = Policy.load(PolicySection(model="tiny", lora_rank=4, device="cpu"))
    shape = shape_of(shipped_folder("tiny"), "tiny")
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert trained == 4 * shape.adapter_width


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_activation_memory_matches_estimate(tmp_path, family, dtype):
    """Additional norms, as in Gemma and Qwen 3, count too."""
    folder, tokens, kept = written(tmp_path, {"model_type": family} | SMALL), 256, {}
    loader, config = AutoModelForCausalLM, Config.with_overrides({"policy.dtype": dtype})
    model = loader.from_config(AutoConfig.from_pretrained(folder), dtype=getattr(torch, dtype))
    own = {each.untyped_storage().data_ptr() for each in model.state_dict().values()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        read = model.eval().base_model(torch.zeros(1, tokens, dtype=torch.int64), use_cache=False)
    measured = sum(size for pointer, size in kept.items() if pointer not in own)
    work = SimpleNamespace(batch=tokens)
    expected = activations(shape_of(folder, family), config, work, "cpu")
    assert read.last_hidden_state.requires_grad and 0.94 < expected / measured < 1.2


def test_invalid_model_config_is_rejected_in_one_line(tmp_path):
    odd = (QWEN_HALF | {"hidden_size": "wide"}, QWEN_HALF | {"num_attention_heads": 0})
    why = r"policy\.model: .*config\.json.*save_pretrained"
    for config in ({}, {"model_type": "no-such-family"}, {"model_type": "t5"}, *odd):
        with pytest.raises(PolicyError, match=why) as told:
            shape_of(written(tmp_path, config), "mine")
        assert "\n" not in str(told.value)


def test_probe_model_matches_the_plan(tmp_path):
    sizes = {"hidden_size": 112, "intermediate_size": 256, "vocab_size": 2048}
    small = QWEN_HALF | sizes | {"num_hidden_layers": 2}
    found = plan(str(written(tmp_path, small)), laptop(), 128)
    policy = random_policy(found)
    assert policy.model.num_parameters() == found.shape.parameters
    assert str(policy.model.dtype) == f"torch.{found.choice.config.policy.dtype}"


def test_probe_replaces_only_the_speed_estimate():
    found, told = plan("tiny", this_machine("cpu", Path()), 64), []
    measured, work = replace(found, speed=probe(found, told.append)), found.work
    assert (found.speed.source, measured.speed.source) == ("estimated", "measured")
    assert (measured.choice, measured.shape) == (found.choice, found.shape)
    generate = work.completions * work.answer / measured.speed.write
    assert measured.speed.generate == pytest.approx(generate)
    assert measured.speed.update >= work.read / measured.speed.read > 0 and told


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM changes the plans")
def test_hardware_table_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert page == drawn(page), "run: python -m tests.node.plan.hardware_table"


def test_larger_gpu_never_lowers_the_largest_model_size(tmp_path):
    folder = str(written(tmp_path, QWEN_HALF))
    found = [plan(folder, with_gpu(size), 512).larger() for size in (10, 12, 24)]
    for way in found[0]:
        sizes = [each[way] for each in found]
        assert sizes == sorted(sizes), way


def test_slow_rounds_are_checkpointed_every_ten_minutes(tmp_path):
    quick = plan("tiny", laptop(16), 64)
    slow = plan(str(written(tmp_path / "large", LLAMA_3B)), laptop(64), 512)
    assert quick.speed.round < 60 and "schedule.checkpoint_every" not in quick.choice.keys
    assert slow.speed.round > 60
    assert slow.choice.config.schedule.checkpoint_every == max(1, int(600 / slow.speed.round))


def test_offloaded_optimizer_uses_large_micro_batches_to_save_time():
    choice = chosen("qwen-1.5", with_gpu(24))
    config, work = choice.config, Workload.of(choice.config, shape("qwen-1.5"), 128)
    assert config.learner.offload and config.learner.micro_batch_tokens > 1024
    narrow = Config.with_overrides({**choice.keys, "learner.micro_batch_tokens": 1024})
    wide_seconds, narrow_seconds = (
        estimated(
            shape("qwen-1.5"), each, Workload.of(each, shape("qwen-1.5"), 128), with_gpu(24).device
        ).update
        for each in (config, narrow)
    )
    assert wide_seconds < 0.8 * narrow_seconds and work.batch > 1024, "the state moves less often"


def test_vllm_memory_share_fits_the_model_and_one_group(monkeypatch):
    monkeypatch.setattr(kinds.Vllm, "check", lambda kind: None)
    small, large = chosen("qwen-half", with_gpu(24)), chosen("llama-3b", with_gpu(24))
    assert small.config.engine.gpu_memory_utilization == 0.4
    for choice, model, gpu in ((small, "qwen-half", 24), (large, "llama-3b", 24)):
        work = Workload.of(choice.config, shape(model), 128)
        held = choice.config.engine.gpu_memory_utilization * with_gpu(gpu).device.memory
        assert choice.config.engine.backend == "vllm"
        group = 8 * (work.prompt + work.answer) * cached_token(shape(model), choice.config)
        assert held > width(choice.config) * shape(model).parameters + group
