"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from node.monitor.record import PHASES, RoundRecord

NONE = "–"


def share(value: float | None) -> str:
    """A reward or share from 0 to 1, with three places."""
    return NONE if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """A share from 0 to 1, in whole percent."""
    return NONE if value is None else f"{value:.0%}"


def number(value: float | None, form: str = ".0f") -> str:
    """A figure, formatted so."""
    return NONE if value is None else format(value, form)


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def lapse(seconds: float) -> str:
    """A span of time in the unit that fits."""
    for unit, length in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < length:
            return f"{seconds:.0f} {unit}"
        seconds /= {"s": 60, "min": 60, "h": 24}[unit]
    return f"{seconds:.0f} days"


def age(seconds: float) -> str:
    """How long ago, in the unit that fits."""
    return f"{lapse(seconds)} ago"


def short_ids(ids: Collection[str], least: int = 14) -> list[str]:
    """Each id as a prefix of one length, at least ``least``, that tells it from the others."""
    longest = max(map(len, ids), default=0)
    tells = (n for n in range(least, longest) if len({i[:n] for i in ids}) == len(set(ids)))
    most = next(tells, longest)
    return [each if len(each) <= most else f"{each[:most]}…" for each in ids]


def split(seconds: Mapping[str, float]) -> str:
    """How a round's time divides, largest part first, parts below one percent left out."""
    total = seconds.get("total") or sum(seconds.values()) or 1.0
    parts = sorted(((seconds.get(phase, 0.0), phase) for phase in PHASES), reverse=True)
    shown = [f"{phase} {spent / total:.0%}" for spent, phase in parts if spent / total >= 0.01]
    return ", ".join(shown) or NONE


def externals(record: RoundRecord) -> str:
    """External groups trained on, of those wanted."""
    return f"{record.groups_external} of {record.external_wanted}"


def peers(record: RoundRecord) -> str:
    """How many there are, and how many of those connected are none."""
    return f"{record.peers}{strangers(record)}"


def strangers(record: RoundRecord) -> str:
    """In brackets, how many of those connected are no peers; nothing where all are."""
    return f" ({record.strangers} in another swarm)" if record.strangers else ""


def refusals(refused: Mapping[str, int]) -> str:
    """Refused groups by reason, most frequent first."""
    ordered = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count}" for reason, count in ordered) or "none"


def one_line(record: RoundRecord) -> str:
    """A round in one line."""
    parts = [
        f"round {record.round}",
        f"reward {share(record.reward_own)}",
        f"external {share(record.reward_external)} ({externals(record)})",
        f"informative {percent(record.informative_own)}",
        f"{number(record.tokens_per_s)} tokens/s",
        f"{record.seconds.get('total', 0.0):.2f} s",
        f"peers {peers(record)}",
        f"in {size(record.bytes_in)}, out {size(record.bytes_out)}",
    ]
    if record.reward_eval is not None:
        parts.insert(2, f"eval {share(record.reward_eval)}")
    return " | ".join(parts)
