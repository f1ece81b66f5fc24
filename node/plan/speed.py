"""Sampling and training speed of a node: estimated (roofline model) or measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from node.config.config import Config
from node.plan import memory
from node.plan.machine import Device
from node.plan.memory import Workload
from node.plan.model_shape import FLOAT, ModelShape
from node.threads import choose, fastest
from swarm.common.util import Say

if TYPE_CHECKING:
    from node.learner.batches import TrainingGroup
    from node.learner.learner import Learner
    from node.plan.plan import Plan
    from node.policy.policy import Policy


READ_SHARE = 0.6  # of the copy bandwidth, when decoding reads weights and KV cache
MULTIPLY_SHARE = 0.4  # of large-matrix FLOPS, in a pass over a micro-batch
FEW_ROWS_SHARE, LAID_OUT_SHARE, INT8_SHARE = 0.15, 0.25, 0.5
"""The same of a CPU decoding step (a row per completion): plain, laid out, and int8 weights."""
RECORDED_SECONDS, LAUNCHED_SECONDS = 7e-6, 22e-6
"""Times of a small kernel on an H200: in a CUDA graph, and launched by a model's forward pass."""
HOST_BANDWIDTH = 2e10  # approximate bytes per second of main memory, and of its link to a GPU


@dataclass(frozen=True, slots=True)
class Speed:
    write: float  # sampled tokens per second, all rows together
    read: float  # tokens per second in an update, forward and backward
    generate: float  # seconds per round
    update: float  # the same
    source: str  # "estimated" or "measured"

    @property
    def round(self) -> float:
        """Seconds of a round whose phases run one after the other."""
        return self.generate + self.update

    @classmethod
    def of(cls, write: float, read: float, work: Workload, source: str, step: float = 0.0) -> Speed:
        """Return a full-length round's speed; ``step`` is optimizer time not in ``read``."""
        update = work.read / read + work.steps * step
        return cls(write, read, work.completions * work.answer / write, update, source)


def estimated(shape: ModelShape, config: Config, work: Workload, device: Device) -> Speed:
    """Estimate by the roofline model (Williams et al., doi 10.1145/1498765.1498785)."""
    flops = device.flops.get(config.policy.dtype, device.flops["float32"])
    write = _write(shape, config, work, device, flops)
    read = flops * MULTIPLY_SHARE / _operations(shape, config)
    step = _step_seconds(shape, config, work, device)
    return Speed.of(write, read, work, "estimated", step)


def _write(
    shape: ModelShape, config: Config, work: Workload, device: Device, flops: float
) -> float:
    rows = max(1, min(work.rows, work.completions))
    kv_bytes = rows * (work.prompt + work.answer / 2) * memory.cached_token(shape, config)
    model = memory.width(config) * _met(shape, rows)
    if config.engine.backend_options.get("int8"):
        share, model = INT8_SHARE, _met(shape, rows)
    elif device.kind == "cpu":
        share = LAID_OUT_SHARE if memory.laid_out(shape, config) else FEW_ROWS_SHARE
    else:
        share = MULTIPLY_SHARE
    read_time = (model + kv_bytes) / (device.bandwidth * READ_SHARE)
    seconds = max(read_time, 2 * rows * shape.active / (flops * share))
    if device.kind == "cuda" and config.engine.backend == "transformers":
        seconds = max(seconds, _launching(shape, config))
    return rows / seconds


def _launching(shape: ModelShape, config: Config) -> float:
    """Return the least seconds of a GPU's decoding step, however little its kernels compute."""
    kernels = 12 * shape.layers + 20 if shape.fused else 50 * shape.layers
    recorded = shape.fused and config.engine.backend_options.get("graphs", True)
    return kernels * (RECORDED_SECONDS if recorded else LAUNCHED_SECONDS)


def _step_seconds(shape: ModelShape, config: Config, work: Workload, device: Device) -> float:
    """Return optimizer seconds: its state and the gradient, read and written once.

    With the optimizer in main memory, each micro-batch's gradient moves there and is added.
    """
    trained, width = memory.trained(shape, config), memory.width(config)
    num_bytes = 2 * (memory.optimizer(shape, config) + (FLOAT + width) * trained)
    if not (config.learner.offload and device.kind == "cuda"):
        return num_bytes / device.bandwidth
    batches = max(1.0, work.read / work.batch / work.steps)
    return (num_bytes + batches * (width + 2 * FLOAT) * trained) / HOST_BANDWIDTH


def _met(shape: ModelShape, rows: int) -> float:
    """Return the weights that a step over ``rows`` rows reads, in a mixture of experts too."""
    return min(shape.parameters, shape.active + (rows - 1) * (shape.parameters - shape.active) / 8)


def _operations(shape: ModelShape, config: Config) -> float:
    """Return an update's FLOPs per token: 2 per weight forward, 4 backward.

    LoRA skips the weights' gradients (2); gradient checkpointing adds a forward pass (2), and the
    reference model one of about a third of the tokens.
    """
    passes = 4 if config.policy.lora_rank else 6
    recompute = 2 if config.learner.gradient_checkpointing else 0
    bounded = config.mixture.peer_ratio and config.mixture.external
    return (passes + recompute + (2 / 3 if bounded else 0)) * shape.active


FIRST_TOKENS, MOST_TOKENS = 4, 128
"""Tokens per completion in a short first run, and the maximum in the measured one."""
SECONDS = 15.0  # approximate duration of the measured run
SHORT, LONG = 8, 64  # tokens of the completions that are trained on
PROMPT = 16
SEED = 0


def probe(found: Plan, tell: Say) -> Speed:
    """Measure speed on short completions; ``tell`` gets each step.

    It uses random weights and the embedded engine. Raises ``NodeError`` if memory runs out.
    """
    from node.learner.learner import Learner

    config, rng = found.choice.config, Random(SEED)
    tell(f"building {found.model} with random weights")
    policy = random_policy(found)
    if policy.device.type == "cpu":
        threads = choose(config.node.threads)
        if not config.node.threads:
            fastest(policy.probe, threads)
    prompt = [rng.randrange(policy.tokenizer.vocab_size) for _ in range(PROMPT)]
    limit = min(MOST_TOKENS, found.shape.context - PROMPT)
    tell("writing answers")
    write = _writing(found, policy, prompt, limit)
    tell("learning from answers")
    read, step = _learning(Learner(policy, config.learner), prompt, config.engine.group_size, limit)
    return Speed.of(write, read, found.work, "measured", step)


def _writing(plan: Plan, policy: Policy, prompt: list[int], limit: int) -> float:
    """Return tokens per second of all rows that a round decodes concurrently."""
    from node.engines.engine import Sampling
    from node.engines.kinds import kind_of
    from node.engines.transformers.engine import TransformersEngine

    embedded = kind_of(plan.choice.config).embedded(policy, SEED)
    engine = embedded or TransformersEngine(policy, seed=SEED)
    size = plan.choice.config.engine.group_size
    prompts = [prompt] * max(1, min(plan.work.rows, plan.work.completions) // size)

    def rate(tokens: int) -> float:
        begin = time.perf_counter()
        groups = engine.generate(prompts, size, Sampling(max_new_tokens=tokens, seed=SEED))
        count = sum(len(sample.tokens.ids) for group in groups for sample in group)
        return count / (time.perf_counter() - begin)

    first = rate(min(FIRST_TOKENS, limit))
    return rate(max(1, min(limit, int(SECONDS * first / (size * len(prompts))))))


def random_policy(found: Plan) -> Policy:
    """Return the planned model with random weights, the shipped tokenizer and no EOS."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from node.policy.device import device_named
    from node.policy.model_source import shipped_folder
    from node.policy.policy import Policy, adapter_of

    config = found.choice.config.policy
    dtype = getattr(torch, config.dtype)
    loader: Any = AutoModelForCausalLM
    auto_config = AutoConfig.from_pretrained(found.folder, trust_remote_code=False)
    model = loader.from_config(auto_config, dtype=dtype, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(shipped_folder("tiny"), trust_remote_code=False)
    adapter = adapter_of(model, config) if config.lora_rank else None
    policy = Policy(model.to(device_named(config.device)), tokenizer, found.model, adapter)
    policy.stop_ids = (-1,)
    return policy


def _learning(learner: Learner, prompt: list[int], size: int, limit: int) -> tuple[float, float]:
    """Return training tokens per second and optimizer seconds, from two lengths."""
    lengths = min(SHORT, limit), min(LONG, limit)
    seconds = []
    for length in (lengths[0], *lengths):  # warm-up, and creates optimizer state
        group = _training_group(prompt, size, length)
        begin = time.perf_counter()
        learner.update([group])
        seconds.append(time.perf_counter() - begin)
    _, short, long = seconds
    extra = size * (lengths[1] - lengths[0])
    if extra and long > short:
        rate = extra / (long - short)
        return rate, max(0.0, short - (len(prompt) + size * lengths[0]) / rate)
    return (len(prompt) + size * lengths[1]) / long, 0.0


def _training_group(prompt: list[int], size: int, length: int) -> TrainingGroup:
    """Return completions of one repeated token, every second one right."""
    from node.learner.batches import TrainingCompletion, TrainingGroup
    from protocol.rollout import Tokens

    answer = Tokens((prompt[0],) * length, (-1.0,) * length, (0,) * length)
    completions = (TrainingCompletion.local(answer),) * size
    rewards = tuple(float(number % 2) for number in range(size))
    return TrainingGroup(tuple(prompt), completions, rewards, local=True)
