"""How fast a node writes and learns, from what its device moves and multiplies a second."""

from __future__ import annotations

from dataclasses import dataclass

from node.config.config import Config
from node.plan import memory
from node.plan.machine import Device
from node.plan.memory import Workload
from node.plan.model_shape import FLOAT, ModelShape

READ_SHARE = 0.6
"""Of the copy bandwidth, at which decoding reads weights and cache."""
MULTIPLY_SHARE = 0.4
"""Of the products of large matrices, that a pass over a micro-batch reaches."""
FEW_ROWS_SHARE, LAID_OUT_SHARE, INT8_SHARE = 0.15, 0.25, 0.5
"""The same of a decoding step on a CPU, whose products have a row for each completion: with weights
as they are, as they are laid out for it, and in 8 bits."""
LAUNCH_SECONDS = 6e-6
LAUNCHES = 14
"""Of kernels, in a layer of a decoding step, where a GPU is not told of many at once."""

HOST_BANDWIDTH = 2e10
"""Bytes a second of main memory, and of the way to it, beside a GPU; about."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of a node on a device.

    Attributes:
        write: tokens a second, of all rows together.
        read: tokens a second in an update, forward and back.
        generate, update: seconds of a round.
        told: where it is from: "estimated", or "measured".
    """

    write: float
    read: float
    generate: float
    update: float
    told: str

    @property
    def round(self) -> float:
        """Seconds of a round in which one waits for the other."""
        return self.generate + self.update

    @classmethod
    def of(cls, write: float, read: float, work: Workload, told: str, step: float = 0.0) -> Speed:
        """Of a round of full-length answers, for which the swarm spares nothing.

        Args:
            step: seconds of the optimizer's, where ``read`` leaves it out.
        """
        update = work.read / read + work.steps * step
        return cls(write, read, work.written * work.answer / write, update, told)


def estimated(shape: ModelShape, config: Config, work: Workload, device: Device) -> Speed:
    """By the roofline of Williams et al. (doi 10.1145/1498765.1498785): whichever of reading and
    multiplying takes longer."""
    flops = device.flops.get(config.policy.dtype, device.flops["float32"])
    return Speed.of(
        _write(shape, config, work, device, flops),
        flops * MULTIPLY_SHARE / _operations(shape, config),
        work,
        "estimated",
        _step_seconds(shape, config, device),
    )


def _write(
    shape: ModelShape, config: Config, work: Workload, device: Device, flops: float
) -> float:
    rows = max(1, min(work.rows, work.written))
    token = 2 * shape.layers * shape.kv_heads * shape.head_size * memory.width(config)
    past = rows * (work.prompt + work.answer / 2) * token
    model = memory.width(config) * _met(shape, rows)
    if config.engine.kind_options.get("int8"):
        share, model = INT8_SHARE, _met(shape, rows)
    elif device.kind == "cpu":
        share = LAID_OUT_SHARE if memory.laid_out(shape, config) else FEW_ROWS_SHARE
    else:
        share = MULTIPLY_SHARE
    seconds = max(
        (model + past) / (device.bandwidth * READ_SHARE),
        2 * rows * shape.active / (flops * share),
    )
    if device.kind == "cuda" and config.engine.kind == "transformers":
        seconds = max(seconds, shape.layers * LAUNCHES * LAUNCH_SECONDS)
    return rows / seconds


def _step_seconds(shape: ModelShape, config: Config, device: Device) -> float:
    """Of the optimizer, which reads and writes its numbers and the gradient once."""
    held = memory.optimizer(shape, config) + FLOAT * memory.trained(shape, config)
    moved = 2 * (held + memory.width(config) * memory.trained(shape, config))
    away = config.learner.offload and device.kind == "cuda"
    return moved / (HOST_BANDWIDTH if away else device.bandwidth)


def _met(shape: ModelShape, rows: int) -> float:
    """Weights that so many rows read in a step: of experts all that any of them meets."""
    return min(shape.parameters, shape.active + (rows - 1) * (shape.parameters - shape.active) / 8)


def _operations(shape: ModelShape, config: Config) -> float:
    """Of one token in an update: two a weight forward, and four on the way back, of which adapters
    leave out the gradients of the weights; once more forward where activations are dropped."""
    passes = 4 if config.policy.lora_rank else 6
    again = 2 if config.learner.gradient_checkpointing else 0
    return (passes + again) * shape.active
