"""What is kept of right answers, for how long, and into which groups one comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.learner.batches import TrainingCompletion, TrainingGroup
from node.rollout import replay as replay_module
from node.rollout.replay import SuccessPool
from swarm.common.counters import Counters
from swarm.groups import GroupKey

ANYBODY = range(1000)
AUTHOR = b"a" * 32


def answer(*ids: int) -> TrainingCompletion:
    """A turn, an observation and a turn; of the policy's first version."""
    trained = tuple(place != 1 for place in range(len(ids)))
    return TrainingCompletion(ids, trained, tuple(-float(i) for i in ids), (1,) * len(ids))


def group(prompt: int, *rewards: float, first: int = 10) -> TrainingGroup:
    done = tuple(answer(first + n, 5, first) for n in range(len(rewards)))
    return TrainingGroup((prompt,), done, rewards, own=True)


def pool(most: int = 2) -> SuccessPool:
    return SuccessPool(most, Counters())


def revived(kept: SuccessPool, *groups: TrainingGroup) -> tuple[TrainingGroup, ...]:
    return kept.revive(groups, lambda authors: ANYBODY).training


def test_a_group_that_failed_wholly_is_given_one_right_answer_with_all_that_belongs_to_it() -> None:
    counters = Counters()
    kept = SuccessPool(2, counters)
    kept.observe(group(1, 0.0, 1.0, first=10))
    failed = group(1, 0.0, 0.0, 0.0, first=20)
    (given,) = revived(kept, failed)
    right = answer(11, 5, 10)
    assert given.rewards == (0.0, 0.0, 1.0)
    assert given.completions[:2] == failed.completions[:2]
    last = given.completions[2]
    assert (last.ids, last.trained, last.behaviour) == (right.ids, right.trained, right.behaviour)
    assert last.replayed and not any(each.replayed for each in given.completions[:2])
    assert counters.snapshot() == {"successes_replayed": 1}
    assert failed.completions[2].ids == (22, 5, 20), "the group itself stays what was written"


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=6))
def test_only_groups_without_any_reward_are_given_one_and_only_one(rewards: list[float]) -> None:
    kept = pool()
    kept.observe(group(1, 1.0, 1.0))
    asked = group(1, *rewards, first=30)
    (given,) = revived(kept, asked)
    assert sum(each.replayed for each in given.completions) == (not any(rewards))
    assert (given == asked) == any(rewards)


def test_another_question_and_a_half_right_answer_give_nothing() -> None:
    kept = pool()
    kept.observe(group(1, 1.0, 0.0))
    kept.observe(group(2, 0.5, 0.0))
    others = group(2, 0.0, 0.0), group(3, 0.0, 0.0)
    assert revived(kept, *others) == others


def test_answers_to_one_question_take_turns_and_the_newest_are_kept() -> None:
    kept = pool(most=2)
    for first in (10, 20, 30):
        kept.observe(group(1, 1.0, 0.0, first=first))
    failed = group(1, 0.0, 0.0)
    told = [revived(kept, failed)[0].completions[-1].ids[0] for _ in range(4)]
    assert told == [20, 30, 20, 30]


def test_a_text_is_kept_once_as_it_was_written_last() -> None:
    kept = pool(most=2)
    kept.observe(group(1, 1.0, 0.0, first=10))
    kept.observe(group(1, 1.0, 0.0, first=20))
    kept.observe(group(1, 1.0, 0.0, first=10))
    failed = group(1, 0.0, 0.0)
    assert [revived(kept, failed)[0].completions[-1].ids[0] for _ in range(3)] == [20, 10, 20]


def test_of_too_much_the_questions_are_forgotten_that_were_asked_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_module, "MOST_TOKENS", 3 * (1 + 3))
    kept = pool()
    for prompt in (1, 2, 3):
        kept.observe(group(prompt, 1.0, 0.0))
    revived(kept, group(1, 0.0, 0.0))
    kept.observe(group(4, 1.0, 0.0))
    given = revived(kept, *(group(prompt, 0.0, 0.0) for prompt in (1, 2, 3, 4)))
    assert [max(each.rewards) for each in given] == [1.0, 0.0, 1.0, 1.0]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(10, 60), st.sampled_from([0.0, 1.0])),
        max_size=60,
    ),
    st.integers(1, 3),
)
def test_what_is_kept_stays_within_its_bounds(
    seen: list[tuple[int, int, float]], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_module, "MOST_TOKENS", 20)
        kept = pool(most)
        for prompt, first, reward in seen:
            kept.observe(group(prompt, reward, 0.0, first=first))
    found = set()
    for prompt in range(10):
        answers = {
            given.completions[-1].ids
            for _ in range(9)
            for given in revived(kept, group(prompt, 0.0, 0.0))
            if any(given.rewards)
        }
        assert len(answers) <= most
        found |= {(prompt, ids) for ids in answers}
    prompts = {prompt for prompt, _ in found}
    assert len(prompts) + sum(len(ids) for _, ids in found) <= 20


def test_nothing_is_kept_where_nothing_is_asked_for() -> None:
    kept = pool(most=0)
    kept.observe(group(1, 1.0, 0.0))
    failed = group(1, 0.0, 0.0)
    assert revived(kept, failed) == (failed,)


def test_an_answer_of_anothers_group_is_lent_where_its_author_may_have_one_more() -> None:
    kept, key = pool(), GroupKey(AUTHOR, 7, 3)
    kept.observe(group(1, 1.0, 0.0), key)
    kept.observe(group(2, 1.0, 0.0))
    failed = [group(1, 0.0, 0.0), group(2, 0.0, 0.0), group(1, 0.0, 0.0)]
    asked: list[list[bytes]] = []

    def first(authors: list[bytes]) -> list[int]:
        asked.append(authors)
        return [0]

    given = kept.revive(failed, first)
    assert asked == [[AUTHOR, AUTHOR]]
    assert given.lent == (key,)
    assert [max(each.rewards) for each in given.training] == [1.0, 1.0, 0.0]
