"""What one part of a node holds, in bytes: a function for each, of a model and its workload."""

from __future__ import annotations

from node.config.config import Config
from node.learner.group_gradients import MOST_BYTES as GROUPS_TOGETHER
from node.learner.logprobs import CHUNK_BYTES, LEAST_POSITIONS, WHOLE_BYTES
from node.plan.amounts import FLOAT, MOMENTS, WIDTHS
from node.plan.model_shape import ModelShape
from node.plan.workload import Workload

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
