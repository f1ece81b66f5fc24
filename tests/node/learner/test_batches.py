"""Token layout of a micro-batch, and which rows share a micro-batch."""

import pytest
import torch

from node.learner.batches import (
    CHEAP_PADDING,
    Row,
    TrainingCompletion,
    TrainingGroup,
    held_tokens,
    micro_batches,
)

PAD = 99
CPU = torch.device("cpu")


def done(*ids, known=True, untrained=None):
    trained = tuple(place != untrained for place in range(len(ids)))
    behaviour = tuple(-float(i) for i in ids) if known else None
    return TrainingCompletion(ids, trained, behaviour, tuple(ids) if known else None)


SHARED = Row((1, 2, 3), (done(11, 12, 13), done(21, 22), done(31)), (0.5, -0.5, 0.25), True)
MASKED = Row(
    (4, 5),
    (done(41, 42, untrained=0), done(51, 52, 53, 54, known=False)),
    (1.0, -1.0),
    False,
    share=0.5,
    group=7,
    first=3,
)


def laid_out(*rows, budget=1000, weight=0.0):
    return list(micro_batches(rows, budget, PAD, CPU, weight))


def test_rows_with_too_much_padding_get_their_own_micro_batch():
    for padding, batches in ((1, 1), (0, 2)):
        result = list(micro_batches([SHARED, SHARED.part(0, 1)], 1000, PAD, CPU, 0.0, padding))
        assert len(result) == batches and sum(int(each.mask.sum()) for each in result) == 9


def predictors(batch):
    """Return row, token and segment from which each trained token is predicted."""
    left_out = batch.input_ids.shape[1] - batch.kept
    told = []
    for mask, sources in zip(batch.mask, batch.source, strict=True):
        line = []
        for place in batch.scored[sources[mask]].tolist():
            at = place // batch.kept, place % batch.kept + left_out
            segment = None if batch.segments is None else int(batch.segments[at])
            line.append((at[0], int(batch.input_ids[at]), segment))
        told.append(line)
    return told


def test_micro_batch_lays_out_prompt_and_completions_of_each_row():
    (batch,) = laid_out(SHARED, MASKED)
    assert batch.input_ids.tolist() == [[1, 2, 3, 11, 12, 21], [4, 5, 41, 51, 52, 53]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 3], [0, 1, 2, 2, 3, 4]]
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 1, 2, 2, 2]]
    assert batch.kept == 5, "positions from the last token of the shortest prompt"
    assert predictors(batch) == [
        [(0, 3, 0), (0, 11, 1), (0, 12, 1)],
        [(0, 3, 0), (0, 21, 2)],
        [(0, 3, 0)],
        [(1, 41, 1)],
        [(1, 5, 0), (1, 51, 2), (1, 52, 2), (1, 53, 2)],
    ]
    trained = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.mask.tolist() == [list(map(bool, line)) for line in trained]
    targets = [[11, 12, 13, 0], [21, 22, 0, 0], [31, 0, 0, 0], [0, 42, 0, 0], [51, 52, 53, 54]]
    assert batch.targets.tolist() == targets
    assert batch.behaviour[0].tolist() == [-11, -12, -13, 0]
    assert batch.behaviour[4].tolist() == [0, 0, 0, 0]
    assert batch.versions[1].tolist() == [21, 22, -1, -1]
    assert batch.versions[4].tolist() == [-1] * 4
    assert batch.known.flatten().tolist() == [True, True, True, True, False]
    assert batch.local.flatten().tolist() == [True, True, True, False, False]
    assert batch.advantages.tolist() == [0.5, -0.5, 0.25, 1.0, -1.0]
    assert batch.shares.tolist() == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert batch.numbers == (0, 1, 2, 3, 4) and batch.groups == (0, 7)


def test_single_completion_rows_need_no_mask_or_positions():
    (batch,) = laid_out(*SHARED.parts(), *MASKED.parts())
    assert batch.position_ids is None and batch.segments is None
    assert len({(ids[0], *ids) for ids in batch.input_ids.tolist()}) == 5
    told = dict(zip(batch.numbers, predictors(batch), strict=True))
    assert [token for _, token, _ in told[0]] == [3, 11, 12]
    assert [token for _, token, _ in told[3]] == [41]
    assert [token for _, token, _ in told[4]] == [5, 51, 52, 53] and told[2][0][1] == 3


def test_row_part_keeps_numbers_and_advantages():
    first, second = MASKED.parts()
    assert (first.first, first.advantages) == (3, (1.0,))
    assert (second.first, second.advantages) == (4, (-1.0,)) and second.part(0, 1) == second
    assert (SHARED.length, SHARED.shared) == (6, True)
    assert (second.length, second.shared) == (5, False)


def single(prompt, number):
    """Build a row of one single-token completion; its length is its prompt's."""
    return Row((1,) * prompt, (done(2),), (1.0,), True, first=number)


@pytest.mark.parametrize(
    ("budget", "numbers"),
    [(12, [(1, 3, 0), (2,)]), (11, [(1, 3), (0, 2)]), (1, [(1,), (3,), (0,), (2,)])],
)
def test_rows_share_a_micro_batch_if_padded_size_fits_the_budget(budget, numbers):
    rows = [single(4, 0), single(2, 1), single(4, 2), single(3, 3)]
    assert [batch.numbers for batch in laid_out(*rows, budget=budget)] == numbers


def test_mask_cost_grows_with_the_squared_length_of_shared_rows():
    assert held_tokens([single(4, 0)] * 3, mask_weight=0.5) == 12.0
    assert held_tokens([SHARED] * 3, mask_weight=0.5) == 3 * 6 * (1 + 0.5 * 6)
    rows = [SHARED, SHARED]
    assert len(laid_out(*rows, budget=48, weight=0.5)) == 1
    assert len(laid_out(*rows, budget=47, weight=0.5)) == 2


def test_masked_and_unmasked_rows_are_separated_unless_short():
    batches = laid_out(single(CHEAP_PADDING + 3, 8), SHARED, single(2, 9))
    assert [b.numbers for b in batches] == [(9, 8), (0, 1, 2)]
    assert [b.segments is None for b in batches] == [True, False]
    (batch,) = laid_out(single(CHEAP_PADDING + 2, 8), SHARED, single(2, 9))
    assert batch.segments is not None and batch.numbers == (9, 8, 0, 1, 2)
    (batch,) = laid_out(MASKED.part(1, 2), SHARED)
    assert batch.segments is not None and batch.position_ids is not None
    assert batch.segments[0].tolist() == [0, 0, 1, 1, 1, 0], "a single completion has segments"
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 4, 0]


def test_completion_prefix_keeps_its_token_attributes():
    whole = done(11, 12, 13, untrained=1)
    prefix = TrainingCompletion((11, 12), (True, False), (-11.0, -12.0), (11, 12))
    assert whole.first(2) == prefix and whole.first(3) is whole
    assert done(11, 12, known=False).first(1) == TrainingCompletion((11,), (True,))


def test_mismatched_lengths_and_empty_prompts_raise_value_error():
    wrong = ((True,), None, None), ((True,) * 2, (0.0,), None), ((True,) * 2, None, (1, 1, 1))
    for trained, behaviour, versions in wrong:
        with pytest.raises(ValueError, match="differ in length"):
            TrainingCompletion((1, 2), trained, behaviour, versions)
    with pytest.raises(ValueError, match="prompt_ids is empty"):
        TrainingGroup((), (done(1),), (1.0,), True)
