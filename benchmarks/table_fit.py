"""The constants of ``swarm/simulation/table_cost.py`` as they follow from what was counted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from swarm.simulation.table_cost import (
    ANSWER_BYTES,
    DICTIONARY_BYTES,
    ENTRY_FACTOR,
    FIND_BYTES,
    HOPS_A_FIND,
    NEIGHBOUR_BYTES,
    NEIGHBOURS,
    REPLICAS,
    STORE_BYTES,
    STORE_HOPS,
    STORED_BYTES,
    CallCost,
    get_cost,
    store_cost,
)

IN_FORCE = {
    "FIND_BYTES": FIND_BYTES,
    "ANSWER_BYTES": ANSWER_BYTES,
    "NEIGHBOUR_BYTES": NEIGHBOUR_BYTES,
    "DICTIONARY_BYTES": DICTIONARY_BYTES,
    "ENTRY_FACTOR": ENTRY_FACTOR,
    "STORE_BYTES": STORE_BYTES,
    "STORED_BYTES": STORED_BYTES,
    "HOPS_A_FIND": HOPS_A_FIND,
    "STORE_HOPS": STORE_HOPS,
}


def fitted(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Each constant by least squares over the rows that show it.

    Needs two sizes of the table, and one of as many nodes as replicas or fewer.
    """
    reads = [row for row in rows if row["call"] == "read"]
    stores = [row for row in rows if row["call"] == "store"]
    empty = [row for row in reads if not row["records"]]
    full = [row for row in reads if row["records"]]
    neighbour, answer = statistics.linear_regression(
        [min(NEIGHBOURS, row["nodes"] - 2) for row in empty],
        [row["bytes_in"] / row["finds"] for row in empty],
    )
    # In the smallest tables everybody holds every record, so that no draw of callers shows.
    small = [row for row in full if row["nodes"] <= REPLICAS]
    without = {row["nodes"]: row["bytes_in"] for row in empty}
    entry, dictionary = statistics.linear_regression(
        [row["dictionary_bytes"] for row in small],
        [(row["bytes_in"] - without[row["nodes"]]) / row["finds"] for row in small],
    )
    hops, _ = statistics.linear_regression(
        [row["finds"] for row in reads], [row["hops"] for row in reads], proportional=True
    )
    return {
        "FIND_BYTES": statistics.mean(row["bytes_out"] / row["finds"] for row in reads),
        "ANSWER_BYTES": answer,
        "NEIGHBOUR_BYTES": neighbour,
        "DICTIONARY_BYTES": dictionary,
        "ENTRY_FACTOR": entry,
        "STORE_BYTES": statistics.mean(
            row["stores_out"] / row["stores"] - row["record_bytes"] for row in stores
        ),
        "STORED_BYTES": statistics.mean(row["stores_in"] / row["stores"] for row in stores),
        "HOPS_A_FIND": hops,
        "STORE_HOPS": statistics.mean(row["hops"] for row in stores)
        - statistics.mean(row["hops"] for row in reads),
    }


def modelled(row: dict[str, Any]) -> CallCost:
    """What the model in force says of a row."""
    under = round(row["dictionary_bytes"])
    if row["call"] == "read":
        return get_cost(row["nodes"], under)
    return store_cost(row["nodes"], round(row["record_bytes"]), under)


def show_fit(rows: Sequence[dict[str, Any]]) -> None:
    """Print what was counted, the model beside it, and the constants."""
    names = ("rpcs", "bytes_out", "bytes_in", "hops")
    print(f"{'nodes':>5} {'call':<5} {'records':>7}  " + "  ".join(f"{n:>17}" for n in names))
    for row in rows:
        model = asdict(modelled(row))
        told = "  ".join(
            f"{row[name]:>9.1f} ({model[name] / row[name] - 1:+5.0%})" for name in names
        )
        faults = f"  missing {row['missing']}" if row["missing"] else ""
        faults += f"  unanswered {row['unanswered']} a call" if row["unanswered"] else ""
        print(f"{row['nodes']:>5} {row['call']:<5} {row['records']:>7}  {told}{faults}")
    sizes = {row["nodes"] for row in rows}
    if len(sizes) < 2 or min(sizes) > REPLICAS:
        print(f"for the constants: two sizes, and one of at most {REPLICAS} nodes")
    else:
        for name, value in fitted(rows).items():
            print(f"{name:<17} {value:8.3f}  in force {IN_FORCE[name]:g}")
