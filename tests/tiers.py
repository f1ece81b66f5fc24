"""Which tests ``make test`` runs, and which ``make test-slow`` runs in addition.

Tests that start node processes are slow unless they are in ``QUICK``. So are those in ``SLOW``:
each takes long, and other tests of its module stay in the fast tier.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
QUICK = (
    "end_to_end/test_swarm.py::test_two_nodes_exchange_groups_and_one_that_is_killed_resumes",
    "hostile/test_one_hostile_peer.py",
    "dashboard/test_living_node.py::test_twenty_rounds_arrive_without_a_reload",
)
"""Real processes in the fast tier: a swarm that learns and resumes, hostile peers, one page in a
browser."""
SLOW = (
    "families",
    "hostile/test_forged_trajectories.py",
    "hostile/test_texts_that_act.py",
    "hostile/test_texts_that_burn.py",
    "hostile/test_texts_that_reach_out.py",
    "mutants/test_mutants.py",
    "node/cli/test_cli_ask.py",
    "node/cli/test_cli_checkpoints.py",
    "node/cli/test_cli_play.py",
    "node/cli/test_cli_swarm.py",
    "node/cli/test_export_to_a_hub.py",
    "node/cli/test_found.py",
    "node/cli/test_next_steps.py",
    "node/cli/test_plot.py",
    "node/conformance/test_conformance.py",
    "node/dashboard/test_asking.py",
    "node/distributed/test_ranks.py",
    "node/engines/test_agreement.py",
    "node/engines/test_data_parallel.py",
    "node/engines/test_eight_bits.py",
    "node/engines/test_engine_process.py",
    "node/engines/test_mixed_layers.py",
    "node/environments/test_games.py",
    "node/environments/test_replay_trial.py",
    "node/environments/test_textarena.py",
    "node/experiment/test_experiment.py",
    "node/experiment/test_experiment_games.py",
    "node/experiment/test_experiment_hostile.py",
    "node/experiment/test_experiment_imagined.py",
    "node/experiment/test_experiment_long.py",
    "node/experiment/test_experiment_methods.py",
    "node/experiment/test_experiment_regimes.py",
    "node/monitor/test_history.py",
    "node/monitor/test_keys.py",
    "node/plan/test_plan_command.py",
    "node/policy/test_hub_model.py",
    "node/policy/test_tiny_models.py",
    "node/run/test_goes_on_as_one.py",
    "node/tasks/test_repeatable_families.py",
    "node/tasks/test_turns.py",
    "node/test_other_systems.py",
    "node/test_own_kinds.py",
    "swarm/census/test_buckets.py",
    "swarm/lan/test_discovery.py",
    "swarm/simulation",
    "swarm/test_journal_growth.py",
    "swarm/transport/test_contract.py",
    "swarm/transport/test_libp2p_connections.py",
    "test_gpu_benchmark.py",
)


def needless(path: Path, marks: str) -> bool:
    """Whether every test of a file or folder is slow and ``marks`` leaves those out.

    Such a file is not even imported: some bring libraries that take seconds.
    """
    name = path.relative_to(TESTS).as_posix()
    return "not slow" in marks and name in SLOW


def mark(items: list[pytest.Item]) -> None:
    """Mark tests as ``slow`` or ``quick`` by these tables."""
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name.startswith(QUICK):
            item.add_marker("quick")
        elif item.get_closest_marker("processes") or name.startswith(SLOW):
            item.add_marker("slow")
