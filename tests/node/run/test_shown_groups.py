"""What is said of a round's groups: why one taught nothing, what its answers are made of."""

from __future__ import annotations

from dataclasses import replace

from node.config.registry import ADVANTAGES
from node.engines.engine import Sample
from node.learner.update_stats import UpdateStats
from node.monitor.groups import ShownGroup
from node.rollout.groups import OwnGroup, OwnTask, own_group
from node.run.recorder import AT_ONCE, EMPTIED, IMPLAUSIBLE, NO_STEP, REFUSED_STEP, ShownGroups
from node.trajectories.trajectory import Trajectory
from protocol.rollout import Finish, Tokens
from swarm.admission import RefusedGroup
from swarm.groups import TaskRef
from swarm.verification import Verdict
from tests.node.run.test_recorder import UPDATE, outcome
from tests.support import random_policy
from tests.swarm.experience_parts import ANNA, BEN, pooled

POLICY = random_policy()


def own(rewards: tuple[float, ...] = (1.0, 0.0), text: str = "4 2") -> OwnGroup:
    ids = (*POLICY.encode_completion(text, stopped=True),)
    tokens = Tokens(ids, (-0.25,) * len(ids), (7,) * len(ids))
    samples = [Sample(tokens, Finish.STOP, text) for _ in rewards]
    task = OwnTask(TaskRef("sums", 1, 1), 7, 3)
    return own_group(task, [1], list(map(Trajectory.once, samples)), Verdict("6 * 7", rewards))


def shown(*refused: RefusedGroup, **changes: object) -> list[ShownGroup]:
    groups = ShownGroups(POLICY, ADVANTAGES.open("grpo", {}), lambda: refused)
    groups.add(outcome(**{"own": (), "external": (), **changes}))
    found = groups.take()
    assert groups.take() == [], "each round is shown once"
    return found


def test_an_own_group_is_shown_token_by_token() -> None:
    (group,) = shown(own=(own(),))
    assert (group.origin, group.env, group.level, group.author) == ("own", "sums", 1, None)
    assert (group.prompt, group.in_update, group.reason) == ("6 * 7", True, None)
    right, wrong = group.completions
    assert (right.reward, wrong.reward) == (1.0, 0.0) and right.advantage == -wrong.advantage > 0
    assert "".join(right.tokens.text[:-1]) == right.text == "4 2"
    assert set(right.tokens.logprob) == {-0.25} and set(right.tokens.version) == {7}


def test_tokens_have_the_entropies_that_the_update_found() -> None:
    same, right = own((1.0, 1.0)), own()
    count = len(right.training.completions[0].ids)
    told = (((), ()), (tuple(0.5 + n for n in range(count)), ()))
    first, second = shown(own=(same, right), update=replace(UPDATE, entropies=told))
    assert [list(each.tokens.entropy) for each in first.completions] == [[*told[1][0]], []]
    assert all(not each.tokens.entropy for each in second.completions)
    (alone,) = shown(own=(right,), update=replace(UPDATE, entropies=told))
    assert not any(each.tokens.entropy for each in alone.completions), "of other groups"


def test_a_group_of_equal_rewards_says_why_it_taught_nothing() -> None:
    (group,) = shown(own=(own((0.0, 0.0, 0.0)),))
    assert group.reason is not None and group.reason.startswith("All 3 answers have the reward 0:")
    assert {each.advantage for each in group.completions} == {0.0}


def test_an_update_without_a_step_says_why() -> None:
    (still,) = shown(own=(own(),), update=UpdateStats())
    (broken,) = shown(own=(own(),), update=UpdateStats(refused=1))
    assert (still.reason, broken.reason) == (NO_STEP, REFUSED_STEP)


def test_external_groups_say_whether_they_were_of_use() -> None:
    update = replace(UPDATE, useful=(0.5, 0.0, 0.0))
    flat = pooled(3, (1.0, 1.0), author=BEN)
    taught, implausible, same, emptied = shown(
        external=(pooled(1, author=ANNA), pooled(2, author=BEN), flat),
        update=update,
        emptied=(pooled(4, author=BEN),),
    )
    assert {each.origin for each in (taught, implausible, same, emptied)} == {"external"}
    assert (taught.author, taught.reason) == (ANNA.hex(), None)
    assert implausible.reason == IMPLAUSIBLE
    assert same.reason is not None and same.reason.startswith("All 2 answers")
    assert (emptied.in_update, emptied.reason) == (False, EMPTIED)
    assert taught.completions[0].tokens.text == (), "another encoding: ids say nothing here"


def test_larrys_token_ids_that_spell_another_text_are_not_shown() -> None:
    lie = own(text="4 2").group
    claimed = replace(lie.completions[0].segments[0], text="something else")
    told = replace(lie, completions=(replace(lie.completions[0], segments=(claimed,)),) * 2)
    group = replace(pooled(1), group=told, encoding=POLICY.encoding)
    (seen,) = shown(external=(group,))
    assert [each.text for each in seen.completions] == ["something else"] * 2
    assert [each.tokens.text for each in seen.completions] == [(), ()]


def test_refused_groups_say_why_in_words() -> None:
    group = pooled(1).group
    (seen,) = shown(RefusedGroup(BEN, group, "reward_mismatch", 5.0, "1 + 1", (0.0, 0.0)))
    assert (seen.origin, seen.author, seen.time) == ("refused", BEN.hex(), 5.0)
    assert seen.reason == "This node's verifier gives other rewards than its author claims."
    assert [each.reward for each in seen.completions] == [0.0, 0.0]


def test_of_a_large_round_some_are_shown_those_that_teach_first() -> None:
    many = (*(own((1.0, 1.0)) for _ in range(20)), own())
    found = shown(own=many)
    assert len(found) == AT_ONCE and found[0].reason is None
