"""Which tests ``make test`` runs, and which ``make test-slow`` runs in addition.

Tests that start node processes are slow unless they are in ``QUICK``. So are those in ``SLOW``:
each takes long, and other tests of its module stay in the fast tier. An entry may be the
beginning of a test's name.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
QUICK = (
    "end_to_end/test_swarm.py::test_two_nodes_exchange_groups_and_one_that_is_killed_resumes",
    "hostile/test_real_node.py::test_a_liar_is_refused_and_charged_and_the_honest_peer_is",
    "dashboard/test_living_node.py::test_twenty_rounds_arrive_without_a_reload",
)
"""Real processes in the fast tier: a swarm that learns and resumes, hostile peers, one page in a
browser."""
SLOW = (
    "families",
    "hostile/test_hostile_crowds.py::test_a_newcomer_to_a_crowd_finds_the_honest",
    "hostile/test_hostile_crowds.py::test_sybil_makes_the_swarm_look_larger",
    "hostile/test_forged_trajectories.py",
    "hostile/test_hostile_peers.py::test_flo_floods_pulls_and_others_are_still_served",
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
    "node/engines/test_transformers_backend.py::test_whatever_joins_or_interrupts_greedy",
    "node/engines/test_turns.py::test_greedy_turns_are_those_of_an_engine_that_reads_all_of_it",
    "node/environments/test_games.py",
    "node/environments/test_gymnasium.py::test_a_class_of_ones_own_is_an_environment_as_it_is",
    "node/environments/test_gymnasium.py::test_the_toy_texts_come_out_alike_elsewhere",
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
    "node/learner/test_logprobs.py::test_an_update_is_the_same_with_logits_in_parts",
    "node/learner/test_losses_against_trl.py",
    "node/learner/test_off_policy.py::test_a_phrase_that_mallory_puts_before_right_answers",
    "node/learner/test_micro_batching.py::test_groups_in_shared_rows_give_the_update_of_single",
    "node/monitor/test_history.py",
    "node/plan/test_plan_command.py",
    "node/policy/test_hub_model.py",
    "node/policy/test_tiny_models.py",
    "node/rollout/test_async_generator.py::test_a_crash_at_any_point_loses_no_group",
    "node/run/test_goes_on_as_one.py",
    "node/tasks/test_repeatable_families.py",
    "node/tasks/test_task_set.py::test_every_shipped_task_is_the_same_in_another_process_order",
    "node/tasks/test_starter.py::test_no_fixed_answer_is_right_often_at_a_later_level",
    "node/tasks/test_starter.py::test_no_formula_follows_from_many_premises",
    "node/tasks/test_turns.py",
    "node/tasks/test_verifier.py::test_a_worker_killed_while_idle_costs_nobody_a_verdict",
    "node/tasks/test_verifier.py::test_an_answer_that_nobody_waited_for_is_never_taken_for",
    "node/tasks/test_verifier.py::test_of_several_verifiers_one_that_is_busy_holds_up_nobody",
    "node/tasks/test_verifier.py::test_questions_that_follow_the_order_of_a_set_are_the_same",
    "node/tasks/test_chain_of_thought.py::test_a_level_has_many_questions_of_both_splits",
    "node/tasks/test_chain_of_thought.py::test_levels_are_from_a_dozen_to_over_seventy_characters",
    "node/test_other_systems.py",
    "node/test_own_kinds.py",
    "protocol/test_frame.py::test_a_batch_comes_back_as_it_was_sealed",
    "protocol/test_frame.py::test_groups_of_any_kind_keep_to_the_size",
    "swarm/census/test_census.py::test_buckets_ascend_apart_and_lose_nothing",
    "swarm/census/test_census.py::test_two_days_are_kept_by_ten_minutes",
    "swarm/lan/test_discovery.py",
    "swarm/test_journal_bounds.py::test_a_journal_and_its_copy_stay_small",
    "swarm/test_member.py::test_a_run_is_a_function_of_its_seed",
    "swarm/test_mixture.py::test_an_honest_author_is_found_among_ever_so_many_useless_keys",
    "swarm/test_network_basics.py::test_greedy_peers_always_leave_room_for_a_newcomer",
    "swarm/test_publisher.py::test_a_group_too_long_for_any_frame_waits_as_text_alone",
    "swarm/test_pool_forgetting.py",
    "swarm/transport/test_contract.py",
    "swarm/transport/test_reachability.py::test_flo_is_dialled_once_in_a_while",
    "swarm/transport/test_libp2p_connections.py",
    "swarm/transport/test_places.py::TestService",
    "test_benchmarks.py",
    "test_gpu_benchmark.py",
)


def needless(path: Path, marks: str) -> bool:
    """Whether every test of a file or folder is slow and ``marks`` leaves those out.

    Such a file is not even imported: some bring libraries that take seconds.
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
