"""The learning side is put together as its configuration says."""

from __future__ import annotations

from types import SimpleNamespace

from node.config.learning import MixtureSection
from node.evaluation.evaluator import Evaluation
from node.run import training_loop as module
from node.run.outcome import Rules
from node.run.training_loop import open_experience
from swarm.common.clock import VirtualClock
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from swarm.journal import MEMORY, Journal
from swarm.member import Experience
from tests.node.run.trainer_parts import Parts
from tests.swarm.experience_parts import ANNA, BEN, START, pooled

TASKS = tuple(TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(2))


def test_rounds_have_the_sizes_and_turns_of_the_configuration(monkeypatch) -> None:
    parts = Parts(
        monkeypatch,
        mixture__local=3,
        mixture__external=1,
        schedule__eval_every=3,
        schedule__checkpoint_every=2,
    ).run(4)
    assert [len(outcome.own) for outcome in parts.outcomes] == [4] * 4
    assert [o.evaluation is not None for o in parts.outcomes] == [True, False, False, True]
    assert parts.saved == [2, 4]
    parts = Parts(monkeypatch, rules=Rules(fill=False), mixture__local=3, mixture__external=1)
    assert len(parts.run(1).outcomes[0].own) == 3


def test_rounds_are_counted_on_from_those_that_are_done(monkeypatch) -> None:
    parts = Parts(monkeypatch).run(7, done=5)
    assert [outcome.round for outcome in parts.outcomes] == [6, 7]


def evaluated(monkeypatch, unbuilt: int = 0) -> Parts:
    """After one round, in which an evaluation found 0.5 in one task and 1 in the other."""
    found = Evaluation(TASKS, ((1.0, 0.0), (1.0, 1.0)), unbuilt)
    stub = SimpleNamespace(evaluate=lambda: found)
    monkeypatch.setattr(module, "Evaluator", lambda *parts: stub)
    return Parts(monkeypatch).run(1)


def test_what_is_held_against_later_evaluations_is_a_mean_a_task(monkeypatch) -> None:
    parts = evaluated(monkeypatch)
    assert parts.outcomes[0].evaluation == 0.75
    assert parts.trainer.alarm.state_dict()["best"] == [0.5, 1.0]
    parts = evaluated(monkeypatch, unbuilt=1)
    assert parts.outcomes[0].evaluation == 0.75
    best = parts.trainer.alarm.state_dict()["best"]
    assert best == [], "a task was unsolved since it was not asked"


def test_closing_lets_go_of_the_engine(monkeypatch) -> None:
    parts = Parts(monkeypatch).run(1)
    parts.trainer.close()
    assert parts.calls[-1] == "close"


def test_a_secret_is_drawn_where_none_is_given(monkeypatch) -> None:
    secrets: list[bytes] = []
    opened = module.open_intake

    def note(config, policy, manifest, secret, counters):
        secrets.append(secret)
        return opened(config, policy, manifest, secret, counters)

    monkeypatch.setattr(module, "open_intake", note)
    for given in (b"", b"", b"mine"):
        Parts(monkeypatch, secret=given)
    first, second, third = secrets
    assert len(first) == len(second) == 16 and first != second
    assert third == b"mine"


def test_what_peers_are_worth_is_the_trainers_to_keep(monkeypatch) -> None:
    parts = Parts(monkeypatch, mixture__local=4, mixture__external=2, mixture__max_uses=2)
    parts.pool.add([pooled(1, env="sums"), pooled(2, author=BEN)])
    parts.run(1)
    assert parts.outcomes[0].lead == parts.trainer.lead.value is not None


def experience_of(salt: bytes = b"salt", **changes: object) -> Experience:
    clock = VirtualClock(START)
    journal = Journal(MEMORY, clock)
    return open_experience(MixtureSection(**changes), journal, clock, Counters(), salt)


def kept(experience: Experience) -> list[bytes]:
    experience.pool.add(pooled(1, author=number.to_bytes(32)) for number in range(40))
    return [candidate.key.author for candidate in experience.pool.fresh()]


def test_the_pool_is_bounded_as_the_configuration_says() -> None:
    assert len(kept(experience_of(pool_groups=8))) == 8
    assert kept(experience_of(pool_groups=8)) == kept(experience_of(pool_groups=8))
    assert kept(experience_of(pool_groups=8)) != kept(experience_of(b"other", pool_groups=8))
    pool = experience_of(max_uses=3).pool
    pool.add([pooled(1)])
    assert [len(pool.consume(pool.fresh(), step)) for step in range(4)] == [1, 1, 1, 0]


def test_newcomers_keep_the_share_of_the_pool_that_the_configuration_says() -> None:
    experience = experience_of(pool_groups=16, unproven_share=0.125)
    experience.accounts.prove([(ANNA, 1.0)] * 8)
    experience.pool.add(pooled(number, author=ANNA) for number in range(16))
    assert len([author for author in kept(experience) if author != ANNA]) == 2
