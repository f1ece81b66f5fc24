"""Tiers of the tests: ``make test`` is fast, ``make test-slow`` runs the rest.

Tests that start node processes are slow unless ``QUICK`` lists them. Tests in ``SLOW`` are slow
too; other tests of their module stay in the fast tier. An entry may be the beginning of a test's
name.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
QUICK = (
    "end_to_end/test_swarm.py::test_two_nodes_exchange_groups_and_a_killed_one_resumes",
    "hostile/test_real_node.py::test_node_penalizes_a_liar_and_trains_on_honest_groups",
    "dashboard/test_living_node.py::test_page_shows_20_rounds_without_reload",
)
"""Tests with real processes in the fast tier: a swarm that learns and resumes,
hostile peers, and one page in a browser."""
SLOW = (
    "families",
    "hostile/test_hostile_crowds.py::test_new_node_finds_honest_authors_among_sybils_in_one_slot",
    "hostile/test_hostile_crowds.py::test_gossip_delivers_groups_despite_sybil_announcements",
    "hostile/test_forged_trajectories.py",
    "hostile/test_hostile_peers.py::test_node_serves_others_during_a_pull_flood",
    "hostile/test_texts_that_act.py",
    "hostile/test_texts_that_burn.py",
    "hostile/test_texts_that_reach_out.py",
    "mutants/test_mutants.py",
    "node/cli/test_cli_ask.py",
    "node/cli/test_cli_checkpoints.py",
    "node/cli/test_cli_swarm.py",
    "node/cli/test_export_to_a_hub.py",
    "node/cli/test_plot.py",
    "node/test_threads.py",
    "node/conformance/test_conformance.py",
    "node/dashboard/test_asking.py",
    "node/distributed/test_ranks.py",
    "node/engines/test_model_families.py",
    "node/engines/test_data_parallel.py",
    "node/engines/test_eight_bits.py",
    "node/engines/test_engine_process.py",
    "node/engines/test_transformers_backend.py::test_joins_and_interruptions_do_not_change_greedy_completions",
    "node/engines/test_turns.py::test_greedy_turns_equal_generation_from_the_full_prompt",
    "node/environments/test_games.py",
    "node/environments/test_gymnasium.py::test_user_class_works_without_an_adapter",
    "node/environments/test_gymnasium.py::test_toy_texts_pass_the_replay_check",
    "node/environments/test_replay_trial.py",
    "node/environments/test_textarena.py",
    "experiments/scale",
    "experiments/test_experiment.py",
    "experiments/test_experiment_games.py",
    "experiments/test_experiment_hostile.py",
    "experiments/test_experiment_long.py",
    "experiments/test_experiment_methods.py",
    "experiments/test_experiment_regimes.py",
    "experiments/test_variants.py::test_variants_train_together_and_alone",
    "node/learner/test_logprobs.py::test_chunked_logits_do_not_change_the_update",
    "node/learner/test_losses_against_trl.py",
    "node/learner/test_off_policy.py::test_learner_does_not_learn_a_phrase_planted_by_mallory",
    "node/learner/test_micro_batching.py::test_shared_rows_give_the_same_update_as_separate_rows",
    "node/monitor/test_history.py",
    "node/plan/test_plan_command.py",
    "node/policy/test_hub_model.py",
    "node/policy/test_tiny_models.py",
    "node/rollout/test_async_generator.py::test_crash_neither_loses_a_group_nor_trains_on_one_twice",
    "node/run/test_goes_on_as_one.py",
    "node/tasks/test_repeatable_families.py",
    "node/tasks/test_task_set.py::test_shipped_tasks_do_not_depend_on_process_order_or_hash_seed",
    "node/tasks/test_starter.py::test_constant_answer_is_rarely_right_at_later_levels",
    "node/tasks/test_starter.py::test_constant_formula_is_rarely_right",
    "node/tasks/test_turns.py",
    "node/tasks/test_verifier.py::test_verifier_replaces_worker_killed_while_idle",
    "node/tasks/test_verifier.py::test_verifier_discards_the_answer_to_an_interrupted_request",
    "node/tasks/test_verifier.py::test_busy_verifier_does_not_block_the_pool",
    "node/tasks/test_verifier.py::test_set_order_does_not_change_questions_between_workers",
    "node/tasks/test_chain_of_thought.py::test_level_has_many_questions_per_split_and_several_solutions",
    "node/tasks/test_chain_of_thought.py::test_answer_length_grows_with_the_level",
    "node/test_other_systems.py",
    "node/test_own_kinds.py",
    "protocol/test_frame.py::test_sealed_batch_round_trips",
    "protocol/test_frame.py::test_pack_obeys_size_for_any_groups",
    "swarm/census/test_census.py::test_buckets_stay_ordered_and_lossless_when_the_clock_jumps",
    "swarm/census/test_census.py::test_buckets_are_10_minutes_for_2_days_hourly_for_60_days_then_daily",
    "swarm/lan/test_discovery.py",
    "swarm/test_journal_bounds.py::test_journal_and_backup_stay_small_after_100000_uses",
    "swarm/test_member.py::test_seed_determines_a_simulated_run",
    "swarm/test_mixture.py::test_honest_author_among_200_sybil_keys_is_found_and_kept",
    "swarm/test_network_basics.py::test_greedy_peers_leave_bandwidth_for_a_new_peer",
    "swarm/test_publisher.py::test_outbox_strips_tokens_from_a_group_too_long_for_a_frame",
    "swarm/test_pool_forgetting.py",
    "swarm/transport/test_contract.py",
    "swarm/transport/test_reachability.py::test_dial_back_is_rate_limited_per_peer",
    "swarm/transport/test_libp2p_connections.py",
    "swarm/transport/test_places.py::TestService",
    "test_benchmarks.py",
    "test_gpu_benchmark.py",
)


def needless(path: Path, marks: str) -> bool:
    """Return whether all tests of a path are slow and ``marks`` excludes slow tests.

    Such a file is not imported, because some libraries take seconds to load.
    """
    name = path.relative_to(TESTS).as_posix()
    return "not slow" in marks and name in SLOW


def mark(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name.startswith(QUICK):
            item.add_marker("quick")
        elif item.get_closest_marker("processes") or name.startswith(SLOW):
            item.add_marker("slow")
