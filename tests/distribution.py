"""Which tests stay together when several processes run them, and which begin first, so that all end at about one time.

A file's tests stay together, for they share what its fixtures make; of some files only those of a function. What takes
long begins first, then what else has a Spark or a broker, then simulators. Unit tests, of which no file takes long, are
at the end.

Tests with a Spark or a broker wait for a third of their time. The last process therefore begins at the other end: it
has no Spark, and computes what the others leave of the cores. Where they meet only short pieces are left.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

APART = ("tests/real/test_continuous_failover.py", "tests/real/test_continuous_keyed.py")
"""Files of which each function is a piece of work of its own."""
LONGEST = (
    # Those that wait for others beside those that are at work all the time.
    "tests/real/test_continuous_keyed.py::test_with_rows_under_way",
    "tests/real/test_continuous_failover.py::test_with_retries_of_tasks",
    "tests/real/test_continuous_keyed.py::test_with_rows_under_way_too",
    "tests/real/test_fuzz_programs.py",
    "tests/real/test_examples.py",
    "tests/real/test_continuous_aggregations.py",
    "tests/real/test_continuous_stream_joins.py",
    "tests/real/test_kafka_alignment.py",
    "tests/real/test_continuous_kafka_sink.py",
    "tests/real/test_kafka_equal_spark.py",
    "tests/real/test_continuous_event_time.py",
    "tests/real/test_files_equal_spark.py",
    "tests/real/test_kafka_stream.py",
    "tests/real/test_autoscaler.py",
    "tests/real/test_continuous_failover.py::test_on_a_cluster",
    "tests/real/test_event_time_stream.py",
    "tests/real/test_kafka_split_reader.py",
    "tests/real/test_kafka_split_losses.py",
    "tests/real/test_entry_points.py",
    "tests/real/test_kafka_security.py",
    "tests/real/test_continuous_failover.py::test_without_retries_of_tasks",
    "tests/real/test_kafka_sink.py",
    "tests/real/test_pulsar_stream.py",
    "tests/real/test_pulsar_source.py",
    "tests/real/test_pulsar_losses.py",
    "tests/real/test_pulsar_broker.py",
    "tests/real/test_pulsar_sink.py",
    "tests/real/test_pulsar_sink_on_spark.py",
    "tests/real/test_pulsar_security.py",
    "tests/real/test_pulsar_transactions.py",
    "tests/real/test_files_stream.py",
    "tests/real/test_dashboard.py",
    "tests/real/test_files_trouble.py",
    "tests/real/test_kinesis_stream.py",
    "tests/real/test_kinesis_kit.py",
    "tests/real/test_conformance_queries.py",
    "tests/real/test_slow_functions.py",
    "tests/real/test_jdbc_under_kills.py",
    "tests/real/test_pulsar_sink_under_kills.py",
    "tests/real/test_catalyst_helper.py",
    "tests/scenarios/test_kafka_under_kills.py",
    "tests/real/test_continuous_failover.py::test_a_killed_driver_s_query_goes_on",
)
"""Pieces of work that begin first, in this order."""
FOLDERS = ("tests/real/", "tests/scenarios/", "tests/unit/")
"""What begins then, in this order."""
WITHOUT_SPARK = ("tests/real/test_data_plane", "tests/real/test_transport")
"""How the names of files begin that count what their process has: the last process runs them, before anything else."""


def piece_of(nodeid: str) -> str:
    """Return the name of the piece of work that a test belongs to."""
    file = nodeid.partition("::")[0]
    return nodeid.partition("[")[0] if file in APART else file


def part_of(nodeid: str) -> str:
    """Return the name of the part of all tests that a test belongs to: of a real one its subject."""
    folder, _, file = nodeid.partition("::")[0].rpartition("/")
    return (
        f"{folder} {file.split('_')[1].removesuffix('.py')}"
        if folder == "tests/real"
        else "/".join(folder.split("/")[:2])
    )


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests in the order in which they begin."""
    places = {piece: place for place, piece in enumerate(LONGEST)}
    sizes = Counter(piece_of(item.nodeid) for item in items)

    def place(item: pytest.Item) -> tuple[int, int, int, str]:
        piece = piece_of(item.nodeid)
        folder = next((at for at, folder in enumerate(FOLDERS) if piece.startswith(folder)), len(FOLDERS))
        folder = len(FOLDERS) + 1 if piece.startswith(WITHOUT_SPARK) else folder
        return places.get(piece, len(places)), folder, -sizes[piece], piece

    return sorted(items, key=place)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Return pytest-xdist's scheduler that gives out these pieces in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling

    class PieceScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return piece_of(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            if len(self.nodes) > 1 and node is self.nodes[-1]:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return PieceScheduling(config, log)
