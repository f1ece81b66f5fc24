"""GPUs that people have, by their makers' data sheets, for plans of machines that are not here."""

from __future__ import annotations

from node.plan.machine import GIB, Device

CARDS: tuple[tuple[str, int, float, float], ...] = (
    ("GeForce RTX 4060", 8, 272e9, 30e12),
    ("GeForce RTX 3060", 12, 360e9, 25e12),
    ("GeForce RTX 4060 Ti", 16, 288e9, 44e12),
    ("GeForce RTX 4090", 24, 1008e9, 165e12),
    ("RTX A6000", 48, 768e9, 155e12),
    ("A100", 80, 2039e9, 312e12),
)
"""Name, GiB, bytes a second, and dense products of 16 bits a second that are added in float32."""
FLOAT32_SHARE = 0.25
"""Of these products, those in float32, about."""


def card(memory: float) -> Device:
    """A GPU with so many GiB, as fast as the largest known one that has no more."""
    known = [each for each in CARDS if each[1] <= memory] or [CARDS[0]]
    name, _, bandwidth, products = known[-1]
    size = round(memory * GIB)
    flops = {"float32": products * FLOAT32_SHARE, "bfloat16": products}
    return Device("cuda", name, size, size, bandwidth, flops, told="by data sheet")
