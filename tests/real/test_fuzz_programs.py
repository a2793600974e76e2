"""A few random programs on real Spark, and a bug that one of them must find (`./run fuzz programs` runs more)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from fuzz.random_programs import Ending, Fault, Program
from fuzz.runner import run_in_new_folder
from local.kafka import Broker
from tests import search

SLOTS = 2  # as many as the shared session has cores
QUICK = (9, 15, 34, 64, 78)


def program_of(seed: int) -> Program:
    """Return a program that fits the session: the jobs of foreachBatch need a core beside the slots."""
    made = Program.of(seed, SLOTS)
    return Program.of(seed, SLOTS - 1) if made.ending in (Ending.UPDATES, Ending.GROUPS) else made


@pytest.mark.parametrize("seed", QUICK)
def test_random_programs_give_the_rows_of_a_batch(
    spark: SparkSession, kafka: Broker, tmp_path: Path, seed: int
) -> None:
    """A join of two streams, three unions with joins and functions; windows in both modes, a processor; faults."""
    program = program_of(seed)
    assert run_in_new_folder(program, spark, tmp_path, kafka.plain) == "", program.described()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(20))
def test_other_programs_with_each_commit(spark: SparkSession, kafka: Broker, tmp_path: Path, number: int) -> None:
    """Those that no ordinary run tries."""
    program = program_of(1000 + 20 * search.block() + number)
    assert run_in_new_folder(program, spark, tmp_path, kafka.plain) == "", program.described()


def test_rows_that_a_restart_loses_are_found(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """The plant: a function that swallows the first rows that it gets in each process."""

    class Swallows:
        def __init__(self) -> None:
            self.rows = 5

        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                swallowed = min(self.rows, batch.num_rows)
                self.rows -= swallowed
                yield batch.slice(swallowed)

    def planted(frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(Swallows(), "n long, k long, v long")

    program = next(each for each in (Program.of(seed, SLOTS) for seed in range(100)) if each.ending is Ending.ROWS)
    stop = Fault(kind="stop", after_ms=0, parallelism=1, slot=0)
    program = msgspec.structs.replace(program, branches=program.branches[:1], verbs=(), faults=(stop,))
    assert "rows are lost, 0 are too many" in run_in_new_folder(program, spark, tmp_path, kafka.plain, planted)
