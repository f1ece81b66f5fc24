"""What an experiment compares: mixes, and controls in which one thing differs."""

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
PUBLISHED = Rules(fill=False)
"""J is a cap: a slot that the swarm cannot fill stays empty, so that own generation is the same."""

LONGEST_NAME = 160
"""Characters; a file's name may have 255 bytes, and more stands around an arm's."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train, run once for every seed.

    Attributes:
        name: unique; what tables show.
        local: I, own groups a round.
        external: J, external groups in an update at most.
        rules: how the nodes' rounds go.
        partial_credit: rewards are the families' own scores instead of right or wrong.
        reference: name of the arm that it is compared with, seed by seed.
        overrides: further config keys of every node.
    """

    name: str
    local: int
    external: int
    rules: Rules = PUBLISHED
    partial_credit: bool = False
    reference: str = "8/0"
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """The name without what file systems dislike, and of a long one the beginning."""
        whole = re.sub(r"[^\w.=-]", "_", self.name.replace("/", "-"), flags=re.ASCII)
        if len(whole) <= LONGEST_NAME:
            return whole
        digest = sha256(self.name.encode()).hexdigest()[:16]
        return f"{whole[:LONGEST_NAME]}-{digest}"


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
        "mixture.author_share": DEFAULT.author_share,
        "mixture.unproven_share": DEFAULT.unproven_share,
        "mixture.filters": DEFAULT.filters,
    },
)
"""As nodes train by default."""


def _varied(arm: Arm, change: str, **changes: Any) -> Arm:
    """An arm with some keys of the section ``mixture`` or ``tasks`` set otherwise."""
    keys = {key.replace("_", ".", 1): value for key, value in changes.items()}
    return replace(arm, name=f"{arm.name} {change}", overrides={**arm.overrides, **keys})


def mix(text: str) -> Arm:
    """``"4/4"`` as published, or ``"auto"``.

    Raises:
        UsageError: it is no mix, or one without groups.
        ConfigError: it has more groups than an update takes.
    """
    if text == AUTO.name:
        return AUTO
    local, external = parse_mix(text)
    if local + external == 0:
        raise UsageError("--mix", text, "An update needs groups: raise either number.")
    Config.with_overrides({"mixture.local": local, "mixture.external": external})
    return Arm(f"{local}/{external}", local, external)


_BETWEEN = re.compile(r"\s+(?=\w+\.[\w.]+\s*=)")
"""Two assignments: a value, such as a table, may have spaces in it too."""

VARIED = ("engine", "learner", "mixture", "tasks")
"""Tables that a variation may set keys of; what is in the others is the experiment's."""


def varied(text: str) -> Arm:
    """As nodes train by default, but for some keys: ``"mixture.local=8 mixture.target_groups=40"``.

    Raises:
        UsageError: see :func:`varied_keys`.
        ConfigError: likewise.
    """
    name = f"{AUTO.name} {' '.join(text.split())}"
    return replace(AUTO, name=name, overrides={**AUTO.overrides, **varied_keys(text)})


def varied_keys(text: str) -> dict[str, Any]:
    """Which keys ``--vary`` sets, and what to.

    Raises:
        UsageError: it names no key.
        ConfigError: there is no such key, it is of a table that an experiment sets itself, or the
            value is wrong.
    """
    keys = parse_assignments(_BETWEEN.split(text.strip()), "--vary") if text.strip() else {}
    if not keys:
        raise UsageError("--vary", repr(text), "Write section.key=value, as in learner.lr=1e-4.")
    for key in keys:
        if key.partition(".")[0] not in VARIED:
            tables = ", ".join(VARIED)
            raise ConfigError("--vary", key, f"Use keys of {tables}; the rest is the experiment's.")
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
    _varied(mix("4/4"), "tapered", mixture_correction="tapered"),
    _varied(mix("4/4"), "tis", mixture_correction="tis"),
    _varied(mix("8/0"), "in steps", learner_groups_per_step=LearnerSection().groups_per_step),
    _varied(AUTO, "in one step", learner_groups_per_step=0),
    _varied(AUTO, "tapered", mixture_correction="tapered"),
    _varied(AUTO, "uncorrected", mixture_correction="none"),
    _varied(AUTO, "tis", mixture_correction="tis"),
    _varied(AUTO, "3 uses", mixture_max_uses=3),
    replace(AUTO, name="auto 4/4", local=4, external=4),
    _varied(mix("8/0"), "thompson", tasks_curriculum="thompson"),
    _varied(AUTO, "thompson", tasks_curriculum="thompson"),
)
"""4/0 and 2/0 generate as 4/4 and 2/6 do and take nothing. Undiscarded: groups without advantage
are shared and taken like others. Best 8: 32 groups are generated, at most 8 informative ones are
trained on. Partial: dense rewards. The rest take the default's parts apart: its correction, its
choice and its steps, how often a group may serve, how much a node generates itself, and the
curriculum of its tasks."""
