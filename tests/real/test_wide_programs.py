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
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the calls of this thread into Java's process meanwhile, but for those that let it forget an object."""
    sent: list[str] = []
    send, thread = ClientServerConnection.send_command, threading.get_ident()

    def noted(connection: object, command: str) -> object:
        if threading.get_ident() == thread and not command.startswith(MEMORY_COMMAND_NAME):
            sent.append(command)
        return send(connection, command)

    with monkeypatch.context() as patch:
        patch.setattr(ClientServerConnection, "send_command", noted)
        yield sent


@pytest.mark.parametrize(("program", "per_column"), PROGRAMS)
def test_calls_grow_with_the_program(
    spark: SparkSession, program: Program, per_column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ", ".join(f"c{place} bigint" for place in range(40))
    rows = spark.readStream.format("headgate.datagen").schema(columns).load()
    calls = []
    for count in (10, 10, 20, 40):  # the first time some things are asked that are then known
        frame = program(rows, count)
        with _counted(monkeypatch) as sent:
            plan_of(frame)
        calls.append(len(sent))
    assert calls[1] <= 100 + 10 * per_column and calls[3] - calls[2] <= 20 * per_column, calls
