"""The table of what an update is made of: own groups, and what of others' is taken."""

from __future__ import annotations

from node.config.base import Options, Refusals, Section, key
from node.config.kinds import CORRECTIONS, SELECTIONS, kind_key, options_key


class MixtureSection(Section):
    """What an update is made of."""

    local: int = key(2, "Own groups in an update.", unit="groups", ge=0, le=4096)
    external: int = key(
        6,
        "Groups that the swarm spares this node: missing ones are replaced by own. 0: take none.",
        unit="groups",
        ge=0,
        le=4096,
    )
    select: str = kind_key(
        SELECTIONS,
        "auto",
        'How many external groups an update takes, among those whose rewards differ: "uniform" '
        'takes "external" of them; "auto" fills the update up to "informative", and takes less '
        "where their authors do worse on them than this policy would.",
    )
    select_options: Options = options_key("select")
    informative: int = key(
        12,
        'Groups whose rewards differ, own and external, that "auto" fills an update up to.',
        unit="groups",
        ge=1,
        le=4096,
    )
    correction: str = kind_key(
        CORRECTIONS,
        "better",
        'Of external groups: "none" treats them as self-generated; "tis" weighs their tokens by '
        "importance, at most 1, where their author's log-probs fit this tokenizer; "
        '"tapered" lets an answer worse than its group\'s mean, a token of a better one, and a '
        "group as a whole count only as far as this policy might have written them; "
        '"better" does so with better answers and does not read worse ones.',
    )
    correction_options: Options = options_key("correction")
    refuse: Refusals = key(
        ("overlong", "repeating", "trailing", "copied"),
        "Right answers of others that are not imitated: much longer than this node's own on such "
        "tasks, running in circles, going on behind the answer, or sent by another author before; "
        'and "unlikely" ones, of tokens that this policy would hardly write, which may be what a '
        "far stronger peer has to teach.",
    )
    author_share: float = key(
        0.25,
        "Most of an update's groups that one author's may be; one group always may.",
        gt=0,
        le=1,
    )
    newcomer_share: float = key(
        0.25,
        "Most of an update's groups, and of a full pool, that all authors together may have whose "
        "groups have not yet proved useful here; one group always may.",
        gt=0,
        le=1,
    )
    max_uses: int = key(
        1,
        "Updates that an external group may be part of. Above 1, used ones fill what unused ones "
        "leave free.",
        unit="updates",
        ge=1,
        le=64,
    )
    successes: int = key(
        0,
        "Right answers, own ones and those of groups that were taken, that are kept for each "
        "question. Where an own group has no reward at all, one of them takes the place of one of "
        "its answers in the update, weighed by importance; what is shared stays what the policy "
        "wrote. They are kept in memory, and a node that starts again has none. 0: none.",
        unit="answers",
        ge=0,
        le=64,
    )
    semi_online: int = key(
        0,
        "Groups an update has besides, of tasks that others have solved in an environment: this "
        "policy plays them once more, held to their best trajectory. They are not shared. 0: none.",
        unit="groups",
        ge=0,
        le=64,
    )
    patches: int = key(
        1,
        "Most turns of the other's trajectory that take the place of own ones which depart from it "
        '(see "semi_online"); after so many the policy goes its own way.',
        unit="turns",
        ge=0,
        le=32,
    )
    max_age: float = key(
        600.0, "Age beyond which an external group is dropped.", unit="seconds", gt=0
    )
    pool_groups: int = key(
        1024, "Most external groups kept; the oldest go first.", unit="groups", ge=1, le=1_000_000
    )
