"""The memory of a node by part and place (main memory, GPU), and its peak."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from node.config.config import Config
from node.engines.transformers.decoding import KEPT, KEPT_SHARE
from node.engines.transformers.static_step import JOINED, length_bucket, row_bucket
from node.learner.batches import COPY_WEIGHT
from node.learner.group_gradients import MOST_BYTES as GROUPS_TOGETHER
from node.learner.logprobs import LEAST_POSITIONS, chunk_bytes, whole_bytes
from node.plan.model_shape import FLOAT, MOMENTS, WIDTHS, ModelShape

ENGINE_ROWS = 256  # completions that the embedded engine decodes concurrently
PROCESS_ROWS = 64  # the same of an engine in its own process


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens and rows of a round."""

    prompt: int
    answer: int  # maximum tokens per completion
    rows: int  # completions decoded concurrently
    completions: int  # completions per round
    read: int  # tokens per update
    steps: int
    batch: int  # tokens of the largest forward pass, of which ``scored`` have log-probs
    scored: int
    alone: int  # the same of a pass over one group

    @classmethod
    def of(cls, config: Config, shape: ModelShape, prompt: int) -> Workload:
        """Return the workload of ``config`` with prompts of this length, full completions."""
        size = config.engine.group_size
        answer = max(1, min(config.engine.max_new_tokens, shape.context - prompt))
        local = max(1, config.mixture.local)
        groups = max(local + config.mixture.external, config.mixture.target_groups)
        limit = PROCESS_ROWS if config.asynchronous else ENGINE_ROWS
        # Without peers' groups all are local, and an evaluation samples one completion per task.
        completions = (local + config.mixture.external) * size
        rows = max(size, min(limit, max(completions, config.schedule.eval_tasks)))
        row = prompt + answer
        group = _read_together(shape, size, prompt, answer)
        copies = size * row - group if size * row**2 < group**2 else 0
        tokens = round(group + COPY_WEIGHT * copies)
        batch = max(row, min(config.learner.micro_batch_tokens, groups * tokens))
        steps = max(1, groups // (config.learner.groups_per_step or groups))
        return cls(
            prompt=prompt,
            answer=answer,
            rows=rows,
            completions=completions,
            read=groups * group * config.learner.epochs,
            steps=config.learner.epochs * steps,
            batch=batch,
            scored=min(batch, round(batch * size * answer / group)),
            alone=min(batch, size * answer),
        )


def _read_together(shape: ModelShape, size: int, prompt: int, answer: int) -> int:
    """Return tokens read per group (:class:`node.learner.micro_batching.RowCost`)."""
    if not shape.shares:
        return size * (prompt + answer)
    pair = 2 * shape.layers * shape.heads * shape.head_size

    def cost(count: int) -> float:
        length, unpacked = prompt + count * answer, count * (prompt + answer) ** 2
        pairs = min(length * length, unpacked) if count > 1 else unpacked / 2
        return (length * shape.active + pairs * pair) / count

    best = min((n for n in range(1, size + 1) if size % n == 0), key=cost)
    return size // best * (prompt + best * answer)


Place = Literal["memory", "device"]
Phase = Literal["load", "generate", "update", "step", "save"]
PHASES: tuple[Phase, ...] = ("load", "generate", "update", "step", "save")
AFTER_LOADING: tuple[Phase, ...] = PHASES[1:]
PROGRAM = 450 << 20  # libraries of a process with torch and transformers
PEFT = 50 << 20
OTHERS = 400 << 20  # the network process with its daemon, and the verifier
VLLM = 2 << 30  # libraries of vLLM's process; on a CPU also its KV cache of one GiB
VLLM_WORK = 2 << 30  # GPU memory of vLLM's activations and graphs, an assumption
GPU_PROGRAM = 500 << 20  # GPU memory of CUDA and its libraries per process


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """The peak bytes of one part, in main and GPU memory, during its phases."""

    name: str
    memory: float = 0.0
    device: float = 0.0
    phases: tuple[Phase, ...] = PHASES

    def at(self, place: Place) -> float:
        return self.memory if place == "memory" else self.device


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """All parts, in table order with repeated names; ``disk`` holds all checkpoints."""

    parts: tuple[MemoryPart, ...]
    disk: int

    def peak(self, place: Place) -> int:
        """Return the peak bytes over all phases."""
        parts = self.parts
        return round(max(sum(p.at(place) for p in parts if phase in p.phases) for phase in PHASES))

    def table(self) -> dict[str, tuple[int, int]]:
        rows: dict[str, tuple[int, int]] = {}
        for name in dict.fromkeys(part.name for part in self.parts):
            only = MemoryEstimate(tuple(part for part in self.parts if part.name == name), 0)
            rows[name] = only.peak("device"), only.peak("memory")
        return rows


def estimate(
    shape: ModelShape, config: Config, *, device: str, prompt: int, device_memory: int = 0
) -> MemoryEstimate:
    """Estimate a node's memory on ``device``; ``device_memory`` is the GPU's bytes."""
    work = Workload.of(config, shape, prompt)
    gpu_program = GPU_PROGRAM if device == "cuda" else 0
    parts = (
        MemoryPart("program", memory=PROGRAM, device=gpu_program),
        MemoryPart("other processes", memory=OTHERS),
        *_model(shape, config, device),
        *_update(shape, config, work, device),
        *_engine(shape, config, work, device, device_memory),
    )
    count = config.schedule.keep_checkpoints + config.schedule.keep_best + 1
    adapters = FLOAT * trained(shape, config)
    model_bytes = adapters if config.policy.lora_rank else weights(shape, config)
    return MemoryEstimate(parts, round(count * (model_bytes + optimizer(shape, config))))


def _at(name: str, value: float, device: str, *phases: Phase) -> MemoryPart:
    place = "device" if device == "cuda" else "memory"
    return MemoryPart(name, phases=phases or PHASES, **{place: value})


def _model(shape: ModelShape, config: Config, device: str) -> Iterator[MemoryPart]:
    size = weights(shape, config)
    yield _at("weights", size, device)
    if config.mixture.peer_ratio and config.mixture.external and not config.policy.lora_rank:
        yield _at("reference", size, device)
    if config.policy.lora_rank:
        yield MemoryPart("program", memory=PEFT)
    else:
        # A weight file is assembled in main memory before it is written.
        yield MemoryPart("files", memory=size, phases=("save",))


def _update(shape: ModelShape, config: Config, work: Workload, device: str) -> Iterator[MemoryPart]:
    place = "cpu" if config.learner.offload else device
    act_bytes, grads = activations(shape, config, work, device), gradients(shape, config)
    if place != "cuda":
        # Gradients grow in the main memory of activations that the backward pass has freed.
        grads = max(grads, stepping(shape, config) - (0 if device == "cuda" else act_bytes))
    yield _at("gradients", grads, place, "update")
    yield _at("gradients", stepping(shape, config), place, "step")
    yield _at("optimizer", optimizer(shape, config), place, *AFTER_LOADING)
    yield _at("activations", act_bytes, device, "update")
    head = shape.vocabulary * shape.hidden * width(config)
    # A group's gradient of the output matrix beside the sum of those before it.
    group_grad = head if config.mixture.external and not config.policy.lora_rank else 0
    yield _at("logits", logits(shape, work, device) + group_grad, device, "update")


def _engine(
    shape: ModelShape, config: Config, work: Workload, device: str, device_memory: int
) -> Iterator[MemoryPart]:
    embedded = not config.asynchronous and config.engine.backend == "transformers"
    # The process keeps main memory that the embedded engine frees: the allocator returns no
    # block below 32 MiB (mallopt(3), M_MMAP_THRESHOLD). Freed GPU memory serves the update.
    is_freed = embedded and device == "cuda"
    active: tuple[Phase, ...] = ("generate",) if is_freed else AFTER_LOADING
    model = width(config) * shape.parameters
    if config.policy.lora_rank and not embedded:
        # Adapters are merged into a copy, which is written for the engine's process.
        yield _at("engine", width(config) * shape.adapted, device, "load", "step")
    if config.engine.backend == "vllm":
        asleep = config.engine.sleep_mode and device == "cuda"
        awake: tuple[Phase, ...] = ("generate", "save") if asleep else active
        share = config.engine.gpu_memory_utilization * device_memory
        size = share if device == "cuda" else model + cache(shape, config, work, device)
        yield _at("engine", size, device, *awake)
        yield MemoryPart("engine", memory=VLLM + 2 * model, phases=("load", *active))
        return
    need = cache(shape, config, work, device), decoder(shape, config) + gates(shape, config, device)
    # The engine measures its step between batches, without what a batch's logits take.
    idle_bytes = sum(need) + shape.vocabulary * (
        width(config) * row_bucket(work.rows) - FLOAT * SAMPLED_LOGITS * work.rows
    )
    if shape.fused and device == "cuda" and idle_bytes <= min(KEPT, KEPT_SHARE * device_memory):
        active = AFTER_LOADING
    yield _at("cache", need[0], device, *active)
    yield _at("engine", need[1], device, *active)
    if device == "cpu":
        # In the same process, gradients of equal size take its place.
        phases: tuple[Phase, ...] = ("generate",) if embedded else active
        yield MemoryPart("engine", memory=laid_out(shape, config), phases=phases)
    if not embedded:
        yield _at("engine", model, device, *active)
        yield MemoryPart("engine", memory=PROGRAM + 2 * model, phases=active)


SPARE = 1.5  # capacity factor of the embedded engine's KV cache
WHOLE_LOGITS = 4.5
"""Float32 numbers per scored token and vocabulary entry at an update's peak, with gradients."""
SAMPLED_LOGITS = 4  # the same of a decoding step, without backward pass


def trained(shape: ModelShape, config: Config) -> int:
    rank = config.policy.lora_rank
    return rank * shape.adapter_width if rank else shape.parameters


def width(config: Config) -> int:
    return WIDTHS[config.policy.dtype]


def weights(shape: ModelShape, config: Config) -> float:
    """Return bytes of the model, plus float32 LoRA adapters."""
    adapters = FLOAT * trained(shape, config) if config.policy.lora_rank else 0
    return width(config) * shape.parameters + adapters


def copies(shape: ModelShape, config: Config) -> int:
    """Return the number of float32 master weights beside the model's."""
    if config.policy.lora_rank:
        return trained(shape, config) if config.learner.offload else 0
    half = width(config) < FLOAT
    return shape.parameters if half or config.learner.offload else 0


def optimizer(shape: ModelShape, config: Config) -> float:
    """Return bytes of both moments and of the float32 master weights."""
    moments = MOMENTS[config.learner.optimizer] * trained(shape, config)
    return moments + FLOAT * copies(shape, config)


def gradients(shape: ModelShape, config: Config) -> float:
    """Return bytes of gradient sums held while the next group is read.

    A pass has then just begun its backward pass: its gradient replaces freed activations.
    :func:`stepping` counts it if larger.
    """
    gradient = FLOAT * trained(shape, config)
    if not config.mixture.external:
        return gradient  # sum over earlier micro-batches
    groups = max(1, config.learner.groups_per_step)
    plain = width(config) == FLOAT and not config.learner.offload
    if plain and not config.learner.gradient_checkpointing and groups * gradient <= GROUPS_TOGETHER:
        return groups * gradient
    return gradient


def stepping(shape: ModelShape, config: Config) -> float:
    """Return gradient bytes at the end of a pass: its own in weight dtype, and a sum."""
    gradient = FLOAT * trained(shape, config)
    grad_sum = gradient if config.mixture.external else 0
    half = not config.policy.lora_rank and width(config) < FLOAT
    largest = shape.vocabulary * shape.hidden
    return gradient + grad_sum + ((width(config) + FLOAT) * largest if half else 0)


def activations(shape: ModelShape, config: Config, work: Workload, device: str) -> float:
    """Return bytes that a forward pass keeps per batch for the backward pass.

    A layer keeps inputs (also in float32 if half precision) and outputs of its norms, two sums, the
    heads' queries, keys, values and outputs, and four MLP tensors. A GPU's fused norms keep their
    inputs alone. With LoRA, half-precision linear layers also keep float32 inputs.
    """
    size = width(config)
    heads = (shape.heads + shape.kv_heads) * shape.head_size
    fused = device == "cuda" and shape.fused
    norms = shape.norm_width * (size if fused else 2 * size + (FLOAT if size < FLOAT else 0))
    layer = norms + (2 * shape.hidden + 3 * heads + 4 * shape.intermediate) * size
    if config.policy.lora_rank:
        inputs = 3 * shape.hidden + shape.heads * shape.head_size + shape.intermediate
        layer += FLOAT * inputs if size < FLOAT else 0
    if config.learner.gradient_checkpointing:
        return work.batch * (shape.layers * shape.hidden * size + layer)
    return work.batch * shape.layers * layer


def logits(shape: ModelShape, work: Workload, device: str) -> float:
    """Return bytes of logits, or of a part plus its output-matrix gradient if large."""
    row, limit = FLOAT * shape.vocabulary, whole_bytes(device)
    if row * work.scored <= limit:
        return WHOLE_LOGITS * row * work.scored
    chunk = max(LEAST_POSITIONS, chunk_bytes(device) // row)
    # Some passes are smaller than the largest, and hold all of theirs.
    group_bytes = row * work.alone if row * work.alone <= limit else 0
    return max(row * (WHOLE_LOGITS * chunk + shape.hidden), WHOLE_LOGITS * group_bytes)


def cached_token(shape: ModelShape, config: Config) -> int:
    """Return bytes of one token in the KV cache."""
    return 2 * shape.layers * shape.kv_heads * shape.head_size * width(config)


def vllm_share(shape: ModelShape, config: Config, work: Workload, device_memory: int) -> float:
    """Return the share of a GPU for vLLM: the config's, or more for the model and a group."""
    kv_bytes = config.engine.group_size * (work.prompt + work.answer) * cached_token(shape, config)
    min_share = (width(config) * shape.parameters + kv_bytes + VLLM_WORK) / device_memory
    return max(config.engine.gpu_memory_utilization, min(0.95, math.ceil(20 * min_share) / 20))


def cache(shape: ModelShape, config: Config, work: Workload, device: str) -> float:
    """Return bytes of the KV cache of all concurrent rows, and of their logits."""
    token = cached_token(shape, config)
    kv_bytes = work.rows * (work.prompt + work.answer) * token * SPARE
    if device == "cuda" and shape.fused:
        kv_bytes = row_bucket(work.rows) * length_bucket(work.prompt + work.answer) * token
    return kv_bytes + FLOAT * SAMPLED_LOGITS * shape.vocabulary * work.rows


def decoder(shape: ModelShape, config: Config) -> float:
    """Return bytes of weights that the embedded engine duplicates while it samples."""
    merged = shape.adapted if config.policy.lora_rank else 0
    return width(config) * (merged + shape.fused)


def gates(shape: ModelShape, config: Config, device: str) -> float:
    """Return bytes of the gate and up projections that a GPU's step duplicates."""
    size = width(config) * 2 * shape.layers * shape.hidden * shape.intermediate
    return size if shape.fused and device == "cuda" and size <= JOINED else 0


def laid_out(shape: ModelShape, config: Config) -> float:
    """Return bytes of weights in the CPU's few-row layout while it samples."""
    if config.engine.backend_options.get("int8") and shape.fused:
        return shape.parameters
    trains_all = shape.fused and not config.policy.lora_rank
    return width(config) * shape.parameters if trains_all else 0
