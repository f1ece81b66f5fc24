"""Whole nodes in processes of their own, over real p2p daemons."""

from __future__ import annotations

import pytest
from watching import externals, journal_rows, repeated, rounds, wait_until

from node.monitor.history import read_records

pytestmark = pytest.mark.processes


def test_two_nodes_and_a_seed_exchange_groups_and_train_on_them(swarm) -> None:
    _, address = swarm.seed()
    first = swarm.node("first", address)
    second = swarm.node("second", address)
    for node in (first, second):
        wait_until(lambda n=node: externals(n) >= 4, node, "external groups in updates")
    used = journal_rows(first.folder, "SELECT author, epoch, number FROM used WHERE trained")
    assert {author for author, _, _ in used} > {b""}
    assert not repeated(used)


def test_a_peer_with_another_tokenizer_and_group_size_is_learned_from(swarm) -> None:
    _, address = swarm.seed()
    narrow = swarm.node("narrow", address, policy__model="tiny", engine__group_size=6)
    wide = swarm.node("wide", address, policy__model="tiny-wide", engine__group_size=10)
    for node in (narrow, wide):
        wait_until(lambda n=node: externals(n) >= 2, node, "external groups in updates")


def test_a_killed_node_goes_on_and_uses_nothing_twice(swarm) -> None:
    _, address = swarm.seed()
    helper = swarm.node("helper", address)
    victim = swarm.node("victim", address, schedule__checkpoint_every=5)
    wait_until(lambda: externals(victim) >= 3 and rounds(victim) >= 12, victim, "warm-up")
    victim.kill()
    before = journal_rows(victim.folder, "SELECT value FROM numbers WHERE name='last_sequence'")
    done = len(read_records(victim.folder))

    revived = swarm.again(victim)
    used_before = externals(victim)
    wait_until(lambda: externals(revived) >= used_before + 3, revived, "learning goes on")
    records = read_records(victim.folder)
    assert records[done].round > 5, "it began anew instead of resuming"
    after = journal_rows(victim.folder, "SELECT value FROM numbers WHERE name='last_sequence'")
    assert after > before
    assert not repeated(journal_rows(victim.folder, "SELECT author, epoch, number FROM used"))
    assert helper.exit_code is None


def test_a_node_whose_peers_all_vanish_goes_on_alone(swarm) -> None:
    seed, address = swarm.seed()
    other = swarm.node("other", address)
    survivor = swarm.node("survivor", address)
    wait_until(lambda: externals(survivor) >= 1, survivor, "company")
    seed.kill()
    other.kill()
    alone_from = rounds(survivor)
    wait_until(lambda: rounds(survivor) >= alone_from + 20, survivor, "rounds alone")
    # What the others had shared before they went is used up first.
    wait_until(
        lambda: not any(r.pool_groups for r in read_records(survivor.folder)[-2:]),
        survivor,
        "an empty pool",
    )
    last = read_records(survivor.folder)[-1]
    assert last.groups_own == 8, "the missing external groups were not replaced by own ones"


def test_a_node_started_before_its_swarm_joins_it_later(swarm) -> None:
    seed, address = swarm.seed()
    early = swarm.node("early", address)
    wait_until(lambda: rounds(early) >= 2, early, "rounds")
    seed.kill()
    port = address.split("/")[4]
    returned = swarm.restart_seed(seed, f"/ip4/127.0.0.1/tcp/{port}")
    late = swarm.node("late", address)
    wait_until(lambda: externals(late) >= 1, late, "groups from the early node")
    assert returned.exit_code is None
