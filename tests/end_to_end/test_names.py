"""Real nodes that tell each other their names, as commands and the page show them."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from typing import Any

import pytest

from node.demo.run import NodeProcess
from protocol.identity import Identity
from tests.end_to_end.watching import wait_until

pytestmark = pytest.mark.processes

NAME, LINE = "Anna’s cellar", "Two old laptops, <b>bold</b> [red]both[/red]."
KINDS = ("hivemind", "libp2p" if find_spec("libp2p") else "hivemind")


def met(node: NodeProcess) -> dict[str, dict[str, Any]]:
    """The peers in a node's status by their ids."""
    return {peer["peer_id"]: peer for peer in (node.status() or {"peers": []})["peers"]}


def peer_id(node: NodeProcess) -> str:
    return Identity.load(node.folder / "identity.key").peer_id


def test_names_are_seen_by_peers_beside_ids_and_a_node_that_tells_nothing_has_none(swarm) -> None:
    seed, address = swarm.seed()
    profile = {"profile__name": NAME, "profile__line": LINE}
    anna, double = (
        swarm.node(name, address, network__transport=kind, monitor__dashboard=True, **profile)
        for name, kind in zip(("anna", "double"), KINDS, strict=True)
    )
    ids = {peer_id(anna), peer_id(double)}
    wait_until(
        lambda: {i for i, peer in met(seed).items() if peer["name"] == NAME} == ids, seed, "names"
    )
    wait_until(lambda: met(anna).get(peer_id(double), {}).get("name") == NAME, anna, "a name")
    told = met(anna)[peer_id(double)]
    assert (told["line"], told["model"]) == (LINE, "tiny") and told["author"]
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
