"""What is chosen fits, and what is larger never takes less."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.config import Config, load, write_config
from node.errors import ConfigError
from node.plan.choice import choose, fits, rungs
from node.plan.memory import Workload, estimate, laid_out
from node.plan.model_shape import ModelShape, shape_of
from node.plan.speed import estimated
from tests.node.plan.shapes import REAL, laptop, with_gpu, written

MACHINES = {
    "laptop": laptop(16),
    "small GPU": with_gpu(8),
    "GPU": with_gpu(24),
    "large GPU": with_gpu(80, memory=256),
}


@cache
def shape(name: str) -> ModelShape:
    with TemporaryDirectory() as folder:
        return shape_of(written(Path(folder), REAL[name][0]), name)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", REAL)
def test_what_is_chosen_fits_and_loads_as_a_node_toml(
    name: str, machine: str, tmp_path: Path
) -> None:
    there = MACHINES[machine]
    try:
        choice = choose(shape(name), there, "some/model", 512)
    except ConfigError as error:
        assert "free" in error.remedy
        assert "--task-tokens" in error.remedy
        return
    assert fits(choice.estimate, there)
    assert choice.estimate.peak("memory") <= there.free
    assert choice.estimate.peak("device") <= there.device.free
    assert choice.estimate.disk <= there.disk
    write_config(tmp_path / "node.toml", choice.config)
    assert load(tmp_path / "node.toml") == choice.config


def test_half_a_billion_fits_a_laptop_and_eight_billion_a_large_gpu() -> None:
    assert not choose(shape("qwen-half"), laptop(16), "m", 512).config.policy.lora_rank
    assert choose(shape("qwen3-8b"), with_gpu(80, 256), "m", 512).config.policy.dtype == "bfloat16"
    with pytest.raises(ConfigError, match=r"policy\.model: .*main memory would be needed"):
        choose(shape("qwen3-8b"), laptop(8), "m", 512)


def test_where_memory_is_scarce_the_ladder_goes_down() -> None:
    def place(memory: float) -> int:
        words = choose(shape("qwen-1.5"), laptop(memory), "m", 512).rung.words
        return [rung.words for rung in rungs(laptop(memory))].index(words)

    steps = [place(memory) for memory in (64, 32, 24, 16)]
    assert steps == sorted(steps)
    assert steps[0] == 0 < steps[-1]


def test_a_cpu_without_instructions_for_it_trains_in_half_precision_last_of_all() -> None:
    old = laptop(16)
    old = replace(old, device=replace(old.device, flops={"float32": 1.7e11, "bfloat16": 4e9}))
    chosen = choose(shape("qwen-half"), old, "m", 512)
    assert chosen.config.policy.dtype == "float32"
    assert choose(shape("qwen-half"), laptop(16), "m", 512).config.policy.dtype == "bfloat16"


def test_too_little_disk_keeps_fewer_checkpoints_and_then_is_refused() -> None:
    roomy = choose(shape("qwen-half"), laptop(16), "m", 512)
    each = roomy.estimate.disk / 4
    few = choose(shape("qwen-half"), laptop(16, disk=2.5 * each / 2**30), "m", 512)
    assert (few.config.schedule.keep_checkpoints, few.config.schedule.keep_best) == (1, 0)
    with pytest.raises(ConfigError, match=r"schedule\.keep_checkpoints: .*of disk.*are free"):
        choose(shape("qwen-half"), laptop(16, disk=each / 2**30), "m", 512)


@given(
    st.sampled_from(sorted(REAL)),
    st.floats(1.05, 4.0),
    st.sampled_from(["cpu", "cuda"]),
    st.fixed_dictionaries(
        {
            "policy.dtype": st.sampled_from(["float32", "bfloat16"]),
            "policy.lora_rank": st.sampled_from([0, 16]),
            "learner.offload": st.booleans(),
            "learner.optimizer": st.sampled_from(["adamw", "adamw8bit"]),
            "learner.gradient_checkpointing": st.booleans(),
            "schedule.mode": st.sampled_from(["sync", "async"]),
        }
    ),
)
def test_a_larger_model_never_takes_less(
    name: str, factor: float, device: str, keys: dict[str, object]
) -> None:
    config = Config.with_overrides(keys)
    small = estimate(shape(name), config, device=device, prompt=128)
    large = estimate(shape(name).scaled(factor), config, device=device, prompt=128)
    assert large.disk > small.disk
    for place in ("memory", "device"):
        assert large.peak(place) >= small.peak(place)
    assert large.peak("memory") + large.peak("device") > small.peak("memory") + small.peak("device")


@given(st.sampled_from(sorted(REAL)), st.integers(64, 4096), st.integers(64, 4096))
def test_longer_answers_never_take_less(name: str, first: int, second: int) -> None:
    keys = {"learner.micro_batch_tokens": 65536}
    peaks = [
        estimate(
            shape(name),
            Config.with_overrides({**keys, "engine.max_new_tokens": tokens}),
            device="cpu",
            prompt=64,
        ).peak("memory")
        for tokens in sorted((first, second))
    ]
    assert peaks == sorted(peaks)


@pytest.mark.parametrize("name", REAL)
def test_more_memory_never_chooses_a_dearer_way(name: str) -> None:
    words = [rung.words for rung in rungs(laptop())]
    places = []
    for memory in (8, 16, 32, 64, 128, 1024):
        try:
            choice = choose(shape(name), laptop(memory, disk=1e5), "m", 512)
        except ConfigError:
            places.append(len(words))
            continue
        places.append(words.index(choice.rung.words))
    assert places == sorted(places, reverse=True)
    assert places[-1] == 0


def test_weights_in_8_bits_take_a_quarter_of_the_copy_and_are_written_with_sooner() -> None:
    name, machine = "qwen-half", laptop()
    whole, rounded = (
        Config.with_overrides({"engine.kind_options": {"int8": int8}}) for int8 in (False, True)
    )
    assert laid_out(shape(name), rounded) * 4 == laid_out(shape(name), whole)
    work = Workload.of(rounded, shape(name), 64)
    speeds = [estimated(shape(name), each, work, machine.device).write for each in (whole, rounded)]
    assert speeds[0] < speeds[1]


def test_what_is_not_free_is_not_planned_with() -> None:
    busy = replace(laptop(64), free=laptop(16).free)
    assert fits(choose(shape("qwen-1.5"), busy, "m", 512).estimate, laptop(16))
