"""What a policy, its engine and its learner have to do with each other."""

from __future__ import annotations

import logging

import pytest

from node.run import update_groups as module
from tests.node.run.rounds_parts import Loop, Nothing
from tests.node.run.trainer_parts import Parts
from tests.swarm.experience_parts import ANNA, pooled


@pytest.mark.parametrize("sleep_mode", [False, True])
def test_the_engine_has_the_weights_of_every_update_before_the_next_round(sleep_mode: bool) -> None:
    loop = Loop(sleep_mode=sleep_mode)
    for version in (1, 2):
        loop.rounds.step()
        assert loop.engine.version == loop.policy.version == version
    assert loop.calls == 2 * ([*(["rest"] if sleep_mode else []), "update"])


def test_an_engine_whose_weights_are_still_the_policys_is_left_alone() -> None:
    loop = Loop(teacher=Nothing())
    loop.rounds.step()
    assert loop.calls == []


def test_the_engine_has_the_weights_of_an_update_that_failed_after_a_step() -> None:
    loop = Loop()
    update = loop.trained.learner.update

    def failing(*asked: object) -> None:
        update(*asked)
        raise ZeroDivisionError

    loop.trained.learner.update = failing
    with pytest.raises(ZeroDivisionError):
        loop.rounds.step()
    assert loop.engine.version == loop.policy.version == 1


def test_what_went_wrong_in_an_update_is_counted(caplog) -> None:
    loop = Loop()
    loop.learn(refused=1, unlikely=2, halved=3, engine_gap=0.06)
    with caplog.at_level(logging.WARNING):
        loop.rounds.step()
    assert loop.counters.snapshot() == {
        "steps_refused": 1,
        "external_refused{reason=unlikely}": 2,
        "micro_batch_halved": 3,
        "engine_gaps": 1,
    }
    assert "0.060 nat off the learner's" in caplog.text
    for quiet in (0.04, None):
        loop = Loop()
        loop.learn(engine_gap=quiet)
        loop.rounds.step()
        assert loop.counters.snapshot() == {}


def test_an_engine_is_compared_also_where_only_strangers_teach() -> None:
    loop = Loop(local=8, external=4, teacher=Nothing())
    loop.prove(ANNA)
    loop.pool.add([pooled(1), pooled(2)])
    outcome = loop.rounds.step()
    assert outcome.external and not outcome.update.skipped
    assert outcome.update.staleness == (), "no own token is trained on"
    assert outcome.update.engine_gap is not None
    assert loop.counters.snapshot()["engine_gaps"] == 1


@pytest.mark.parametrize(
    ("changes", "rests"),
    [
        ({}, False),
        ({"engine__sleep_mode": True}, True),
        ({"streaming": True, "schedule__oversample": 0.5}, True),
        ({"streaming": True}, False),
    ],
)
def test_the_engine_rests_where_it_shares_the_device_or_is_over_provisioned(
    monkeypatch, changes, rests
) -> None:
    parts = Parts(monkeypatch, **changes).run(1)
    parts.trainer.close()
    assert ("rest" in parts.calls) == rests


@pytest.mark.parametrize(
    ("changes", "decoupled"),
    [
        ({"streaming": True, "schedule__max_staleness": 1}, True),
        ({"streaming": True, "schedule__max_staleness": 0}, False),
        ({}, False),
    ],
)
def test_own_groups_are_weighed_by_age_only_where_they_can_be_old(
    monkeypatch, changes, decoupled
) -> None:
    told = []
    opened = module.open_learner

    def note(policy, section, ranks, **choices):
        told.append(choices)
        return opened(policy, section, ranks, **choices)

    monkeypatch.setattr(module, "open_learner", note)
    Parts(
        monkeypatch,
        engine__temperature=0.75,
        mixture__correction="tis",
        mixture__correction_options={"cap": 3.0},
        mixture__filters=["unlikely"],
        **changes,
    )
    (choices,) = told
    assert choices["decoupled"] == decoupled
    assert choices["temperature"] == 0.75
    assert (choices["correction"], choices["correction_options"]) == ("tis", {"cap": 3.0})
    assert choices["floor"]
    Parts(monkeypatch, mixture__filters=[])
    assert not told[1]["floor"]
