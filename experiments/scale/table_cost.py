"""What a call of the hash table costs its caller, by the number of nodes in the table.

Fitted to counts among real peers, tables of 4 to 128 nodes with 0 to 64 records of some 450 bytes
under a key (``benchmarks/results/hash_table.json``): requests and bytes are within 5 % of each mean
that was counted, hops within 10 %. A search asks the 20 nearest, or all
where there are fewer. In larger tables a node does not know them before; what that adds is
extrapolated logarithmically (Kademlia, Maymounkov and Mazières 2002), at the slope that hivemind's
own search has up to 4,096 nodes without a network (``benchmarks/results/table_search.json``,
within 2 %).

Bytes are those of requests and answers, as the peers that are asked charge them; the envelope of a
request is some 100 bytes more. All peers answer, and each has made two calls before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NEIGHBOURS = 20
"""Nodes of a bucket: those that an answer lists at the most, and those that a search has to ask."""

REPLICAS = 5
"""Nodes that hold a record."""

KNOWN_NODES = 128
FINDS_A_DOUBLING = 0.95
"""Nodes up to which a search asks nobody but the nearest, and what each doubling adds."""

FIND_BYTES = 46.0
ANSWER_BYTES = 26.3
NEIGHBOUR_BYTES = 62.04
"""A request of a search, its answer, and what each neighbour listed adds."""

DICTIONARY_BYTES = 41.0
ENTRY_FACTOR = 1.111
"""What an answer with records has more than without: so much, and this for each byte of records,
which are told with their authors and expiries."""

STORE_BYTES = 103.0
STORED_BYTES = 27.0
"""A request to hold a record, without it, and its answer."""

HOPS_A_FIND = 0.275
STORE_HOPS = 1.0
"""A search has four requests under way at a time; the replicas of a store are asked at once."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """Means over calls of one kind.

    Attributes:
        rpcs: requests that the caller sends.
        bytes_out: bytes of these requests.
        bytes_in: bytes of their answers.
        hops: requests one after the other on the path that the call's end waits for.
    """

    rpcs: float
    bytes_out: float
    bytes_in: float
    hops: float


def get_cost(nodes: int, dictionary_bytes: int) -> CallCost:
    """The cost of reading one key.

    Args:
        nodes: in the table, the caller included.
        dictionary_bytes: of the records under the key; 0 where there are none.

    Raises:
        ValueError: fewer than one node, or fewer than no bytes.
    """
    _check(nodes, dictionary_bytes)
    finds = _finds(nodes)
    listed = max(0, min(NEIGHBOURS, nodes - 2))
    dictionary = DICTIONARY_BYTES + ENTRY_FACTOR * dictionary_bytes if dictionary_bytes else 0.0
    return CallCost(
        rpcs=finds,
        bytes_out=finds * FIND_BYTES,
        bytes_in=finds * (ANSWER_BYTES + NEIGHBOUR_BYTES * listed) + _replicas(nodes) * dictionary,
        hops=max(1.0, HOPS_A_FIND * finds) if finds else 0.0,
    )


def store_cost(nodes: int, record_bytes: int, dictionary_bytes: int = 0) -> CallCost:
    """The cost of storing one record under one key.

    The search before it asks for the key's records as a read does, and is answered with them.

    Args:
        nodes: in the table, the caller included.
        record_bytes: of the record.
        dictionary_bytes: of the records that are under the key already.

    Raises:
        ValueError: fewer than one node, or fewer than no bytes.
    """
    _check(nodes, record_bytes)
    search, replicas = get_cost(nodes, dictionary_bytes), _replicas(nodes)
    return CallCost(
        rpcs=search.rpcs + replicas,
        bytes_out=search.bytes_out + replicas * (STORE_BYTES + record_bytes),
        bytes_in=search.bytes_in + replicas * STORED_BYTES,
        hops=search.hops + STORE_HOPS if replicas else 0.0,
    )


def _finds(nodes: int) -> float:
    """Nodes that a search asks."""
    doublings = max(0.0, math.log2(nodes / KNOWN_NODES))
    return min(NEIGHBOURS, nodes - 1) + FINDS_A_DOUBLING * doublings


def _replicas(nodes: int) -> float:
    """Replicas of a key that are not the caller itself."""
    return min(REPLICAS, nodes) * (nodes - 1) / nodes


def _check(nodes: int, size: int) -> None:
    if nodes < 1 or size < 0:
        raise ValueError(f"nodes={nodes} and bytes={size}: at least 1 and 0 are due")
