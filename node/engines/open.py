"""Which engine a node's configuration asks for."""

from __future__ import annotations

from node.config import Config
from node.engines.engine import RolloutEngine, StreamingEngine
from node.engines.engine_process import EngineProcess
from node.engines.transformers_engine import TransformersEngine
from node.policy import Policy
from swarm.counters import Counters


def open_engine(config: Config, policy: Policy) -> RolloutEngine:
    """An engine that writes whole batches while its owner waits."""
    return TransformersEngine(policy, seed=config.node.seed)


def open_streaming_engine(
    config: Config, policy: Policy, counters: Counters, threads: int
) -> StreamingEngine:
    """An engine in a process of its own, that writes while its owner does something else.

    Args:
        counters: ``engine_restarts`` go here.
        threads: CPU threads of the process.
    """
    return EngineProcess(
        policy,
        kind=config.engine.kind,
        seed=config.node.seed,
        threads=threads,
        counters=counters,
    )
