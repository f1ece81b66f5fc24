"""Who holds which record of the simulated hash table."""

from __future__ import annotations

import random

from experiments.scale.table import REPLICAS, Table, nearest, place_of

NOW = 1000.0
KEY = bytes(20)


def table_of(count: int) -> tuple[Table, list[int]]:
    table, places = Table(), [place_of(f"peer {number}") for number in range(count)]
    for place in places:
        table.join(place)
    return table, places


def put(table: Table, side: int, subkey: bytes, value: bytes, expiry: float) -> bool:
    shelf = table.shelf(side, KEY, NOW)
    return table.put(shelf, subkey, value, expiry, frozenset(shelf.places))


def test_the_nearest_places_are_those_that_a_search_of_all_finds() -> None:
    draw = random.Random(1)
    for count in (0, 1, 3, 5, 6, 200):
        places = sorted(draw.getrandbits(160) for _ in range(count))
        key = draw.getrandbits(160)
        expected = sorted(places, key=lambda place: place ^ key)[:REPLICAS]
        assert nearest(places, key) == tuple(expected)


def test_a_record_gives_way_only_to_one_that_ends_later() -> None:
    table, _ = table_of(8)
    assert put(table, 0, b"a", b"first", NOW + 10)
    assert not put(table, 0, b"a", b"earlier", NOW + 10)
    assert put(table, 0, b"a", b"later", NOW + 11)
    shelf = table.shelf(0, KEY, NOW)
    assert (shelf.found, shelf.size) == ({b"a": b"later"}, 5)


def test_an_expired_record_is_gone_and_then_its_key() -> None:
    table, _ = table_of(8)
    put(table, 0, b"a", b"short", NOW + 1)
    put(table, 0, b"b", b"long", NOW + 5)
    shelf = table.shelf(0, KEY, NOW + 1)
    assert (shelf.found, shelf.size) == ({b"b": b"long"}, 4)
    table.forget(NOW + 4)
    assert table.most() == 1
    table.forget(NOW + 5)
    assert table.most() == 0


def test_a_record_is_lost_with_the_last_node_that_holds_it() -> None:
    table, _ = table_of(12)
    put(table, 0, b"a", b"value", NOW + 10)
    holders = table.shelf(0, KEY, NOW).places
    for place in holders[:-1]:
        table.leave(place)
    assert table.shelf(0, KEY, NOW).found == {b"a": b"value"}
    table.leave(holders[-1])
    assert table.shelf(0, KEY, NOW).found == {}
    assert set(table.shelf(0, KEY, NOW).places).isdisjoint(holders)


def test_only_who_was_reached_has_a_record() -> None:
    table, _ = table_of(12)
    shelf = table.shelf(0, KEY, NOW)
    table.put(shelf, b"a", b"value", NOW + 10, frozenset(shelf.places[:2]))
    assert table.heard(shelf, shelf.places[1:]) == {b"a": b"value"}
    assert table.heard(shelf, shelf.places[2:]) == {}


def test_the_halves_of_a_cut_write_apart_and_what_ends_later_stays_when_it_heals() -> None:
    table, places = table_of(20)
    put(table, 0, b"old", b"before", NOW + 10)
    table.cut(set(places[:10]))
    assert (table.size(0), table.size(1)) == (10, 10)
    put(table, 0, b"a", b"here", NOW + 20)
    put(table, 1, b"a", b"there", NOW + 30)
    assert table.shelf(0, KEY, NOW).found[b"a"] == b"here"
    assert table.shelf(1, KEY, NOW).found[b"a"] == b"there"
    table.heal()
    assert table.size(0) == 20
    assert table.shelf(0, KEY, NOW).entries[b"a"].value == b"there"
    assert table.shelf(0, KEY, NOW).entries[b"old"].value == b"before"
