"""Whole nodes in processes of their own, over real p2p daemons."""

from __future__ import annotations

import pytest

from node.monitor.history import read_records
from tests.end_to_end.watching import externals, journal_rows, repeated, rounds, wait_until

pytestmark = pytest.mark.processes

SMALL = {"schedule__eval_tasks": 4, "engine__max_new_tokens": 12, "mixture__local": 4}
"""Of nodes whose rounds need not learn much."""


def test_two_nodes_exchange_groups_and_one_that_is_killed_resumes(swarm) -> None:
    _, address = swarm.seed()
    helper = swarm.node(
        "helper", address, policy__model="tiny-wide", engine__group_size=10, **SMALL
    )
    options = {"engine__group_size": 6, "schedule__checkpoint_every": 5, **SMALL}
    victim = swarm.node("victim", address, policy__model="tiny", **options)
    for node in (helper, victim):
        wait_until(lambda n=node: externals(n) >= 4, node, "external groups in updates")
    wait_until(lambda: rounds(victim) >= 12, victim, "a checkpoint")
    used = journal_rows(helper.folder, "SELECT author, epoch, number FROM used WHERE trained")
    assert {author for author, _, _ in used} > {b""}
    assert not repeated(used)

    victim.kill()
    before = journal_rows(victim.folder, "SELECT value FROM numbers WHERE name='last_sequence'")
    done = len(read_records(victim.folder))
    used_before = externals(victim)
    revived = swarm.again(victim)
    wait_until(lambda: externals(revived) >= used_before + 3, revived, "learning goes on")
    records = read_records(victim.folder)
    assert records[done].round > 5, "it began anew instead of resuming"
    after = journal_rows(victim.folder, "SELECT value FROM numbers WHERE name='last_sequence'")
    assert after > before
    used = journal_rows(victim.folder, "SELECT author, epoch, number FROM used")
    assert {author for author, _, _ in used} > {b""}
    assert not repeated(used)
    assert helper.exit_code is None


def test_a_node_started_before_its_swarm_joins_it_later_and_goes_on_alone_when_all_vanish(
    swarm,
) -> None:
    seed, address = swarm.seed()
    early = swarm.node("early", address)
    wait_until(lambda: rounds(early) >= 2, early, "rounds")
    seed.kill()
    port = address.split("/")[4]
    returned = swarm.restart_seed(seed, f"/ip4/127.0.0.1/tcp/{port}")
    late = swarm.node("late", address)
    wait_until(lambda: externals(late) >= 1, late, "groups from the early node")
    assert returned.exit_code is None
    wait_until(lambda: externals(early) >= 1, early, "groups from the late node")

    returned.kill()
    late.kill()
    alone_from = rounds(early)
    wait_until(lambda: rounds(early) >= alone_from + 20, early, "rounds alone")
    # What the others had shared before they went is used up first.
    wait_until(
        lambda: not any(r.pool_groups for r in read_records(early.folder)[-2:]),
        early,
        "an empty pool",
    )
    last = read_records(early.folder)[-1]
    assert last.groups_own == 8, "the missing external groups were not replaced by own ones"
