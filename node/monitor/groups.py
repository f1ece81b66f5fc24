"""A group as people look at it: the question, the answers, and what came of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from node.monitor.rollouts import LONGEST, shortened

Origin = Literal["own", "external", "refused"]
ORIGINS: tuple[Origin, ...] = ("own", "external", "refused")
MOST_ANSWERS = 16
MOST_TOKENS = 512
"""Of one answer; of a longer one there are none."""
MOST_BYTES = 64 << 10
SHORT = 400
"""Characters of a text where all of them together would be too long."""


@dataclass(frozen=True, slots=True)
class ShownTokens:
    """An answer token by token; what is told of them has one length.

    Attributes:
        text: what each spells.
        logprob: natural log of its probability when it was sampled, as its author tells it.
        version: its author's policy step then.
        entropy: of this policy where the token stands, before the update, nats; empty where that
            was not read.
    """

    text: Sequence[str] = ()
    logprob: Sequence[float] = ()
    version: Sequence[int] = ()
    entropy: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class ShownCompletion:
    """One answer.

    Attributes:
        reward: this node's own verdict; None where there is none.
        advantage: against the others of its group; None where nothing was learned of it.
        cut: whether the length cap ended it.
    """

    text: str
    reward: float | None
    advantage: float | None
    cut: bool
    tokens: ShownTokens = ShownTokens()

    def to_dict(self, longest: int, *, tokens: bool) -> dict[str, Any]:
        """Ready for JSON."""
        shown = tokens and len(self.tokens.text) <= MOST_TOKENS
        return {
            "text": shortened(self.text, longest),
            "reward": _figure(self.reward),
            "advantage": _figure(self.advantage),
            "finish": "length" if self.cut else "stop",
            "tokens": {
                "text": list(self.tokens.text) if shown else [],
                "logprob": [_figure(each) for each in self.tokens.logprob] if shown else [],
                "version": list(self.tokens.version) if shown else [],
                "entropy": [_figure(each) for each in self.tokens.entropy] if shown else [],
            },
        }


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """One group.

    Attributes:
        round: after which it was shown.
        time: unix time, seconds.
        author: public key in hex; None for this node.
        prompt: the question, before any chat template; empty where it is not known.
        in_update: whether an update was made with it.
        reason: why it taught nothing, or was refused, in a sentence; None where it taught.
    """

    round: int
    time: float
    origin: Origin
    env: str
    level: int
    author: str | None
    prompt: str
    in_update: bool
    reason: str | None
    completions: Sequence[ShownCompletion]

    def line(self, number: int) -> bytes:
        """As a line of the file, under a number of its own; of what is too long the tokens, and
        then the middle of the texts, are left out."""
        for longest, tokens in ((LONGEST, True), (LONGEST, False)):
            line = self._line(number, longest, tokens=tokens)
            if len(line) <= MOST_BYTES:
                return line
        return self._line(number, SHORT, tokens=False)

    def _line(self, number: int, longest: int, *, tokens: bool) -> bytes:
        shown = self.completions[:MOST_ANSWERS]
        values = {
            "id": number,
            "round": self.round,
            "time": round(self.time, 3),
            "origin": self.origin,
            "env": self.env,
            "level": self.level,
            "author": self.author,
            "prompt": shortened(self.prompt, longest),
            "answer": None,
            "in_update": self.in_update,
            "reason": self.reason,
            "completions": [each.to_dict(longest, tokens=tokens) for each in shown],
        }
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _figure(value: float | None) -> float | None:
    """With four places; None for what JSON has no number for."""
    return round(value, 4) if value is not None and math.isfinite(value) else None
