"""A plan as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from node.config.schema import toml_value
from node.plan.amounts import gigabytes
from node.plan.plan import Plan

HEADS = ("", "GPU", "main memory")
MILLION = 1e6
BILLION = 1e9


def lines(plan: Plan) -> Iterator[str]:
    """The model, the machine, the table of bytes, the speed, and the keys that differ."""
    yield from _beginning(plan)
    yield ""
    yield from _table(plan)
    yield ""
    yield from _speed(plan)
    yield ""
    yield from _larger(plan)
    yield ""
    yield "node.toml:"
    for key, value in plan.choice.keys.items():
        yield f"  {key} = {toml_value(value)}"


def count(parameters: int) -> str:
    """Parameters for people."""
    if parameters < BILLION:
        return f"{parameters / MILLION:.1f} million"
    return f"{parameters / BILLION:.1f} billion"


def _beginning(plan: Plan) -> Iterator[str]:
    shape, machine = plan.shape, plan.machine
    active = "" if shape.active == shape.parameters else f", {count(shape.active)} active"
    yield (
        f"{plan.model}: {shape.family}, {count(shape.parameters)} parameters{active}, "
        f"{shape.layers} layers, {shape.vocabulary} words, context {shape.context}"
    )
    speed = f"{machine.device.bandwidth / 1e9:.0f} GB/s {machine.device.told}"
    yield (
        f"on {machine.device.name} ({speed}), {machine.cores} cores, "
        f"{gigabytes(machine.free)} of {gigabytes(machine.memory)} main memory free"
    )
    yield f"trains {plan.choice.rung.words}; tasks of {plan.tokens} tokens"


def _table(plan: Plan) -> Iterator[str]:
    told, machine = plan.choice.estimate, plan.machine
    rows = [HEADS, *((name, _size(d), _size(m)) for name, (d, m) in told.table().items())]
    rows.append(("at once, at most", _size(told.peak("device")), _size(told.peak("memory"))))
    free = machine.device.free if machine.apart else 0
    rows.append(("free", _size(free), _size(machine.free)))
    rows.append(("disk for checkpoints", "", f"{_size(told.disk)} of {_size(machine.disk)}"))
    for name, device, memory in rows:
        yield f"{name:<22}{device:>10}{memory:>22}".rstrip()


def _size(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size else "-"


def _speed(plan: Plan) -> Iterator[str]:
    speed, work = plan.speed, plan.work
    yield (
        f"{speed.told}: writes {speed.write:.0f} tokens a second in {work.rows} rows at once, "
        f"learns from {speed.read:.0f}"
    )
    yield (
        f"a round of {work.written} answers of {work.answer} tokens: {speed.generate:.0f} s to "
        f"write them, {speed.update:.0f} s to learn"
    )


def _larger(plan: Plan) -> Iterator[str]:
    yield "the largest model of this kind that would fit:"
    for words, parameters in plan.larger().items():
        yield f"  {words}: {count(parameters)}"
