"""What an update tells of the engine from text that is not in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from node.learner.batches import TrainingGroup
from node.learner.learner import Learner
from node.learner.steps import MOST_COMPLETIONS, newest_rows
from tests.node.learner.test_learner import CONFIG, MIXED, behaving, dated, group, weights
from tests.support import changed, random_policy

VERSION = 3
EARLIER = dated(MIXED, VERSION - 1)
STRANGERS = [replace(each, own=False) for each in MIXED]


@pytest.fixture(scope="module")
def new() -> list[TrainingGroup]:
    return dated(behaving([group(7, (0.0, 0.0)), group(8, (1.0, 1.0))], 0.25), VERSION)


def updated(
    groups: list[TrainingGroup], newest: list[TrainingGroup], **keys: object
) -> tuple[float | None, torch.Tensor]:
    """The engine's gap, and the weights that the update leaves."""
    policy = random_policy()
    policy.version = VERSION
    stats = Learner(policy, changed(CONFIG, **keys)).update(groups, lambda: newest)
    assert not stats.skipped
    return stats.engine_gap, weights(policy)


@pytest.mark.parametrize("groups", [EARLIER, STRANGERS], ids=["earlier versions", "strangers"])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("micro_batch_tokens", [8, 4096])
def test_where_an_update_tells_nothing_of_the_engine_its_newest_text_does(
    groups, epochs, micro_batch_tokens, new
) -> None:
    keys = {"epochs": epochs, "micro_batch_tokens": micro_batch_tokens}
    gap, after = updated(groups, new, **keys)
    assert gap == pytest.approx(0.25, abs=1e-4)
    without, same = updated(groups, [], **keys)
    assert without is None
    assert torch.equal(after, same), "what is looked at beside an update has no part in it"


def test_an_updates_own_tokens_are_asked_first(new) -> None:
    gap, _ = updated([*EARLIER, *dated(behaving([group(5, (0.0, 1.0))], 0.5), VERSION)], new)
    assert gap == pytest.approx(0.5, abs=1e-4)


def test_only_tokens_of_the_version_that_is_updated_tell() -> None:
    (each,) = behaving([group(7, (0.0,))], 0.25)
    (done,) = each.completions
    split = len(done.ids) // 2
    mixed = replace(
        done,
        behaviour=tuple(-9.0 if n < split else value for n, value in enumerate(done.behaviour)),
        versions=tuple(VERSION - (n < split) for n in range(len(done.ids))),
    )
    late = replace(each, completions=(mixed,))
    assert updated(EARLIER, [late])[0] == pytest.approx(0.25, abs=1e-4)
    assert updated(EARLIER, [late], max_completion_tokens=split)[0] is None
    assert updated(EARLIER, dated([each], VERSION - 1))[0] is None


def test_the_newest_completions_are_read_and_no_more_than_a_few() -> None:
    policy = random_policy()
    policy.version = VERSION
    groups = dated([group(seed, (0.0,) * 3) for seed in range(5)], VERSION)
    rows = newest_rows(groups, policy, longest=64)
    done = [completion for each in groups for completion in each.completions]
    assert [row.completions[0] for row in rows] == done[::-1][:MOST_COMPLETIONS]
    long = replace(groups[0], prompt_ids=(5,) * policy.context_length)
    assert newest_rows([long], policy, longest=64) == []
