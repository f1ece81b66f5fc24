"""Right answers of before in own groups that failed wholly: learned, and not shared."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.learner.batches import TrainingGroup
from node.learner.update_stats import UpdateStats
from node.run.outcome import Rules
from swarm.groups import TaskRef
from swarm.mixture.selection import AutoSelection
from tests.node.run.rounds_parts import Half, Loop, Nothing
from tests.node.run.trainer_parts import Parts
from tests.swarm.experience_parts import ANNA, pooled

QUESTION = "1 + 1 ="
"""That of pooled groups, too."""


class HalfOfThem(Half):
    """Asks the same question always, and likes an answer in one group of two."""

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        return [QUESTION] * len(tasks)


class NoneOfThem(Nothing):
    """Asks the same question always, and likes no answer."""

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        return [QUESTION] * len(tasks)


def learned(loop: Loop) -> list[list[TrainingGroup]]:
    """What updates are of from now on."""
    told: list[list[TrainingGroup]] = []
    update = loop.trained.learner.update

    def noted(groups: list[TrainingGroup], *rest: object) -> UpdateStats:
        told.append(groups)
        return update(groups, *rest)

    loop.trained.learner.update = noted
    return told


def replayed(groups: Sequence[TrainingGroup]) -> list[int]:
    """Of each group, how many of its answers were written before."""
    return [sum(each.replayed for each in group.completions) for group in groups]


def test_own_groups_that_failed_wholly_teach_and_are_told_and_published_as_they_were() -> None:
    loop = Loop(local=4, teacher=HalfOfThem(), successes=2)
    told = learned(loop)
    outcome = loop.rounds.step()
    assert replayed(told[0]) == [0, 1, 0, 1]
    assert [group.rewards for group in told[0]] == [(0.0, 1.0)] * 4
    assert outcome.update.groups_informative == 4
    assert [own.training.rewards for own in outcome.own] == [(0.0, 1.0), (0.0, 0.0)] * 2
    assert replayed([own.training for own in outcome.own]) == [0] * 4
    assert [index for _, index in loop.published[0]] == [0, 2]
    assert loop.counters.snapshot()["successes_replayed"] == 2


def test_without_any_kept_a_round_learns_from_what_it_wrote() -> None:
    loop = Loop(local=4, teacher=HalfOfThem())
    told = learned(loop)
    outcome = loop.rounds.step()
    assert told[0] == [own.training for own in outcome.own]


def test_what_is_given_to_a_group_leaves_less_room_for_those_of_others() -> None:
    rules = Rules(fill=False)
    wanted = [
        Loop(
            local=4,
            external=1,
            rules=rules,
            teacher=HalfOfThem(),
            select=AutoSelection,
            successes=most,
        )
        .rounds.step()
        .external_wanted
        for most in (0, 1)
    ]
    assert wanted == [12 - 2, 12 - 4]


def test_others_lend_within_their_shares_and_stand_in_the_lineage() -> None:
    loop = Loop(local=4, external=4, rules=Rules(fill=False), teacher=NoneOfThem(), successes=2)
    loop.prove(ANNA)
    theirs = pooled(1)
    loop.pool.add([theirs])
    told = learned(loop)
    loop.rounds.step()
    assert replayed(told[0]) == [0] * 5, "it is learned from as it came"
    loop.rounds.step()
    assert sum(replayed(told[1])) == 1, "of some five groups an author may have one"
    assert theirs.key in loop.pool.lineage(2)
    loop.pool.add([pooled(number) for number in (2, 3, 4)])
    loop.rounds.step()
    assert len(told[2]) == 4, "who has lent an answer has no room for a group"
    assert loop.counters.snapshot()["external_over_share"] > 0


@pytest.mark.parametrize("most", [0, 2])
def test_a_node_keeps_as_many_as_its_configuration_asks_for(monkeypatch, most: int) -> None:
    monkeypatch.setattr("tests.node.run.trainer_parts.Teacher", HalfOfThem)
    parts = Parts(monkeypatch, mixture__successes=most).run(1)
    assert parts.outcomes[0].update.groups_informative == (4 if most else 2)
