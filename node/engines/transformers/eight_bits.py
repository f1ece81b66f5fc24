"""Matrices in 8 bits, with which a CPU multiplies few rows several times as fast as in float32.

A decoding step with few rows is spent on reading weights; in 8 bits there is a quarter to read, and
a register holds four times the numbers. Each row of a matrix is rounded to 127 equal steps on
either side of zero, or to 63 (:func:`weight_steps`), and each row that it is multiplied with to
127, anew in each product: what a row comes to is no matter of the rows beside it.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from node.engines.transformers.kv_cache import growing_cache
from node.errors import ConfigError
from node.policy.onednn_linear import product_of, share_of_time
from node.policy.policy import Policy

STEPS, HALF_STEPS = 127, 63
"""Of a signed byte, on either side of zero, and of one that leaves a bit unused."""
ZERO = 128
"""What stands for zero in an unsigned byte, as oneDNN takes the rows."""
LEAST = 1e-30
"""The largest number of a row of zeros, which has no step of its own."""
PROBED_SIZE, PROBED_ROWS = 1536, 32


class Rounded(NamedTuple):
    """A matrix ``[O, I]``.

    Attributes:
        weight: signed bytes, as oneDNN lays them out.
        step: float32 ``[O]``, what one of a row's steps is worth.
        zeros: int64 ``[O]``, where zero lies in each row.
    """

    weight: Tensor
    step: Tensor
    zeros: Tensor


def rounded(weight: Tensor) -> Rounded:
    """A copy of a matrix in 8 bits, to be multiplied with by :func:`rounded_product`."""
    return _rounded(weight, weight_steps())


@cache
def weight_steps() -> int:
    """Steps of a matrix on either side of zero, at which this processor's sums do not overflow.

    Without the instructions of VNNI oneDNN adds every two products of bytes in 16 bits, which hold
    2 x 255 x 63 and not 2 x 255 x 127, and cuts off what is above.
    """
    return STEPS if exact(STEPS) else HALF_STEPS


def exact(steps: int) -> bool:
    """Whether a product of the largest numbers of both sides is right."""
    largest = torch.ones(1, PROBED_SIZE)
    product = rounded_product(largest, _rounded(largest, steps), None)
    return torch.allclose(product, largest.sum())


def _rounded(weight: Tensor, steps: int) -> Rounded:
    whole = weight.detach().float()
    step = whole.abs().amax(1).clamp_(min=LEAST).div_(steps)
    signed = (whole / step[:, None]).round_().to(torch.int8)
    laid_out = torch.ops.onednn.qlinear_prepack(signed, None)
    return Rounded(laid_out, step, torch.zeros(len(step), dtype=torch.int64))


def rounded_product(x: Tensor, weight: Rounded, bias: Tensor | None) -> Tensor:
    """``x W^T + b`` of ``x [B, I]`` and a :func:`rounded` matrix, in the format of ``x``."""
    whole = x.float()
    most = whole.abs().amax(1, keepdim=True).clamp_(min=LEAST)
    # The cast cuts off what is behind the point.
    unsigned = (whole * (STEPS / most)).add_(ZERO + 0.5).to(torch.uint8)
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, ZERO, *weight, None, 1.0, 0, torch.float32, "none", [], ""
    )
    product = product.mul_(most / STEPS).to(x.dtype)
    return product if bias is None else product + bias


def check_rounding(policy: Policy) -> None:
    """Refuse what cannot be written with in 8 bits, or would not be written sooner.

    Raises:
        ConfigError: see :func:`check_processor`; the policy is not on the CPU, or its steps are
            none of :class:`node.engines.transformers.fused_decoder.FusedDecoder`'s.
    """
    from node.engines.transformers.fused_decoder import ARCHITECTURES, fits

    if policy.device.type != "cpu":
        raise _refused(f"it is for CPUs, and the policy is on {policy.device.type}")
    model = policy.merged().model
    if not fits(model, growing_cache(model.config)):
        known = ", ".join(each.__name__.removesuffix("ForCausalLM") for each in ARCHITECTURES)
        raise _refused(f"{type(model).__name__} is not one of {known} in their plain form")
    check_processor()


def check_processor() -> None:
    """Refuse to multiply bytes where that takes longer than numbers in float32, or goes wrong.

    Raises:
        ConfigError: it does, or this build of torch has no oneDNN.
    """
    if (share := share_of_float32()) >= 1:
        raise _refused(f"this processor's products take {share:.1f} times as long in 8 bits")
    if not exact(weight_steps()):
        raise _refused("this processor's products in 8 bits are wrong")


@cache
def share_of_float32() -> float:
    """Of the time of a product in float32, what one in 8 bits takes on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return float("inf")
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        x = torch.randn(PROBED_ROWS, PROBED_SIZE)
        weight = torch.randn(PROBED_SIZE, PROBED_SIZE)
        bytes_, whole = rounded(weight), product_of(weight)
        return share_of_time(
            lambda: rounded_product(x, bytes_, None), lambda: whole(x, weight, None)
        )


def _refused(why: str) -> ConfigError:
    return ConfigError("engine.kind_options", {"int8": True}, f"Leave int8 out: {why}.")
