"""Published methods that an experiment holds against how nodes train by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.answers import Length
from experiments.arms import AUTO, Arm, varied_keys
from node.errors import UsageError

ROUNDS: Mapping[Length, int] = {"short": 150, "long": 80}
"""Of a run, by length of answers, so that all methods fit into an afternoon of two cores."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train otherwise.

    Attributes:
        name: unique; what tables show and ``--method`` takes.
        source: whose it is.
        claim: what it is tried for here.
        keys: of the configuration of every node, beside those of the default.
    """

    name: str
    source: str
    claim: str
    keys: Mapping[str, Any]

    @property
    def arm(self) -> Arm:
        """The default with this method, to be compared with the default."""
        return replace(
            AUTO, name=self.name, reference=AUTO.name, overrides={**AUTO.overrides, **self.keys}
        )


_CISPO = "MiniMax, arXiv 2506.13585"
_BRORL = "BroRL, arXiv 2510.01180"
_GSPO = "Qwen, arXiv 2507.18071"
_GSPO_CLIP = {"learner.clip_low": 3e-4, "learner.clip_high": 4e-4}

METHODS = (
    Method(
        "3-epochs",
        "PPO, arXiv 1707.06347",
        "every update is gone through three times",
        {"learner.epochs": 3},
    ),
    Method(
        "cispo",
        _CISPO,
        "the ratio is clipped, and no token loses its gradient",
        {"learner.loss": "cispo"},
    ),
    Method(
        "cispo-3-epochs",
        _CISPO,
        "the same, three times over each update",
        {"learner.loss": "cispo", "learner.epochs": 3},
    ),
    Method(
        "gspo",
        _GSPO,
        "one ratio for a sequence, in the paper's tight range",
        {"learner.loss": "gspo", **_GSPO_CLIP},
    ),
    Method(
        "gspo-3-epochs",
        _GSPO,
        "the same, three times over each update",
        {"learner.loss": "gspo", **_GSPO_CLIP, "learner.epochs": 3},
    ),
    Method(
        "thompson",
        "VADE, arXiv 2511.18902",
        "levels that are believed to be solved sometimes are practised more",
        {"tasks.curriculum": "thompson"},
    ),
    Method(
        "successes",
        "DART, arXiv 2509.23866",
        "a right answer of before joins a group that failed wholly",
        {"mixture.successes": 4},
    ),
    Method(
        "3-uses",
        "experience replay",
        "groups of others serve in three updates",
        {"mixture.max_uses": 3},
    ),
    Method(
        "int8-rollouts",
        "QeRL, arXiv 2510.11696, without its noise",
        "what is written comes from weights in 8 bits",
        {"engine.kind_options": {"int8": True}},
    ),
    Method(
        "thompson-3-uses",
        "VADE, arXiv 2511.18902; experience replay",
        "both together",
        {"tasks.curriculum": "thompson", "mixture.max_uses": 3},
    ),
    Method(
        "brorl-16",
        _BRORL,
        "half as many tasks with twice the completions, for as many tokens",
        {
            "engine.group_size": 16,
            "mixture.local": 1,
            "mixture.external": 3,
            "learner.groups_per_step": 2,
        },
    ),
    Method(
        "narrow-4",
        _BRORL,
        "the contrary, twice as many tasks with half the completions, for as many tokens",
        {
            "engine.group_size": 4,
            "mixture.local": 4,
            "mixture.external": 12,
            "mixture.target_groups": 24,
            "learner.groups_per_step": 6,
        },
    ),
)


def methods_of(names: list[str] | None, variations: list[str] | None = None) -> tuple[Method, ...]:
    """What is asked for, each once: methods in the table's order, then variations.

    Args:
        names: of methods; all are meant where neither a name nor a variation is given.
        variations: ideas of somebody's own, as ``--vary`` takes them; their names are their keys.

    Raises:
        UsageError: there is no such method, or a variation names no key.
        ConfigError: a variation sets what cannot be set, see :func:`varied_keys`.
    """
    known = {method.name: method for method in METHODS}
    for name in names or ():
        if name not in known:
            raise UsageError("--method", name, f"Use {', '.join(known)}.")
    if not names and not variations:
        return METHODS
    own = {" ".join(text.split()): varied_keys(text) for text in variations or ()}
    return (
        *(method for method in METHODS if method.name in (names or ())),
        *(Method(name, "–", "an idea of one's own", keys) for name, keys in own.items()),
    )
