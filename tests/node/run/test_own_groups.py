"""Which own groups there are, and what others get of them."""

from __future__ import annotations

import pytest

from node.rollout.group_writer import UnfinishedGroups
from node.run import update_groups as update_groups_module
from node.run.update_groups import MODEL_CHARACTERS, public_name
from swarm.groups import Origin
from tests.node.rollout.overlap_parts import AtOnce
from tests.node.run.trainer_parts import Parts


def test_tasks_beyond_the_swarms_schedule_are_trained_on_and_not_shared(monkeypatch) -> None:
    parts = Parts(monkeypatch).run(2)
    assert [indexes for indexes, _ in parts.published] == [[0, 1, 2, 3], [4, 5]]
    assert [len(outcome.own) for outcome in parts.outcomes] == [4, 4]


def test_what_is_shared_says_which_policy_wrote_it_and_how(monkeypatch) -> None:
    parts = Parts(monkeypatch, engine__temperature=0.75).run(2)
    origins = [origin for _, origin in parts.published]
    assert origins == [Origin(v, "random-0", parts.policy.encoding, 0.75, 40) for v in (0, 1)]


def test_closing_keeps_what_is_begun_for_the_next_run(monkeypatch) -> None:
    # On threads a question could still be built when the last update ends: no answer was begun.
    monkeypatch.setattr(update_groups_module, "ThreadPoolExecutor", lambda *arguments: AtOnce())
    parts = Parts(monkeypatch, streaming=True, schedule__max_staleness=1).run(2)
    parts.trainer.close()
    assert parts.calls[-2:] == ["poll", "close"], "halted, looked at once more and let go"
    assert "halt" in parts.calls
    begun = UnfinishedGroups(parts.journal).groups()
    assert any(group.completions for group in begun)


def test_an_overlapping_run_goes_on_at_the_age_that_it_had(monkeypatch) -> None:
    parts = Parts(monkeypatch, streaming=True, schedule__max_staleness=1)
    parts.policy.version = 5
    parts.run(6, done=5)
    versions = {group.version for group in UnfinishedGroups(parts.journal).groups()}
    assert versions and versions <= {5, 6}


def test_what_was_written_by_policies_after_the_checkpoint_is_written_anew(monkeypatch) -> None:
    told: list[tuple[int, int]] = []
    rewind = UnfinishedGroups.rewind

    def note(unfinished: UnfinishedGroups, done: int, version: int) -> int:
        told.append((done, version))
        return rewind(unfinished, done, version)

    monkeypatch.setattr(UnfinishedGroups, "rewind", note)
    parts = Parts(monkeypatch, streaming=True)
    parts.policy.version = 4
    parts.run(6, done=5)
    assert told == [(5, 4)]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("/home/anna/secret/mine", "mine"),
        ("naïve\n", "na?ve?"),
        ("x" * 100, "x" * MODEL_CHARACTERS),
        ("/", "model"),
    ],
)
def test_peers_see_the_last_part_of_a_models_name_in_printable_letters(name, shown) -> None:
    assert public_name(name) == shown
