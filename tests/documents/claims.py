"""What the documents say that a run comes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from node.monitor.history import read_records

FEW = 5
"""Rounds of a beginning and of an end: the reward jumps from one to the next."""


def own_reward_rises(folder: Path) -> str:
    """From near 0.1 to near 0.9."""
    rewards = [each.reward_own for each in read_records(folder) if each.reward_own is not None]
    first, last = fmean(rewards[:FEW]), fmean(rewards[-FEW:])
    return "" if first < 0.3 and last > 0.75 else f"reward went from {first:.2f} to {last:.2f}"


def held_out_reward_passes_one_half(folder: Path) -> str:
    """From near zero."""
    rewards = [each.reward_eval for each in read_records(folder) if each.reward_eval is not None]
    good = rewards[0] < 0.05 and max(rewards) > 0.5
    return "" if good else f"held-out reward went from {rewards[0]:.2f} to {max(rewards):.2f}"


CLAIMS: dict[str, Callable[[Path], str]] = {
    "swarm-node join --config mine ": lambda folder: own_reward_rises(folder / "mine"),
    "swarm-node join --config sorter ": lambda folder: held_out_reward_passes_one_half(
        folder / "sorter"
    ),
}
"""By the beginning of a command that ends by itself: what is wrong then, or ""."""

FAILS = {
    "swarm-node doctor --config my-node --peers ": r"fail +swarm .* is in \w+, this folder in \w+",
    "torchrun ": r"rounds are done; the same command goes on(.|\n)*SignalException",
}
"""What is to end with status 1, by the beginning of the command, and the words that say why."""
