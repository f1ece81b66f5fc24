"""The memory of a whole node, part by part and place by place, and its largest sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from node.config.config import Config
from node.learner.group_gradients import MOST_BYTES as GROUPS_TOGETHER
from node.learner.logprobs import CHUNK_BYTES, LEAST_POSITIONS, WHOLE_BYTES
from node.plan.model_shape import FLOAT, MOMENTS, WIDTHS, ModelShape

ENGINE_ROWS = 256
"""Completions that the embedded engine decodes side by side."""
PROCESS_ROWS = 64
"""The same of an engine in a process of its own."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens and rows of a round.

    Attributes:
        prompt: tokens of a task's prompt.
        answer: most tokens of a completion.
        rows: completions that the engine decodes side by side.
        written: completions that a round writes.
        read: tokens that an update reads.
        steps: of the optimizer in an update.
        batch: tokens of its largest forward pass.
        scored: of these the ones whose log-probs are asked for.
    """

    prompt: int
    answer: int
    rows: int
    written: int
    read: int
    steps: int
    batch: int
    scored: int

    @classmethod
    def of(cls, config: Config, shape: ModelShape, prompt: int) -> Workload:
        """What ``config`` asks for, with prompts of so many tokens and answers of full length."""
        size = config.engine.group_size
        answer = max(1, min(config.engine.max_new_tokens, shape.context - prompt))
        own = max(1, config.mixture.local)
        groups = max(own + config.mixture.external, config.mixture.informative)
        most = PROCESS_ROWS if config.overlaps else ENGINE_ROWS
        # What peers do not spare is generated, and an evaluation writes an answer to each task.
        rows = max(
            size, min(most, max((own + config.mixture.external) * size, config.schedule.eval_tasks))
        )
        row = prompt + answer
        group = _read_together(shape, size, prompt, answer)
        # Groups of others are measured, and so read, one by one.
        step = group if config.mixture.external else groups * group
        batch = max(row, min(config.learner.micro_batch_tokens, step))
        return cls(
            prompt=prompt,
            answer=answer,
            rows=rows,
            written=(own + config.mixture.external) * size,
            read=groups * group * config.learner.epochs,
            steps=config.learner.epochs
            * max(1, groups // (config.learner.groups_per_step or groups)),
            batch=batch,
            scored=min(batch, round(batch * size * answer / group)),
        )


def _read_together(shape: ModelShape, size: int, prompt: int, answer: int) -> int:
    """Tokens that are read of a group, of whose completions so many share a row and its prompt as
    cost least together (:class:`node.learner.micro_batching.RowCost`)."""
    if not shape.shares:
        return size * (prompt + answer)
    pair = 2 * shape.layers * shape.heads * shape.head_size

    def cost(together: int) -> float:
        length = prompt + together * answer
        pairs = length * length / (1 if together > 1 else 2)
        return (length * shape.active + pairs * pair) / together

    best = min((n for n in range(1, size + 1) if size % n == 0), key=cost)
    return size // best * (prompt + best * answer)


Place = Literal["memory", "device"]
Phase = Literal["load", "generate", "update", "step", "save"]
PHASES: tuple[Phase, ...] = ("load", "generate", "update", "step", "save")
AFTER_LOADING: tuple[Phase, ...] = PHASES[1:]
PROGRAM = 450 << 20
"""Libraries of a process that has loaded torch and transformers."""
PEFT = 50 << 20
OTHERS = 400 << 20
"""The network's process with its daemon, and the verifier's."""
VLLM = 2 << 30
"""Libraries of vLLM's process, and on a CPU its cache, which takes a GiB there."""
GPU_PROGRAM = 500 << 20
"""What CUDA and its libraries hold of a GPU for a process."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of a node holds at the most.

    Attributes:
        name: as the table has it.
        memory, device: bytes of main memory, and of a GPU's.
        phases: in which it is there.
    """

    name: str
    memory: float = 0.0
    device: float = 0.0
    phases: tuple[Phase, ...] = PHASES

    def at(self, place: Place) -> float:
        """Bytes there."""
        return self.memory if place == "memory" else self.device


@dataclass(frozen=True, slots=True)
class Estimate:
    """All parts of a node.

    Attributes:
        parts: in the table's order; a name may stand there more than once.
        disk: bytes that all checkpoints take which are kept, and the one being written.
    """

    parts: tuple[Part, ...]
    disk: int

    def peak(self, place: Place) -> int:
        """Most bytes at any time."""
        return max(self.during(phase, place) for phase in PHASES)

    def during(self, phase: Phase, place: Place) -> int:
        """Bytes while a node does one thing."""
        return round(sum(p.at(place) for p in self.parts if phase in p.phases))

    def table(self) -> dict[str, tuple[int, int]]:
        """By the names of parts: bytes of the device and of main memory at the most."""
        names = dict.fromkeys(part.name for part in self.parts)
        return {name: (self._most(name, "device"), self._most(name, "memory")) for name in names}

    def _most(self, name: str, place: Place) -> int:
        sums = [
            sum(p.at(place) for p in self.parts if p.name == name and phase in p.phases)
            for phase in PHASES
        ]
        return round(max(sums))


def estimate(
    shape: ModelShape, config: Config, *, device: str, prompt: int, device_memory: int = 0
) -> Estimate:
    """What a node with this model and configuration takes.

    Args:
        device: kind of the device that ``policy.device`` comes to: ``cpu``, ``cuda`` or ``mps``.
        prompt: tokens of a task's prompt.
        device_memory: bytes of the whole GPU, of which vLLM takes a share.
    """
    work = Workload.of(config, shape, prompt)
    found = (
        *_program(device),
        *_model(shape, config, device),
        *_update(shape, config, work, device),
        *_engine(shape, config, work, device, device_memory),
    )
    return Estimate(found, _disk(shape, config))


def _at(name: str, value: float, device: str, *phases: Phase) -> Part:
    """A part that is on the device, or in main memory where that is the device."""
    chosen = phases or PHASES
    if device == "cuda":
        return Part(name, device=value, phases=chosen)
    return Part(name, memory=value, phases=chosen)


def _program(device: str) -> Iterator[Part]:
    yield Part("program", memory=PROGRAM, device=GPU_PROGRAM if device == "cuda" else 0)
    yield Part("other processes", memory=OTHERS)


def _model(shape: ModelShape, config: Config, device: str) -> Iterator[Part]:
    whole = weights(shape, config)
    yield _at("weights", whole, device)
    if config.policy.lora_rank:
        yield Part("program", memory=PEFT)
    else:
        # A file of weights is put together in main memory before it is written.
        yield Part("files", memory=whole, phases=("save",))


def _update(shape: ModelShape, config: Config, work: Workload, device: str) -> Iterator[Part]:
    place = "cpu" if config.learner.offload else device
    if place == "cuda":
        yield _at("gradients", gradients(shape, config), place, "update")
    else:
        # What the way back frees of activations stays with the process while gradients grow.
        yield _at("gradients", stepping(shape, config), place, "update")
    yield _at("gradients", stepping(shape, config), place, "step")
    yield _at("optimizer", optimizer(shape, config), place, *AFTER_LOADING)
    yield _at("activations", activations(shape, config, work), device, "update")
    yield _at("logits", logits(shape, work), device, "update")


def _engine(
    shape: ModelShape, config: Config, work: Workload, device: str, device_memory: int
) -> Iterator[Part]:
    shared = not config.overlaps and config.engine.kind == "transformers"
    # What the embedded engine frees of main memory stays with the process: the allocator returns
    # no block below 32 MiB (mallopt(3), M_MMAP_THRESHOLD). A GPU's is there for the update.
    gone = shared and device == "cuda"
    writing: tuple[Phase, ...] = ("generate",) if gone else AFTER_LOADING
    model = width(config) * shape.parameters
    if config.engine.kind == "vllm":
        asleep = config.engine.sleep_mode and device == "cuda"
        awake: tuple[Phase, ...] = ("generate", "save") if asleep else writing
        share = config.engine.gpu_memory * device_memory
        taken = share if device == "cuda" else model + cache(shape, config, work)
        yield _at("engine", taken, device, *awake)
        yield Part("engine", memory=VLLM + 2 * model, phases=("load", *writing))
        return
    yield _at("cache", cache(shape, config, work), device, *writing)
    yield _at("engine", decoder(shape, config), device, *writing)
    if device == "cpu":
        # In this process gradients of the same sizes take its place.
        phases: tuple[Phase, ...] = ("generate",) if shared else writing
        yield Part("engine", memory=laid_out(shape, config), phases=phases)
    if not shared:
        yield _at("engine", model, device, *writing)
        yield Part("engine", memory=PROGRAM + 2 * model, phases=writing)


def _disk(shape: ModelShape, config: Config) -> int:
    """Of all checkpoints that are kept, and of the next one before an old one goes."""
    kept = config.schedule.keep_checkpoints + config.schedule.keep_best + 1
    adapters = FLOAT * trained(shape, config)
    saved = adapters if config.policy.lora_rank else weights(shape, config)
    return round(kept * (saved + optimizer(shape, config)))


SPARE = 1.5
"""Room of the embedded engine's cache, in tokens that it holds."""
WHOLE_LOGITS = 4.5
"""Float32 numbers for each scored token and word that an update holds at once: their log-probs, the
gradients of these and of the logits on the way back, and what is copied in between."""
SAMPLED_LOGITS = 4
"""The same of a decoding step, which has no way back."""


def trained(shape: ModelShape, config: Config) -> int:
    """Weights that an update changes."""
    rank = config.policy.lora_rank
    return rank * shape.adapter_width if rank else shape.parameters


def width(config: Config) -> int:
    """Of one number of the weights."""
    return WIDTHS[config.policy.dtype]


def weights(shape: ModelShape, config: Config) -> float:
    """The model, and adapters in float32 beside it."""
    adapters = FLOAT * trained(shape, config) if config.policy.lora_rank else 0
    return width(config) * shape.parameters + adapters


def copies(shape: ModelShape, config: Config) -> int:
    """Float32 weights that are stepped in the place of the model's, in numbers."""
    if config.policy.lora_rank:
        return trained(shape, config) if config.learner.offload else 0
    half = width(config) < FLOAT
    return shape.parameters if half or config.learner.offload else 0


def optimizer(shape: ModelShape, config: Config) -> float:
    """Both moments, and the float32 weights that are stepped."""
    moments = MOMENTS[config.learner.optimizer] * trained(shape, config)
    return moments + FLOAT * copies(shape, config)


def gradients(shape: ModelShape, config: Config) -> float:
    """Sums of gradients that are there while the next group is read.

    A pass that holds the most has only begun its way back: its own gradient takes the place of the
    activations that it lets go of, and counts where it is the larger (:func:`stepping`).
    """
    one = FLOAT * trained(shape, config)
    if not config.mixture.external:
        return one  # of earlier micro-batches
    groups = max(1, config.learner.groups_per_step)
    plain = width(config) == FLOAT and not config.learner.offload
    together = plain and not config.learner.gradient_checkpointing
    if (config.policy.lora_rank or plain) and together and groups * one <= GROUPS_TOGETHER:
        return groups * one
    return one


def stepping(shape: ModelShape, config: Config) -> float:
    """Gradients at the end of a pass: its own, in the weights' format first, and the kept sum."""
    one = FLOAT * trained(shape, config)
    kept = one if config.mixture.external else 0
    half = not config.policy.lora_rank and width(config) < FLOAT
    largest = shape.vocabulary * shape.hidden
    return one + kept + ((width(config) + FLOAT) * largest if half else 0)


def activations(shape: ModelShape, config: Config, work: Workload) -> float:
    """What a forward pass keeps of each token for the way back.

    A layer keeps what its products and norms read: two norms' inputs, in float32 too where the
    weights are in half precision, and outputs, the heads' queries, keys, values and answers, and
    the MLP's four. With an adapter a layer's linear parts read as many numbers in float32 again.
    """
    one = width(config)
    heads = (shape.heads + shape.kv_heads) * shape.head_size
    norms = 6 * shape.hidden * one + (4 * shape.hidden * FLOAT if one < FLOAT else 0)
    layer = norms + 3 * heads * one + 4 * shape.intermediate * one
    if config.policy.lora_rank:
        inputs = 3 * shape.hidden + shape.heads * shape.head_size + shape.intermediate
        layer += FLOAT * inputs if one < FLOAT else 0
    if config.learner.gradient_checkpointing:
        return work.batch * (shape.layers * shape.hidden * one + layer)
    return work.batch * shape.layers * layer


def logits(shape: ModelShape, work: Workload) -> float:
    """Scores of the vocabulary for tokens whose log-prob is asked for: of all of them, or, where
    that were much, of a part of them at a time, beside a part's gradient of the output matrix."""
    row = FLOAT * shape.vocabulary
    if row * work.scored <= WHOLE_BYTES:
        return WHOLE_LOGITS * row * work.scored
    part = max(LEAST_POSITIONS, CHUNK_BYTES // row)
    return row * (WHOLE_LOGITS * part + shape.hidden)


def cache(shape: ModelShape, config: Config, work: Workload) -> float:
    """Keys and values of all rows that are decoded side by side, and their words' scores."""
    token = 2 * shape.layers * shape.kv_heads * shape.head_size * width(config)
    held = work.rows * (work.prompt + work.answer) * token * SPARE
    return held + FLOAT * SAMPLED_LOGITS * shape.vocabulary * work.rows


def decoder(shape: ModelShape, config: Config) -> float:
    """Weights that the embedded engine holds a second time while it writes."""
    merged = shape.adapted if config.policy.lora_rank else 0
    return width(config) * (merged + shape.fused)


def laid_out(shape: ModelShape, config: Config) -> float:
    """Weights in the layout in which a CPU multiplies few rows with them, while it writes."""
    if config.engine.kind_options.get("int8") and shape.fused:
        return shape.parameters
    trains_all = shape.fused and not config.policy.lora_rank
    return width(config) * shape.parameters if trains_all else 0
