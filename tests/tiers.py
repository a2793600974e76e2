"""The three tiers of the tests: ``./run test``, what ``--all`` adds, and what ``--exhaustive`` searches besides.

A test is in the first tier unless it is named here: a file, a function or one of its cases. It may be named for two
reasons: a test of the first tier fails for the same fault, at a cheaper place (`REST`: its docstring, or its module's,
names that test), or it is about an environment and not about this code alone (`ENVIRONMENTS`).
"""

from __future__ import annotations

from typing import Literal

Tier = Literal["first", "rest", "exhaustive"]

collected: frozenset[str] = frozenset()
"""All tests that this run has found, of each tier; set by ``conftest.py``."""

ENVIRONMENTS = {
    "tests/real/test_continuous_failover.py::test_on_a_cluster": "executors of a cluster",
    "tests/real/test_pulsar_broker.py": "the Pulsar broker that local/ starts",
    "tests/real/test_run_script.py::test_kafka_runs_until_ctrl_c_and_cleans_up": "the Kafka broker of ./run kafka",
    "tests/real/test_run_script.py::test_pulsar_runs_until_ctrl_c_and_cleans_up": "the Pulsar broker of ./run pulsar",
    "tests/real/test_site.py::test_every_page_of_the_repository_is_there": "the site that mkdocs makes",
    "tests/real/test_site.py::test_the_reference_has_the_public_names": "the site that mkdocs makes",
    "tests/real/test_site.py::test_nothing_is_loaded_from_elsewhere": "the site that mkdocs makes",
    "tests/real/test_wheel.py": "the wheel in an empty environment",
    "tests/real/test_own_connector.py::test_it_is_installed_and_its_tests_pass": "a package that is installed",
    "tests/real/test_image.py::test_a_driver_is_a_submitted_program": "the image of a container",
    "tests/real/test_dashboard.py": "a browser",
}
"""Tests of an environment, and of which."""
REST = (
    "tests/real/test_catalyst_helper.py::test_an_archive_with_which_it_does_not_start_is_deleted",
    "tests/real/test_catalyst_helper.py::"
    "test_the_second_one_makes_an_archive_of_its_classes_with_which_the_others_start",
    "tests/real/test_autoscaler.py::test_parallelism_follows_a_load_that_doubles_and_halves",
    "tests/real/test_conformance_queries.py::test_a_query_is_equal_to_spark_s_batch[q10]",
    "tests/real/test_conformance_queries.py::test_a_query_is_equal_to_spark_s_batch[q11]",
    "tests/real/test_conformance_queries.py::test_a_query_is_equal_to_spark_s_batch[q13]",
    "tests/real/test_conformance_queries.py::test_a_query_is_equal_to_spark_s_batch[q14]",
    "tests/real/test_conformance_queries.py::test_a_query_is_equal_to_spark_s_batch[q17]",
    "tests/real/test_conformance_queries.py::test_a_query_is_equal_to_spark_s_batch[q1]",
    "tests/real/test_conformance_queries.py::test_a_query_is_equal_to_spark_s_batch[q21]",
    "tests/real/test_continuous_aggregations.py::test_a_program_that_ends_gives_what_a_batch_gives[cube]",
    "tests/real/test_continuous_aggregations.py::test_every_aggregate_of_spark_s[windows]",
    "tests/real/test_continuous_aggregations.py::test_state_goes_on_through_rescales_and_restarts[complete]",
    "tests/real/test_continuous_duplicates.py::test_a_row_comes_once_through_restores_at_another_parallelism[stopped]",
    "tests/real/test_continuous_kafka_sink.py::test_a_broker_killed_in_the_publication_costs_no_row[2]",
    "tests/real/test_continuous_keyed.py::test_with_rows_under_way_too",
    "tests/real/test_continuous_state_evolution.py::test_an_aggregate_more_and_a_wider_column[False-True]",
    "tests/real/test_continuous_state_evolution.py::test_an_aggregate_more_and_a_wider_column[True-False]",
    "tests/real/test_continuous_stream_joins.py::test_programs[inner, in time]",
    "tests/real/test_continuous_stream_joins.py::test_programs[left, in time]",
    "tests/real/test_continuous_stream_joins.py::test_programs[right, in time]",
    "tests/real/test_continuous_stream_joins.py::test_programs[the window is a key]",
    "tests/real/test_continuous_stream_joins.py::test_rows_under_way_are_joined_once_through_kills_and_rescales[spark]",
    "tests/real/test_examples.py",
    "tests/real/test_files_equal_spark.py::test_same_outcome_as_spark_in_a_query",
    "tests/real/test_files_stream.py::test_kills_lose_and_repeat_nothing[1]",
    "tests/real/test_fuzz_programs.py::test_further_random_programs_do",
    "tests/real/test_jdbc_under_kills.py",
    "tests/real/test_kafka_alignment.py::test_a_partition_that_is_empty_or_begins_later_holds_nobody_and_loses_nothing",
    "tests/real/test_kafka_alignment.py::test_an_event_time_that_is_a_field_of_the_value_is_as_exact",
    "tests/real/test_kafka_alignment.py::"
    "test_two_sources_of_a_query_are_one_group_and_a_stop_in_the_middle_loses_nothing",
    "tests/real/test_kafka_alignment.py::test_without_alignment_rows_are_dropped",
    "tests/real/test_kafka_split_losses.py::test_a_broker_that_comes_back_is_read_on",
    "tests/real/test_pulsar_sink.py::test_a_broker_killed_in_the_publication_costs_no_row[2]",
    "tests/real/test_pulsar_sink.py::test_a_broker_that_hangs_in_the_publication_costs_no_row",
    "tests/real/test_pulsar_sink_on_spark.py::test_a_continuous_query_whose_workers_are_killed[at-least-once]",
    "tests/real/test_pulsar_sink_under_kills.py",
    "tests/real/test_pulsar_stream.py::test_a_continuous_query_under_kills_of_the_broker",
    "tests/scenarios/test_autoscaler_follows_the_load.py::test_this_commits_loads_are_followed",
    "tests/scenarios/test_pulsar_under_kills.py::test_each_message_is_read_once[10]",
    "tests/scenarios/test_simulated_cluster.py::test_this_commits_schedules_hold_and_converge",
)
"""Tests for whose faults one of the first tier fails too."""
EXHAUSTIVE = (
    "tests/real/test_conformance_groups.py::test_all_groups_are_spark_s",
    "tests/scenarios/test_simulated_cluster.py::test_two_thousand_schedules_hold_and_converge",
    "tests/real/test_conformance_columns.py::test_all_expressions_are_spark_s",
    "tests/real/test_fuzz_programs.py::test_other_programs_with_each_commit",
    "tests/real/test_continuous_kafka_sink.py::test_any_story_of_crashes_zombies_and_rescales_gives_each_row_once[1]",
    "tests/real/test_continuous_kafka_sink.py::test_a_broker_killed_in_the_publication_costs_no_row[10]",
    "tests/real/test_kafka_trouble_readers.py::"
    "test_whatever_is_paused_added_and_restored_each_record_comes_once_and_in_order[2-auto]",
    "tests/real/test_kafka_trouble_readers.py::"
    "test_whatever_is_paused_added_and_restored_each_record_comes_once_and_in_order[2-plain]",
    "tests/real/test_kafka_event_time.py::test_plans_within_a_drift_reach_the_end_whatever_the_disorder[2]",
    "tests/real/test_kafka_event_time.py::test_plans_within_a_drift_reach_the_end_whatever_the_disorder[3]",
    "tests/real/test_pulsar_sink.py::test_a_broker_killed_in_the_publication_costs_no_row[10]",
    "tests/real/test_files_stream.py::test_kills_lose_and_repeat_nothing[2]",
)
"""What only searches further."""


def tier_of(nodeid: str) -> Tier:
    """Return the tier of a test."""
    names = _names(nodeid)
    if any(name in EXHAUSTIVE for name in names):
        return "exhaustive"
    return "rest" if any(name in ENVIRONMENTS or name in REST for name in names) else "first"


def is_run(nodeid: str, only: Tier | None, exhaustive: bool) -> bool:
    """Return whether a run has a test: one of a tier only has no others; one of none has what does not only search."""
    tier = tier_of(nodeid)
    return tier == only if only else exhaustive or tier != "exhaustive"


def unknown() -> list[str]:
    """Return what is named here and is none of the tests of its file, of those files that this run has collected."""
    files = {each.partition("::")[0] for each in collected}
    names = {name for each in collected for name in _names(each)}
    named = (*ENVIRONMENTS, *REST, *EXHAUSTIVE)
    return [each for each in named if each.partition("::")[0] in files and each not in names]


def _names(nodeid: str) -> tuple[str, str, str]:
    return nodeid, nodeid.partition("[")[0], nodeid.partition("::")[0]
