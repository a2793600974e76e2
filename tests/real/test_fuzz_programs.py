"""Random programs on real Spark, the same ones each time, and a bug that one must find: see `fuzz.programs`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from conformance.spark import changed_settings
from fuzz import programs
from fuzz.random_programs import Ending, Fault, Program, Repartition, Udf
from fuzz.runner import run_in_new_folder
from tests import search
from tests.fixed_programs import CORES, FIRST, FURTHER, program_of
from tests.shared_broker import Addresses

# The queries of a program are made once and read few rows: what Spark does to be fast takes more time than it saves.
CHEAP = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


@pytest.fixture
def cheap(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session with these settings."""
    with changed_settings(spark, CHEAP) as changed:
        yield changed


def with_marks(seed: int) -> Any:
    """Return a seed, marked with what its program needs of Spark."""
    program, marks = program_of(seed), []
    verbs = [*program.verbs, *(verb for branch in program.branches for verb in branch.verbs)]
    if program.ending is Ending.STATE:
        marks.append(pytest.mark.spark_since("transform-with-state-rows"))
    if any(isinstance(verb, Repartition) and verb.by == "place" for verb in verbs):
        marks.append(pytest.mark.spark_since("repartition-by-id"))
    if any(isinstance(verb, Udf) and verb.kind == "arrow" for verb in verbs):
        marks.append(pytest.mark.spark_since("arrow-udf"))
    return pytest.param(seed, marks=marks)


@pytest.mark.parametrize("seed", [with_marks(each) for each in FIRST])
def test_random_programs_give_the_rows_of_a_batch(
    cheap: SparkSession, kafka: Addresses, tmp_path: Path, seed: int
) -> None:
    """In micro-batches, and continuously with what happens to each."""
    program = program_of(seed)
    assert run_in_new_folder(program, cheap, tmp_path, kafka.plain) == "", program.described()


@pytest.mark.parametrize("seed", [with_marks(each) for each in FURTHER])
def test_further_random_programs_do(cheap: SparkSession, kafka: Addresses, tmp_path: Path, seed: int) -> None:
    """What breaks it breaks `tests/real/test_fuzz_programs.py::test_random_programs_give_the_rows_of_a_batch` too, or
    of what only they have `tests/real/test_continuous_stream_joins.py`, `tests/real/test_continuous_static_joins.py`,
    `tests/real/test_continuous_aggregations.py`, `tests/real/test_continuous_user_functions.py`,
    `tests/real/test_continuous_stateful.py` and `tests/real/test_continuous_keyed.py::test_with_rows_under_way`.
    """
    test_random_programs_give_the_rows_of_a_batch(cheap, kafka, tmp_path, seed)


@pytest.mark.parametrize("number", range(20))
def test_other_programs_with_each_commit(spark: SparkSession, kafka: Addresses, tmp_path: Path, number: int) -> None:
    """Those that no ordinary run tries."""
    program = program_of(1000 + 20 * search.block() + number)
    assert run_in_new_folder(program, spark, tmp_path, kafka.plain) == "", program.described()


def test_rows_that_a_restart_loses_are_found(spark: SparkSession, kafka: Addresses, tmp_path: Path) -> None:
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

    program = next(each for each in (Program.of(seed, CORES) for seed in range(100)) if each.ending is Ending.ROWS)
    stop = Fault(kind="stop", after_ms=0, parallelism=1, slot=0)
    program = msgspec.structs.replace(program, branches=program.branches[:1], verbs=(), faults=(stop,))
    assert "rows are lost, 0 are too many" in run_in_new_folder(program, spark, tmp_path, kafka.plain, planted)


def test_the_command_runs_200_programs_by_default() -> None:
    ways = [programs.parsed(each.split()) for each in ("", "--programs 7", "--minutes 3", "--minutes 3 --programs 7")]
    assert [(each.programs, each.minutes) for each in ways] == [(200, None), (7, None), (None, 3), (7, 3)]


def test_the_command_counts_what_fails(capsys: pytest.CaptureFixture[str]) -> None:
    tried = []

    def holds(seed: int) -> bool:
        tried.append(seed)
        return seed != 11

    assert not programs.all_hold(10, 3, None, holds)
    assert tried == [10, 11, 12]
    assert capsys.readouterr().out == "1 of 3: 2 of 3: 3 of 3: 3 programs from seed 10 on: 1 failed, 11\n"
    assert programs.all_hold(20, None, time.monotonic(), holds) and tried == [10, 11, 12]
    assert programs.all_hold(20, 2, time.monotonic() + 1000, holds) and tried[3:] == [20, 21]
