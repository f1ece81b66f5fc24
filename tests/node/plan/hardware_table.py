"""Command that writes the table of typical plans into docs/hardware.md."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from node.errors import ConfigError
from node.plan.choice import choose, prompt_tokens
from node.plan.machine import Machine, card
from node.plan.memory import Workload
from node.plan.model_shape import ModelShape, shape_of
from node.plan.speed import estimated
from tests.node.plan.shapes import REAL, laptop, written

PAGE = Path(__file__).parents[3] / "docs" / "hardware.md"
BEGIN = "<!-- plans: written by python -m tests.node.plan.hardware_table -->"
END = "<!-- end of plans -->"
TOKENS = 512
MODELS = {
    "qwen-half": "0.5 billion (Qwen2.5)",
    "qwen-1.5": "1.5 billion (Qwen2.5)",
    "llama-3b": "3.2 billion (Llama 3.2)",
    "qwen3-8b": "8.2 billion (Qwen3)",
}
OF_THE_SYSTEM = 2
"""GiB of main memory that a plan leaves to the operating system."""


def machines() -> Iterator[tuple[str, Machine]]:
    """Yield the name of each machine and the machine."""
    yield "CPU, 16 GB", laptop(16 - OF_THE_SYSTEM)
    for size, memory in ((8, 32), (16, 64), (24, 64), (80, 256)):
        there = laptop(memory - OF_THE_SYSTEM)
        yield f"{size} GB GPU, {memory} GB", replace(there, device=card(size))


@cache
def shape(name: str) -> ModelShape:
    """Return the shape of a real model."""
    with TemporaryDirectory() as folder:
        return shape_of(written(Path(folder), REAL[name][0]), name)


def drawn(page: str) -> str:
    """Return the page with the current table."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return "\n".join([page[:begin], "", *table(), "", page[end:]])


def table() -> Iterator[str]:
    """Yield a row for each model on each machine."""
    yield (
        "| model | machine | trains | micro-batch | GPU | main memory | disk | tokens/s | s/round |"
    )
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
    for name, words in MODELS.items():
        for machine, there in machines():
            yield f"| {words} | {machine} | {' | '.join(_cells(name, there))} |"


def _cells(name: str, machine: Machine) -> list[str]:
    try:
        choice = choose(shape(name), machine, name, TOKENS)
    except ConfigError:
        return ["does not fit", "", "", "", "", "", ""]
    told = choice.estimate
    work = Workload.of(choice.config, shape(name), prompt_tokens(TOKENS))
    speed = estimated(shape(name), choice.config, work, machine.device)
    return [
        f"{choice.method.description}, {choice.config.policy.dtype}",
        str(choice.config.learner.micro_batch_tokens),
        f"{told.peak('device') / 1e9:.1f} GB" if machine.apart else "",
        f"{told.peak('memory') / 1e9:.1f} GB",
        f"{told.disk / 1e9:.0f} GB",
        f"{speed.write:.0f}",
        f"{speed.round:.0f}",
    ]


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
