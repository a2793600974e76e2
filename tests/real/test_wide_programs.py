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


PROGRAMS: list[Program] = [_aggregates, _expressions, _by_spark]


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


@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_grow_with_the_program(spark: SparkSession, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ", ".join(f"c{place} bigint" for place in range(40))
    rows = spark.readStream.format("headgate.datagen").schema(columns).load()
    calls = []
    for count in (10, 10, 20, 40):  # the first time some things are asked that are then known
        frame = program(rows, count)
        with _counted(monkeypatch) as sent:
            plan_of(frame)
        calls.append(len(sent))
    of_ten, of_ten_more, of_twenty_more = calls[1], calls[2] - calls[1], calls[3] - calls[2]
    assert of_twenty_more <= 2.2 * of_ten_more, calls
    assert of_ten_more <= 1.1 * of_ten, calls
