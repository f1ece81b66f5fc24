"""Searches of the DHT, among honest nodes and among nodes that mislead."""

import asyncio
from collections.abc import Mapping
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.common.counters import Counters
from swarm.transport import search as search_module
from swarm.transport.search import BUCKET, MISNAMED, MOST_ASKED, REPLICAS, WORKERS, Search, placed

OWN = (0, "own")
Named = list[tuple[int, str]]


def id_of(peer: str) -> int:
    unnumbered = {"mallory": 100, "ben": 1}
    return unnumbered[peer] if peer in unnumbered else int(peer.split()[-1])


def searched(
    answers: Mapping[str, Named | None], start: Named, counters: Counters | None = None
) -> tuple[list[str], Named]:
    """Search for key 0; return queried peers and results. Others do not answer."""
    queried: list[str] = []

    async def ask(peer: str) -> tuple[int, Named] | None:
        queried.append(peer)
        result = answers.get(peer)
        return None if result is None else (id_of(peer), result)

    search = Search(OWN, lambda node: node, ask, counters or Counters())
    return queried, asyncio.run(search.nearest(start))


def named(*nodes: int) -> Named:
    return [(node, f"peer {node}") for node in nodes]


@given(st.sets(st.integers(1, 10_000), min_size=1, max_size=120), st.integers(0, 119))
def test_search_finds_the_nearest_nodes_if_each_knows_closer_ones(ids, start):
    nodes = sorted(ids)
    answers = {f"peer {node}": named(*nodes[max(0, n - 3) : n]) for n, node in enumerate(nodes)}
    answers[f"peer {nodes[0]}"] = named(*nodes[1:BUCKET])
    queried, result = searched(answers, named(nodes[start % len(nodes)]))
    assert len(queried) == len(set(queried))
    assert result == named(*nodes[:BUCKET])


def test_peer_that_claims_many_ids_is_asked_once() -> None:
    ids = count(1_000_000, -1)

    class Endless(dict):
        def get(self, peer: str, default: object = None) -> Named | None:
            return [(next(ids), "mallory") for _ in range(BUCKET)] if peer == "mallory" else []

    queried, result = searched(Endless(), [(100, "mallory"), *named(6_000_000)])
    assert sorted(queried) == ["mallory", "peer 6000000"]
    assert result == [(100, "mallory"), *named(6_000_000)]


def test_peer_with_two_ids_is_asked_once() -> None:
    queried, result = searched({"ben": []}, [(1, "ben"), (2, "ben")])
    assert (queried, result) == (["ben"], [(1, "ben")])


def test_silent_sybils_delay_honest_peers_only_briefly(counters) -> None:
    sybils = [(node, f"nobody {node}") for node in range(1, BUCKET + 1)]
    honest = named(*range(1000, 1008))
    answers = {"mallory": sybils, **{peer: [] for _, peer in honest}}
    queried, result = searched(answers, [(100, "mallory"), *honest], counters)
    silent = sum(peer.startswith("nobody") for peer in queried)
    assert counters.snapshot()["searches_unanswered"] == silent
    assert result == [(100, "mallory"), *honest]
    early_count = [peer for peer in queried if peer.startswith("nobody")].index("nobody 8") + 1
    assert early_count == 2 * MISNAMED, "only queries already under way are early"
    assert max(queried.index(peer) for _, peer in honest) <= len(honest) + 2 * MISNAMED


def test_search_does_not_wait_for_silent_peers(monkeypatch):
    monkeypatch.setattr(search_module, "PATIENCE_SECONDS", 0.01)
    sybils = [(node, f"nobody {node}") for node in range(1, 2 * BUCKET + 1)]
    honest = named(*range(1000, 1008))
    known = {"peer 100": sybils[::2], "peer 101": sybils[1::2], **{peer: [] for _, peer in honest}}
    pending = {peer for _, peer in honest}
    queried: list[str] = []
    all_asked = asyncio.Event()

    async def ask(peer: str) -> tuple[int, Named] | None:
        queried.append(peer)
        pending.discard(peer)
        if not pending:
            all_asked.set()
        if peer in known:
            return id_of(peer), known[peer]
        await all_asked.wait()
        return None

    async def result() -> Named:
        search = Search(OWN, lambda node: node, ask, Counters())
        return await asyncio.wait_for(search.nearest([*named(100, 101), *honest]), 20)

    assert asyncio.run(result()) == [*named(100, 101), *honest]
    last = max(queried.index(peer) for _, peer in honest)
    assert last <= 2 + len(honest) + 2 * (MISNAMED + WORKERS)


@pytest.mark.parametrize("is_node", [True, False])
def test_slow_peer_counts_only_if_it_is_a_dht_node(monkeypatch, is_node):
    monkeypatch.setattr(search_module, "PATIENCE_SECONDS", 0.0)
    near = named(*range(1, BUCKET))

    async def ask(peer: str) -> tuple[int | None, Named]:
        for _ in range(3):
            await asyncio.sleep(0)
        return (id_of(peer), []) if peer != "peer 9000" else (9000 if is_node else None, near)

    search = Search(OWN, lambda node: node, ask, Counters())
    result = asyncio.run(search.nearest(named(9000)))
    assert result == near + (named(9000) if is_node else [])


def test_honest_peers_with_falsely_claimed_ids_count_under_their_own() -> None:
    near, far = named(*range(500, 500 + BUCKET)), named(*range(9000, 9000 + BUCKET))
    claims = [(200 + n, peer) for n, (_, peer) in enumerate(far)]
    answers: dict[str, Named | None] = {peer: near for _, peer in near}
    answers |= {peer: named(1000) for _, peer in far}
    answers |= {"mallory": claims, "peer 1000": near}
    queried, result = searched(answers, [(100, "mallory"), *named(5000)])
    assert {peer for _, peer in far} & set(queried)
    assert result == [(100, "mallory"), *near[:-1]]


def test_naming_nearest_peers_beside_silent_ones_does_not_hide_them() -> None:
    near = named(*range(10, 10 + BUCKET))
    missing = [(node, f"nobody {node}") for node in range(1, 6)]
    others = named(*range(1000, 1000 + BUCKET + 5))
    answers: dict[str, Named | None] = {peer: near for _, peer in near + others}
    answers["mallory"] = missing + near[:15]
    _, result = searched(answers, [(100, "mallory"), *others])
    assert result == near


def test_false_peer_for_an_id_does_not_block_the_real_peer() -> None:
    answers = {"mallory": [(1, "nobody 9")], "peer 50": [(1, "ben")], "ben": []}
    _, result = searched(answers, [(100, "mallory"), *named(50)])
    assert result == [(1, "ben"), *named(50), (100, "mallory")]


def test_search_bounds_its_requests_to_sybils(counters) -> None:
    ids = count(1_000_000, -1)

    class Crowd(dict):
        def get(self, peer: str, default: object = None) -> Named:
            return named(*(next(ids) for _ in range(2 * BUCKET)))

    queried, result = searched(Crowd(), named(2_000_000), counters)
    assert len(queried) == len(set(queried)) == MOST_ASKED
    assert len(result) == BUCKET
    assert counters.snapshot()["neighbours_refused"] == MOST_ASKED * BUCKET


def test_search_rejects_self_and_duplicates(counters) -> None:
    answers = {"peer 9": [(0, "larry"), (3, "own"), (1, "ben"), (2, "ben")], "ben": []}
    queried, result = searched(answers, named(9), counters)
    assert (queried, result) == (["peer 9", "ben"], [(1, "ben"), (9, "peer 9")])
    assert counters.snapshot()["neighbours_refused"] == 3


def test_search_returns_partial_results_on_timeout(monkeypatch):
    monkeypatch.setattr(search_module, "SEARCH_SECONDS", 0.0)
    queried, result = searched({"peer 9": named(1, 2), "peer 8": named(3)}, named(8, 9))
    assert queried == ["peer 8", "peer 9"], "only queries already started are sent"
    assert result == named(8, 9)


async def test_cancelled_search_cancels_its_requests() -> None:
    stopped: list[str] = []

    async def ask(peer: str) -> tuple[int, Named] | None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(peer)
        return None

    search = Search(OWN, lambda node: node, ask, Counters())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await search.nearest(named(1, 2))
    await asyncio.sleep(0)
    assert sorted(stopped) == ["peer 1", "peer 2"]


def test_store_uses_further_nodes_if_some_do_not_answer() -> None:
    sent: list[str] = []

    async def store(peer: str) -> list[bool] | None:
        sent.append(peer)
        return None if peer in ("peer 1", "peer 3") else [False]

    assert asyncio.run(placed(named(*range(1, 12)), store)) is False
    assert sent == [peer for _, peer in named(*range(1, REPLICAS + 3))]


@pytest.mark.parametrize("others", ["never answer", "did not take it"])
def test_record_is_stored_if_one_node_accepts_it(monkeypatch, others):
    monkeypatch.setattr(search_module, "PLACING_SECONDS", 0.05)

    async def store(peer: str) -> list[bool]:
        if peer != "peer 2" and others == "never answer":
            await asyncio.Event().wait()
        return [peer == "peer 2"]

    assert asyncio.run(placed(named(1, 2, 3), store)) is True
    assert asyncio.run(placed(named(1, 3), store)) is False
    assert asyncio.run(placed([], store)) is False


def test_search_excludes_a_peer_that_is_not_a_dht_node() -> None:
    async def ask(peer: str) -> tuple[int | None, Named]:
        return (None, named(3)) if peer == "peer 9" else (3, [])

    search = Search(OWN, lambda node: node, ask, Counters())
    assert asyncio.run(search.nearest(named(9))) == named(3)
