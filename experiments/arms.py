"""Arms of an experiment: batch compositions, and controls that differ in one thing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from node.config.config import Config
from node.config.learning import LearnerSection, MixtureSection
from node.config.overrides import parse_assignments, parse_mix
from node.errors import ConfigError, UsageError
from node.run.update_groups import Rules

DEFAULT = MixtureSection()
# J is a maximum: slots without a peer group stay empty, so nodes generate equally many groups.
PUBLISHED = Rules(fill=False)
MAX_NAME = 160  # characters of an arm in a file name; file systems allow 255 bytes for the whole


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train, run once per seed."""

    name: str  # unique; shown in tables
    local: int  # I, local groups per round
    external: int  # J, maximum peer groups per update
    rules: Rules = PUBLISHED  # rules of the nodes' rounds
    partial_credit: bool = False  # rewards are the families' own scores instead of right or wrong
    reference: str = "8/0"  # name of the arm to compare with, seed by seed
    overrides: Mapping[str, Any] = field(default_factory=dict)  # further config keys of every node

    @property
    def file_name(self) -> str:
        """Return the name without special characters; a long name is truncated and gets a hash."""
        whole = re.sub(r"[^\w.=-]", "_", self.name.replace("/", "-"), flags=re.ASCII)
        if len(whole) <= MAX_NAME:
            return whole
        digest = sha256(self.name.encode()).hexdigest()[:16]
        return f"{whole[:MAX_NAME]}-{digest}"


AUTO = Arm(
    "auto",
    2,
    6,
    Rules(),
    overrides={
        "mixture.select": "auto",
        "mixture.correction": DEFAULT.correction,
        "learner.groups_per_step": LearnerSection().groups_per_step,
        "mixture.max_age": 600.0,
        "mixture.peer_ratio": DEFAULT.peer_ratio,
        "mixture.author_share": DEFAULT.author_share,
        "mixture.unproven_share": DEFAULT.unproven_share,
        "mixture.filters": DEFAULT.filters,
    },
)
"""The default configuration of a node."""


def _varied(arm: Arm, change: str, key: str, value: Any) -> Arm:
    return replace(arm, name=f"{arm.name} {change}", overrides={**arm.overrides, key: value})


def mix(text: str) -> Arm:
    """Return the published arm of ``"4/4"``, or the arm ``"auto"``.

    Raises:
        UsageError: not a batch composition, or one without groups.
        ConfigError: more groups than an update may have.
    """
    if text == AUTO.name:
        return AUTO
    local, external = parse_mix(text)
    if local + external == 0:
        raise UsageError("--mix", text, "An update needs groups: increase one of them.")
    Config.with_overrides({"mixture.local": local, "mixture.external": external})
    return Arm(f"{local}/{external}", local, external)


_BETWEEN = re.compile(r"\s+(?=\w+\.[\w.]+\s*=)")
"""Separator of two assignments; values such as tables may contain spaces too."""

VARIED = ("engine", "learner", "mixture", "tasks")  # sections that a variation may set


def varied(text: str) -> Arm:
    """Return AUTO with the keys of ``text`` changed; see :func:`varied_keys`."""
    name = f"{AUTO.name} {' '.join(text.split())}"
    return replace(AUTO, name=name, overrides={**AUTO.overrides, **varied_keys(text)})


def varied_keys(text: str) -> dict[str, Any]:
    """Parse the keys and values of ``--vary``.

    Raises:
        UsageError: no key.
        ConfigError: unknown key, a key that the experiment sets, or a wrong value.
    """
    keys = parse_assignments(_BETWEEN.split(text.strip()), "--vary") if text.strip() else {}
    if not keys:
        raise UsageError("--vary", repr(text), "Write section.key=value, as in learner.lr=1e-4.")
    for key in keys:
        if key.partition(".")[0] not in VARIED:
            tables = ", ".join(VARIED)
            raise ConfigError(
                "--vary", key, f"Use keys of {tables}; the experiment sets the others."
            )
    Config.with_overrides({**AUTO.overrides, **keys})
    return keys


MIXES = tuple(mix(text) for text in ("8/0", "6/2", "4/4", "2/6"))
"""Those of the paper (arXiv 2509.08721, section 5)."""

CONTROLS = (
    Arm("4/0", 4, 0),
    Arm("2/0", 2, 0),
    Arm("4/4 undiscarded", 4, 4, Rules(fill=False, discard=False)),
    Arm("32/0 best 8", 32, 0, Rules(fill=False, keep=8)),
    Arm("8/0 partial", 8, 0, partial_credit=True, reference="8/0 partial"),
    Arm("4/4 partial", 4, 4, partial_credit=True, reference="8/0 partial"),
    _varied(mix("4/4"), "tapered", "mixture.correction", "tapered"),
    _varied(mix("4/4"), "tis", "mixture.correction", "tis"),
    _varied(mix("8/0"), "in steps", "learner.groups_per_step", LearnerSection().groups_per_step),
    _varied(AUTO, "in one step", "learner.groups_per_step", 0),
    _varied(AUTO, "tapered", "mixture.correction", "tapered"),
    _varied(AUTO, "uncorrected", "mixture.correction", "none"),
    _varied(AUTO, "tis", "mixture.correction", "tis"),
    _varied(AUTO, "3 uses", "mixture.max_uses", 3),
    replace(AUTO, name="auto 4/4", local=4, external=4),
    _varied(mix("8/0"), "thompson", "tasks.curriculum", "thompson"),
    _varied(AUTO, "thompson", "tasks.curriculum", "thompson"),
)
"""4/0 and 2/0 generate as many groups as 4/4 and 2/6 but use no peer groups. Undiscarded: groups
without advantage are shared and used too. Best 8: 32 local groups, of which the update uses up to 8
informative ones. Partial: dense rewards. The others change one part of the default: its off-policy
correction, selection, optimizer steps, uses per group, number of local groups, or curriculum."""
