"""Whole nodes in separate processes with real p2p daemons."""

import json
import subprocess
import sys
import urllib.request
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from node.demo import run
from node.demo.node_process import NodeProcess
from node.monitor.history import read_records
from protocol.identity import Identity
from tests.end_to_end.watching import externals, journal_rows, repeated, rounds, wait_until
from tests.ports import lasting_port

pytestmark = pytest.mark.processes

LIBP2P = find_spec("libp2p") is not None
SMALL = {"schedule__eval_tasks": 4, "engine__max_new_tokens": 12, "mixture__local": 4}
"""Options of nodes that need not learn much per round."""


def identity(node: NodeProcess) -> Identity:
    return Identity.load(node.folder / "identity.key")


def test_two_nodes_exchange_groups_and_a_killed_one_resumes(swarm) -> None:
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
    assert records[done].round > 5, "the node started over instead of resuming"
    after = journal_rows(victim.folder, "SELECT value FROM numbers WHERE name='last_sequence'")
    assert after > before
    used = journal_rows(victim.folder, "SELECT author, epoch, number FROM used")
    assert {author for author, _, _ in used} > {b""}
    assert not repeated(used)
    assert helper.exit_code is None


def test_node_joins_once_peers_appear_and_continues_alone(swarm):
    listen, loopback = {"network.listen": [f"/ip4/127.0.0.1/tcp/{lasting_port()}"]}, run.loopback
    with patch.object(run, "loopback", lambda overrides: loopback(overrides | listen)):
        seed, address = swarm.seed()
    early = swarm.node("early", address)
    wait_until(lambda: rounds(early) >= 2, early, "rounds")
    seed.kill()
    returned = swarm.again(seed, "bootstrap")
    late = swarm.node("late", address)
    wait_until(lambda: externals(late) >= 1, late, "groups from the early node")
    assert returned.exit_code is None
    wait_until(lambda: externals(early) >= 1, early, "groups from the late node")

    returned.kill()
    late.kill()
    alone_from = rounds(early)
    wait_until(lambda: rounds(early) >= alone_from + 20, early, "rounds alone")
    # The node first uses up the groups that the others shared before they ended.
    newest = partial(read_records, early.folder)
    wait_until(lambda: not any(r.pool_groups for r in newest()[-2:]), early, "an empty pool")
    last = read_records(early.folder)[-1]
    assert last.groups_local == 8, "local groups replace the missing peer groups"


PEER_KINDS = {"hivemind": ("hivemind", "libp2p", "libp2p"), "libp2p": ("hivemind", "libp2p") * 2}
"""Nodes per kind of bootstrap node; the tests above use hivemind alone."""


def authors_used(node: NodeProcess) -> set[bytes]:
    if not externals(node):
        return set()
    rows = journal_rows(node.folder, "SELECT author, epoch, number FROM used WHERE trained")
    assert not repeated(rows)
    return {author for author, _, _ in rows}


@pytest.mark.skipif(not LIBP2P, reason="needs libp2p: pip install 'swarm-node[libp2p]'")
@pytest.mark.parametrize("of_seed", PEER_KINDS)
def test_both_transports_exchange_groups_and_survive_bootstrap_loss(swarm, of_seed) -> None:
    seed, address = swarm.seed(transport=of_seed)
    nodes = [
        swarm.node(f"{kind}-{number}", address, network__transport=kind)
        for number, kind in enumerate(PEER_KINDS[of_seed])
    ]
    names = {identity(node).author for node in nodes}
    for node in nodes:
        others = names - {identity(node).author}
        wait_until(lambda n=node, o=others: authors_used(n) >= o, node, "groups of all the others")
    below = [psutil.Process(node.pid).children(recursive=True) for node in nodes]
    with_daemon = [any(p.name() == "p2pd" for p in each) for each in below]
    assert with_daemon == [kind == "hivemind" for kind in PEER_KINDS[of_seed]]

    seed.kill()
    before = [externals(node) for node in nodes]
    for node, count in zip(nodes, before, strict=True):
        wait_until(lambda n=node, h=count: externals(n) >= h + 4, node, "groups without the seed")


NAME, LINE = "Anna’s cellar", "Two old laptops, <b>bold</b> [red]both[/red]."


def met(node: NodeProcess) -> dict[str, dict[str, Any]]:
    """Return the peers in a node's status by peer id."""
    return {peer["peer_id"]: peer for peer in (node.status() or {"peers": []})["peers"]}


def peer_id(node: NodeProcess) -> str:
    return identity(node).peer_id


def test_peers_show_profile_names_only_if_published(swarm) -> None:
    seed, address = swarm.seed()
    profile = {"profile__name": NAME, "profile__line": LINE}
    anna, double = (
        swarm.node(name, address, network__transport=kind, monitor__dashboard=True, **profile)
        for name, kind in (("anna", "hivemind"), ("double", "libp2p" if LIBP2P else "hivemind"))
    )
    ids = {peer_id(anna), peer_id(double)}
    wait_until(
        lambda: {i for i, peer in met(seed).items() if peer["name"] == NAME} == ids, seed, "names"
    )
    wait_until(lambda: met(anna).get(peer_id(double), {}).get("name") == NAME, anna, "a name")
    entry = met(anna)[peer_id(double)]
    assert (entry["line"], entry["model"]) == (LINE, "tiny") and entry["author"]
    silent = met(anna)[peer_id(seed)]
    assert [silent[key] for key in ("name", "line", "model", "version")] == [None] * 4

    command = [sys.executable, "-m", "node.cli.main", "peers", "--config", str(seed.folder)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    lines = [line for line in shown.splitlines() if NAME in line]
    assert len(lines) == 2 and len({line.split()[0] for line in lines}) == 2

    url = (anna.status() or {})["dashboard"]
    with urllib.request.urlopen(f"{url}api/v1/peers", timeout=120) as answer:
        page = {peer["peer_id"]: peer for peer in json.load(answer)["peers"]}
    assert (page[peer_id(double)]["name"], page[peer_id(double)]["line"]) == (NAME, LINE)
    assert page[peer_id(seed)]["name"] is None
