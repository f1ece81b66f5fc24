"""Finds the answer inside what a policy wrote."""

from __future__ import annotations

from typing import assert_never

from protocol.manifest import Extract

_OPEN, _CLOSE = "<answer>", "</answer>"
_BOX = r"\boxed{"


def extract(text: str, how: Extract) -> str:
    """The answer in a completion, stripped; empty when the completion holds none.

    Args:
        text: the completion's own text.
        how: ``text`` takes all of it, ``answer_tag`` the inside of the last
            ``<answer>…</answer>``, ``boxed`` the inside of the last ``\\boxed{…}``.
    """
    match how:
        case "text":
            return text.strip()
        case "answer_tag":
            return _last_tagged(text).strip()
        case "boxed":
            return _last_boxed(text).strip()
    assert_never(how)


def _last_tagged(text: str) -> str:
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, max(end, 0))
    return text[start + len(_OPEN) : end] if 0 <= start < end else ""


def _last_boxed(text: str) -> str:
    start = text.rfind(_BOX)
    if start < 0:
        return ""
    depth = 1
    for position in range(start + len(_BOX), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len(_BOX) : position]
    return ""
