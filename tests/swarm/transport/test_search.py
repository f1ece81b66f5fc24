"""Searches of the hash table, of honest nodes and of those who lead others astray."""

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
    """Whom a search for key 0 asked, and what it found; who has no answer does not answer."""
    asked: list[str] = []

    async def ask(peer: str) -> tuple[int, Named] | None:
        asked.append(peer)
        found = answers.get(peer)
        return None if found is None else (id_of(peer), found)

    search = Search(OWN, lambda node: node, ask, counters or Counters())
    return asked, asyncio.run(search.nearest(start))


def named(*nodes: int) -> Named:
    return [(node, f"peer {node}") for node in nodes]


@given(st.sets(st.integers(1, 10_000), min_size=1, max_size=120), st.integers(0, 119))
def test_a_search_comes_to_the_nearest_nodes_when_each_knows_a_few_that_are_nearer(ids, start):
    nodes = sorted(ids)
    answers = {f"peer {node}": named(*nodes[max(0, n - 3) : n]) for n, node in enumerate(nodes)}
    answers[f"peer {nodes[0]}"] = named(*nodes[1:BUCKET])
    asked, found = searched(answers, named(nodes[start % len(nodes)]))
    assert len(asked) == len(set(asked))
    assert found == named(*nodes[:BUCKET])


def test_mallory_names_herself_under_ever_nearer_ids_and_is_asked_once() -> None:
    ids = count(1_000_000, -1)

    class Endless(dict):
        def get(self, peer: str, default: object = None) -> Named | None:
            return [(next(ids), "mallory") for _ in range(BUCKET)] if peer == "mallory" else []

    asked, found = searched(Endless(), [(100, "mallory"), *named(6_000_000)])
    assert sorted(asked) == ["mallory", "peer 6000000"]
    assert found == [(100, "mallory"), *named(6_000_000)]


def test_who_waits_under_two_ids_is_asked_once() -> None:
    asked, found = searched({"ben": []}, [(1, "ben"), (2, "ben")])
    assert (asked, found) == (["ben"], [(1, "ben")])


def test_mallory_names_a_crowd_that_does_not_answer_and_who_does_is_asked_soon(counters) -> None:
    crowd = [(node, f"nobody {node}") for node in range(1, BUCKET + 1)]
    honest = named(*range(1000, 1008))
    answers = {"mallory": crowd, **{peer: [] for _, peer in honest}}
    asked, found = searched(answers, [(100, "mallory"), *honest], counters)
    silent = sum(peer.startswith("nobody") for peer in asked)
    assert counters.snapshot()["searches_unanswered"] == silent
    assert found == [(100, "mallory"), *honest]
    at_first = [peer for peer in asked if peer.startswith("nobody")].index("nobody 8") + 1
    assert at_first == 2 * MISNAMED, "those under way when the fourth stayed silent, and no more"
    assert max(asked.index(peer) for _, peer in honest) <= len(honest) + 2 * MISNAMED


def test_two_who_name_silent_peers_hold_nobody_up(monkeypatch):
    monkeypatch.setattr(search_module, "PATIENCE_SECONDS", 0.01)
    crowd = [(node, f"nobody {node}") for node in range(1, 2 * BUCKET + 1)]
    honest = named(*range(1000, 1008))
    named_by = {"peer 100": crowd[::2], "peer 101": crowd[1::2], **{peer: [] for _, peer in honest}}
    left = {peer for _, peer in honest}
    asked: list[str] = []
    everybody = asyncio.Event()

    async def ask(peer: str) -> tuple[int, Named] | None:
        asked.append(peer)
        left.discard(peer)
        if not left:
            everybody.set()
        if peer in named_by:
            return id_of(peer), named_by[peer]
        await everybody.wait()
        return None

    async def found() -> Named:
        search = Search(OWN, lambda node: node, ask, Counters())
        return await asyncio.wait_for(search.nearest([*named(100, 101), *honest]), 20)

    assert asyncio.run(found()) == [*named(100, 101), *honest]
    last = max(asked.index(peer) for _, peer in honest)
    assert last <= 2 + len(honest) + 2 * (MISNAMED + WORKERS)


@pytest.mark.parametrize("is_node", [True, False])
def test_a_peer_that_is_slow_and_answers_counts_unless_it_is_no_node(monkeypatch, is_node):
    monkeypatch.setattr(search_module, "PATIENCE_SECONDS", 0.0)
    near = named(*range(1, BUCKET))

    async def ask(peer: str) -> tuple[int | None, Named]:
        for _ in range(3):
            await asyncio.sleep(0)
        return (id_of(peer), []) if peer != "peer 9000" else (9000 if is_node else None, near)

    search = Search(OWN, lambda node: node, ask, Counters())
    found = asyncio.run(search.nearest(named(9000)))
    assert found == near + (named(9000) if is_node else [])


def test_honest_peers_whom_mallory_names_under_ids_near_the_key_count_under_their_own() -> None:
    near, far = named(*range(500, 500 + BUCKET)), named(*range(9000, 9000 + BUCKET))
    lies = [(200 + n, peer) for n, (_, peer) in enumerate(far)]
    answers: dict[str, Named | None] = {peer: near for _, peer in near}
    answers |= {peer: named(1000) for _, peer in far}
    answers |= {"mallory": lies, "peer 1000": near}
    asked, found = searched(answers, [(100, "mallory"), *named(5000)])
    assert {peer for _, peer in far} & set(asked)
    assert found == [(100, "mallory"), *near[:-1]]


def test_mallory_cannot_have_the_nearest_asked_last_by_naming_them_beside_nobody() -> None:
    near = named(*range(10, 10 + BUCKET))
    nobody = [(node, f"nobody {node}") for node in range(1, 6)]
    others = named(*range(1000, 1000 + BUCKET + 5))
    answers: dict[str, Named | None] = {peer: near for _, peer in near + others}
    answers["mallory"] = nobody + near[:15]
    _, found = searched(answers, [(100, "mallory"), *others])
    assert found == near


def test_a_false_peer_under_an_id_does_not_shut_the_true_one_out() -> None:
    answers = {"mallory": [(1, "nobody 9")], "peer 50": [(1, "ben")], "ben": []}
    _, found = searched(answers, [(100, "mallory"), *named(50)])
    assert found == [(1, "ben"), *named(50), (100, "mallory")]


def test_a_crowd_of_mallorys_is_asked_so_much_and_no_more(counters) -> None:
    ids = count(1_000_000, -1)

    class Crowd(dict):
        def get(self, peer: str, default: object = None) -> Named:
            return named(*(next(ids) for _ in range(2 * BUCKET)))

    asked, found = searched(Crowd(), named(2_000_000), counters)
    assert len(asked) == len(set(asked)) == MOST_ASKED
    assert len(found) == BUCKET
    assert counters.snapshot()["neighbours_refused"] == MOST_ASKED * BUCKET


def test_nobody_names_this_node_nor_a_peer_twice(counters) -> None:
    answers = {"peer 9": [(0, "larry"), (3, "own"), (1, "ben"), (2, "ben")], "ben": []}
    asked, found = searched(answers, named(9), counters)
    assert (asked, found) == (["peer 9", "ben"], [(1, "ben"), (9, "peer 9")])
    assert counters.snapshot()["neighbours_refused"] == 3


def test_what_was_found_when_time_is_up_is_what_there_is(monkeypatch):
    monkeypatch.setattr(search_module, "SEARCH_SECONDS", 0.0)
    asked, found = searched({"peer 9": named(1, 2), "peer 8": named(3)}, named(8, 9))
    assert asked == ["peer 8", "peer 9"], "who was asked already may answer"
    assert found == named(8, 9)


async def test_a_search_that_is_given_up_asks_no_more() -> None:
    ended: list[str] = []

    async def ask(peer: str) -> tuple[int, Named] | None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(peer)
        return None

    search = Search(OWN, lambda node: node, ask, Counters())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await search.nearest(named(1, 2))
    await asyncio.sleep(0)
    assert sorted(ended) == ["peer 1", "peer 2"]


def test_a_record_goes_to_the_next_nodes_in_place_of_those_that_do_not_answer() -> None:
    put: list[str] = []

    async def took(peer: str) -> list[bool] | None:
        put.append(peer)
        return None if peer in ("peer 1", "peer 3") else [False]

    assert asyncio.run(placed(named(*range(1, 12)), took)) is False
    assert put == [peer for _, peer in named(*range(1, REPLICAS + 3))]


@pytest.mark.parametrize("others", ["never answer", "did not take it"])
def test_a_record_that_one_took_is_placed_whatever_others_do(monkeypatch, others):
    monkeypatch.setattr(search_module, "PLACING_SECONDS", 0.05)

    async def took(peer: str) -> list[bool]:
        if peer != "peer 2" and others == "never answer":
            await asyncio.Event().wait()
        return [peer == "peer 2"]

    assert asyncio.run(placed(named(1, 2, 3), took)) is True
    assert asyncio.run(placed(named(1, 3), took)) is False
    assert asyncio.run(placed([], took)) is False


def test_who_is_no_node_of_the_table_is_asked_and_keeps_nothing() -> None:
    async def ask(peer: str) -> tuple[int | None, Named]:
        return (None, named(3)) if peer == "peer 9" else (3, [])

    search = Search(OWN, lambda node: node, ask, Counters())
    assert asyncio.run(search.nearest(named(9))) == named(3)
