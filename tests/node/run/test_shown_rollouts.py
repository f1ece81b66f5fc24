"""Of each round people see the ends of an own group and of an external one."""

from __future__ import annotations

from node.monitor.rollouts import LONGEST
from node.run.recorder import shown_rollouts
from protocol.identity import peer_id_of
from tests.node.run.test_recorder import outcome, own
from tests.swarm.experience_parts import ANNA, BEN, pooled

FLAT = (0.5, 0.5)


def test_the_worst_and_the_best_of_both_sides_are_shown_in_turn() -> None:
    done = outcome(
        own=(own(4, (3, 9, 5), (0.5, 0.0, 1.0)),),
        external=(pooled(1, (0.25, 0.75), author=BEN, texts=("no", "yes")),),
    )
    shown = shown_rollouts(done)
    assert [(r.author, r.reward, r.completion) for r in shown] == [
        (None, 0.0, "x" * 9),
        (peer_id_of(BEN), 0.25, "no"),
        (None, 1.0, "x" * 5),
        (peer_id_of(BEN), 0.75, "yes"),
    ]
    assert {r.round for r in shown} == {3}
    assert [(r.env, r.level, r.prompt) for r in shown[:2]] == [
        ("sums", 0, "question 4"),
        ("chain_sum", 0, "1 + 1 ="),
    ]
    assert [r.cut for r in shown] == [True, False, False, False]


def test_groups_that_teach_come_first_and_of_others_one_answer_is_enough() -> None:
    done = outcome(
        own=(own(0, (2, 2), FLAT), own(1, (2, 3), (0.0, 1.0))),
        external=(pooled(1, FLAT, author=ANNA), pooled(2, FLAT, author=BEN)),
    )
    shown = shown_rollouts(done)
    assert [r.prompt for r in shown if r.author is None] == 2 * ["question 1"]
    assert [(r.author, r.reward) for r in shown if r.author] == [(peer_id_of(ANNA), 0.5)]


def test_long_texts_are_cut_before_they_are_kept() -> None:
    done = outcome(external=(pooled(1, texts=("y" * 10**6, "n")),))
    assert max(len(r.completion) for r in shown_rollouts(done)) == LONGEST


def test_a_round_without_groups_shows_nothing() -> None:
    assert shown_rollouts(outcome(own=(), external=())) == []
