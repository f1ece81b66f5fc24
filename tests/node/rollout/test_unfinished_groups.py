from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.rollout.group_writer import TurnPlace, UnfinishedGroups, UnfinishedTurn
from node.rollout.groups import OwnTask
from protocol.rollout import Finish, Tokens
from swarm.common.clock import VirtualClock
from swarm.groups import TaskRef
from swarm.journal import MEMORY, Journal

TASKS = [OwnTask(TaskRef("sums", n, (1 << 63) - 1 - n), epoch=7, index=n) for n in range(3)]

begun_texts = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1),
        st.floats(-1e4, 0, width=32),
        st.integers(0, 2**31),
    ),
    max_size=20,
).map(lambda tokens: Tokens(*(tuple(column) for column in zip(*tokens, strict=True))))


@pytest.fixture
def journal() -> Journal:
    return Journal(MEMORY, VirtualClock(0.0))


@pytest.fixture
def unfinished(journal: Journal) -> UnfinishedGroups:
    unfinished = UnfinishedGroups(journal)
    unfinished.begin(enumerate(TASKS), 5)
    return unfinished


@given(begun_texts, st.sampled_from([None, *Finish]))
def test_what_is_written_comes_back_to_the_last_bit(begun: Tokens, finish: Finish | None) -> None:
    unfinished = UnfinishedGroups(Journal(MEMORY, VirtualClock(0.0)))
    unfinished.begin(enumerate(TASKS), 5)
    unfinished.write([(TurnPlace(1, 3), UnfinishedTurn(begun, finish))])
    kept = unfinished.groups()
    assert [(k.ticket, k.task, k.version) for k in kept] == [(t, TASKS[t], 5) for t in range(3)]
    assert [k.completions for k in kept] == [{}, {3: (UnfinishedTurn(begun, finish),)}, {}]


def test_taken_groups_are_used_and_dropped_ones_are_gone(
    unfinished: UnfinishedGroups, journal: Journal
) -> None:
    unfinished.write(
        [(TurnPlace(t, 0), UnfinishedTurn(Tokens((1,), (-1.0,), (5,)))) for t in range(3)]
    )
    unfinished.take([0, 2], 9)
    unfinished.drop([1])
    assert unfinished.groups() == []
    assert journal.read("SELECT author, epoch, number, step, trained FROM used") == [
        (b"", 7, 0, 9, 0),
        (b"", 7, 2, 9, 0),
    ]
    assert journal.read("SELECT * FROM written") == []


def test_going_back_to_a_policy_strikes_off_what_later_ones_wrote(
    unfinished: UnfinishedGroups,
) -> None:
    unfinished.write(
        [
            (TurnPlace(0, 0), UnfinishedTurn(Tokens((1, 2), (-1.0, -2.0), (3, 3)), Finish.STOP)),
            (TurnPlace(0, 1), UnfinishedTurn(Tokens((3, 4), (-1.0, -2.0), (3, 4)), Finish.STOP)),
            (TurnPlace(1, 0), UnfinishedTurn(Tokens((5,), (-1.0,), (4,)))),
        ]
    )
    assert unfinished.rewind(2, 3) == 2
    first, second, _ = unfinished.groups()
    assert first.completions[0][0].finish is Finish.STOP
    assert first.completions[1] == (UnfinishedTurn(Tokens((3,), (-1.0,), (3,))),)
    assert second.completions[0] == (UnfinishedTurn(Tokens()),)
    assert [kept.version for kept in unfinished.groups()] == [2, 2, 2]


def test_going_back_strikes_off_what_followed_a_turn_of_a_later_policy(
    unfinished: UnfinishedGroups,
) -> None:
    early, late = Tokens((1, 2), (-1.0, -2.0), (3, 3)), Tokens((3, 4), (-1.0, -2.0), (3, 4))
    unfinished.write(
        [
            (TurnPlace(0, 0, 0), UnfinishedTurn(early, Finish.STOP, "lower")),
            (TurnPlace(0, 0, 1), UnfinishedTurn(late, Finish.STOP, "higher")),
            (TurnPlace(0, 0, 2), UnfinishedTurn(early)),
            (TurnPlace(0, 1, 0), UnfinishedTurn(early, Finish.STOP, "lower")),
            (TurnPlace(0, 1, 1), UnfinishedTurn(Tokens())),
        ]
    )
    assert unfinished.rewind(2, 3) == 3
    first, second = unfinished.groups()[0].completions.values()
    cut = UnfinishedTurn(Tokens((3,), (-1.0,), (3,)))
    assert first == (UnfinishedTurn(early, Finish.STOP, "lower"), cut)
    assert second == (UnfinishedTurn(early, Finish.STOP, "lower"), UnfinishedTurn(Tokens()))
