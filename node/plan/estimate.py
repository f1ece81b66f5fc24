"""The memory of a whole node, part by part and place by place, and its largest sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from node.config.config import Config
from node.plan import sizes
from node.plan.amounts import FLOAT
from node.plan.model_shape import ModelShape
from node.plan.workload import Workload

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
    whole = sizes.weights(shape, config)
    yield _at("weights", whole, device)
    if config.policy.lora_rank:
        yield Part("program", memory=PEFT)
    else:
        # A file of weights is put together in main memory before it is written.
        yield Part("files", memory=whole, phases=("save",))


def _update(shape: ModelShape, config: Config, work: Workload, device: str) -> Iterator[Part]:
    place = "cpu" if config.learner.offload else device
    if place == "cuda":
        yield _at("gradients", sizes.gradients(shape, config), place, "update")
    else:
        # What the way back frees of activations stays with the process while gradients grow.
        yield _at("gradients", sizes.stepping(shape, config), place, "update")
    yield _at("gradients", sizes.stepping(shape, config), place, "step")
    yield _at("optimizer", sizes.optimizer(shape, config), place, *AFTER_LOADING)
    yield _at("activations", sizes.activations(shape, config, work), device, "update")
    yield _at("logits", sizes.logits(shape, work), device, "update")


def _engine(
    shape: ModelShape, config: Config, work: Workload, device: str, device_memory: int
) -> Iterator[Part]:
    shared = not config.overlaps and config.engine.kind == "transformers"
    # What the embedded engine frees of main memory stays with the process: the allocator returns
    # no block below 32 MiB (mallopt(3), M_MMAP_THRESHOLD). A GPU's is there for the update.
    gone = shared and device == "cuda"
    writing: tuple[Phase, ...] = ("generate",) if gone else AFTER_LOADING
    model = sizes.width(config) * shape.parameters
    if config.engine.kind == "vllm":
        asleep = config.engine.sleep_mode and device == "cuda"
        awake: tuple[Phase, ...] = ("generate", "save") if asleep else writing
        share = config.engine.gpu_memory * device_memory
        taken = share if device == "cuda" else model + sizes.cache(shape, config, work)
        yield _at("engine", taken, device, *awake)
        yield Part("engine", memory=VLLM + 2 * model, phases=("load", *writing))
        return
    yield _at("cache", sizes.cache(shape, config, work), device, *writing)
    yield _at("engine", sizes.decoder(shape, config), device, *writing)
    if device == "cpu":
        # In this process gradients of the same sizes take its place.
        phases: tuple[Phase, ...] = ("generate",) if shared else writing
        yield Part("engine", memory=sizes.laid_out(shape, config), phases=phases)
    if not shared:
        yield _at("engine", model, device, *writing)
        yield Part("engine", memory=PROGRAM + 2 * model, phases=writing)


def _disk(shape: ModelShape, config: Config) -> int:
    """Of all checkpoints that are kept, and of the next one before an old one goes."""
    kept = config.schedule.keep_checkpoints + config.schedule.keep_best + 1
    adapters = FLOAT * sizes.trained(shape, config)
    saved = adapters if config.policy.lora_rank else sizes.weights(shape, config)
    return round(kept * (saved + sizes.optimizer(shape, config)))
