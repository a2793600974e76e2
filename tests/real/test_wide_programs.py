"""Programs of hundreds of columns: calls into Spark's Java process grow with the program, not with its square."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]
from py4j.protocol import MEMORY_COMMAND_NAME  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.spark.analyzed.plan import plan_of

Program = Callable[[DataFrame, int], DataFrame]


def _aggregates(rows: DataFrame, count: int) -> DataFrame:
    made = [F.sum(F.col(f"c{place}") + 1).alias(f"s{place}") for place in range(count)]
    return rows.groupBy((F.col("c0") % 7).alias("key")).agg(*made)


def _expressions(rows: DataFrame, count: int) -> DataFrame:
    return rows.select([(F.col(f"c{place}") * 2 + 1).alias(f"c{place}") for place in range(count)])


def _by_spark(rows: DataFrame, count: int) -> DataFrame:
    return rows.select([F.hex(F.col(f"c{place}") + 1).alias(f"c{place}") for place in range(count)])


def _aggregates_by_spark(rows: DataFrame, count: int) -> DataFrame:
    return rows.groupBy("c0").agg(*[F.median(f"c{place}").alias(f"m{place}") for place in range(count)])


PROGRAMS: list[tuple[Program, int]] = [(_aggregates, 1), (_expressions, 1), (_by_spark, 8), (_aggregates_by_spark, 8)]
"""Programs, and how many calls a column may cost."""


@contextmanager
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield how long the answers to calls of this thread into Java are, but for those that let it forget an object."""
    answers: list[int] = []
    send, thread = ClientServerConnection.send_command, threading.get_ident()

    def noted(connection: object, command: str) -> object:
        answer = send(connection, command)
        if threading.get_ident() == thread and not command.startswith(MEMORY_COMMAND_NAME):
            answers.append(len(answer))
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(ClientServerConnection, "send_command", noted)
        yield answers


@pytest.mark.parametrize(("program", "per_column"), PROGRAMS)
def test_calls_grow_with_the_program(
    spark: SparkSession, program: Program, per_column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ", ".join(f"c{place} bigint" for place in range(40))
    rows = spark.readStream.format("headgate.datagen").schema(columns).load()
    calls = []
    for count in (10, 10, 20, 40):  # the first time some things are asked that are then known
        frame = program(rows, count)
        with _counted(monkeypatch) as answers:
            plan_of(frame)
        calls.append(len(answers))
        assert max(answers) <= 8192, "py4j waits 40 ms for an acknowledgement of what is larger"
    assert calls[1] <= 100 + 10 * per_column and calls[3] - calls[2] <= 20 * per_column, calls
