"""The simulated DHT has the costs that were measured for the real one."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from experiments.scale.dht import CallCost, get_cost, store_cost

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
MEASURED = json.loads((RESULTS / "hash_table.json").read_text(encoding="utf-8"))
SEARCHED = json.loads((RESULTS / "table_search.json").read_text(encoding="utf-8"))
COUNT_ERROR, HOPS_ERROR, FINDS_ERROR = 0.05, 0.10, 0.02


def modelled(row: dict[str, Any]) -> CallCost:
    under = round(row["dictionary_bytes"])
    if row["call"] == "read":
        return get_cost(row["nodes"], under)
    return store_cost(row["nodes"], round(row["record_bytes"]), under)


@pytest.mark.parametrize(
    "row", MEASURED, ids=lambda row: f"{row['call']}-of-{row['records']}-among-{row['nodes']}"
)
def test_call_cost_matches_measurement_on_real_peers(row: dict[str, Any]) -> None:
    cost = modelled(row)
    assert cost.rpcs == pytest.approx(row["rpcs"], rel=COUNT_ERROR)
    assert cost.bytes_out == pytest.approx(row["bytes_out"], rel=COUNT_ERROR)
    assert cost.bytes_in == pytest.approx(row["bytes_in"], rel=COUNT_ERROR)
    assert cost.hops == pytest.approx(row["hops"], rel=HOPS_ERROR)


def test_measurements_cover_4_to_128_nodes() -> None:
    measured = {(row["nodes"], row["call"], row["records"]) for row in MEASURED}
    expected = {
        (nodes, call, records)
        for nodes in (4, 8, 16, 32, 64, 128)
        for call in ("read", "store")
        for records in (0, 1, 16, 32, 64)
    }
    assert measured == expected
    assert all(row["calls"] >= 20 for row in MEASURED)
    assert all(row["missing"] == row["unanswered"] == 0 for row in MEASURED)


@pytest.mark.parametrize("row", SEARCHED, ids=lambda row: f"{row['nodes']} nodes")
def test_large_table_search_cost_matches_hivemind(row: dict[str, Any]) -> None:
    assert get_cost(row["nodes"], 0).rpcs == pytest.approx(row["finds"], rel=FINDS_ERROR)


def test_cost_beyond_measurements_grows_logarithmically() -> None:
    costs = [get_cost(128 << doublings, 0).rpcs for doublings in range(8)]
    added = [more - less for less, more in pairwise(costs)]
    assert added[0] > 0
    assert added == pytest.approx([added[0]] * len(added))


def test_existing_records_add_the_same_cost_to_store_and_read() -> None:
    more = store_cost(64, 450, 20_000).bytes_in - store_cost(64, 450).bytes_in
    assert more == pytest.approx(get_cost(64, 20_000).bytes_in - get_cost(64, 0).bytes_in)


def test_call_in_single_node_table_is_free() -> None:
    assert get_cost(1, 450) == store_cost(1, 450) == CallCost(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("nodes", "size"), [(0, 0), (-1, 450), (4, -1)])
def test_cost_rejects_empty_table_or_negative_size(nodes: int, size: int) -> None:
    for cost in (get_cost, store_cost):
        with pytest.raises(ValueError, match=f"nodes={nodes} and bytes={size}"):
            cost(nodes, size)
