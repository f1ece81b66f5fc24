"""Nodes over hivemind and nodes over libp2p in one swarm, with a seed of either."""

from __future__ import annotations

from importlib.util import find_spec

import psutil
import pytest

from node.demo.run import NodeProcess
from protocol.identity import Identity
from tests.end_to_end.watching import externals, journal_rows, repeated, wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        find_spec("libp2p") is None, reason="needs libp2p: pip install 'swarm-node[libp2p]'"
    ),
]

KINDS = ("hivemind", "libp2p")
OF_SEED = {"hivemind": ("hivemind", "libp2p", "libp2p"), "libp2p": (*KINDS, *KINDS)}
"""The nodes beside each seed; ``test_swarm`` has two of hivemind's beside a seed of hivemind's."""


def author(node: NodeProcess) -> bytes:
    return Identity.load(node.folder / "identity.key").author


def authors_used(node: NodeProcess) -> set[bytes]:
    if not externals(node):
        return set()
    rows = journal_rows(node.folder, "SELECT author, epoch, number FROM used WHERE trained")
    assert not repeated(rows)
    return {author for author, _, _ in rows}


@pytest.mark.parametrize("of_seed", KINDS)
def test_nodes_of_each_kind_train_on_all_others_and_outlive_their_seed(swarm, of_seed) -> None:
    seed, address = swarm.seed(transport=of_seed)
    nodes = [
        swarm.node(f"{kind}-{number}", address, network__transport=kind)
        for number, kind in enumerate(OF_SEED[of_seed])
    ]
    names = {author(node) for node in nodes}
    for node in nodes:
        others = names - {author(node)}
        wait_until(lambda n=node, o=others: authors_used(n) >= o, node, "groups of all the others")
    below = [psutil.Process(node.pid).children(recursive=True) for node in nodes]
    with_daemon = [any(p.name() == "p2pd" for p in each) for each in below]
    assert with_daemon == [kind == "hivemind" for kind in OF_SEED[of_seed]]

    seed.kill()
    before = [externals(node) for node in nodes]
    for node, had in zip(nodes, before, strict=True):
        wait_until(lambda n=node, h=had: externals(n) >= h + 4, node, "groups without the seed")
