"""Transactions of Pulsar: what is committed is read once, what is aborted never, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from local.pulsar import PulsarBroker, running_pulsar
from local.pulsar_topics import create_topic, read_topic
from tests.real.pulsar_queries import micro_batches, options, rows_in
from tests.real.pulsar_transactions import JavaClient, TransactionalProducer
from tests.real.running_queries import stop_all, wait_until, written


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


@pytest.fixture(scope="module")
def broker() -> Iterator[PulsarBroker]:
    """Return a broker that has transactions, which without topics of its own it has not."""
    with running_pulsar(topic_policies=True, settings={"transactionCoordinatorEnabled": "true"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def java_client(broker: PulsarBroker) -> Iterator[JavaClient]:
    client = JavaClient(broker.service_url)
    yield client
    client.close()


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return sorted(row["value"] for row in rows)


def write_up_to_an_open_one(producer: TransactionalProducer) -> Any:
    """Write what may be read, and after it a transaction that is open, which is returned."""
    producer.send(b"1")
    committed = producer.begin()
    producer.send(b"2", b"3", within=committed)
    producer.send(b"4")
    aborted = producer.begin()
    producer.send(b"aborted", b"aborted", within=aborted)
    producer.send(b"5", within=committed)
    aborted.abort().get()
    committed.commit().get()
    still_open = producer.begin()
    producer.send(b"7", b"8", within=still_open)
    producer.send(b"6")
    return still_open


BEFORE, WITHOUT, WITH = ([b"%d" % number for number in range(1, end + 1)] for end in (5, 6, 8))


@pytest.mark.parametrize(("end", "expected"), [("commit", WITH), ("abort", WITHOUT)])
def test_what_is_open_is_read_when_it_is_committed(
    spark: SparkSession, broker: PulsarBroker, java_client: JavaClient, topic_name: str, tmp_path: Path, end: str,
    expected: list[bytes],
) -> None:  # fmt: skip
    chosen = options(broker, topic_name, startingOffsets="earliest", pollTimeoutMs="60000")
    producer = java_client.producer(create_topic(broker, topic_name))
    still_open = write_up_to_an_open_one(producer)
    assert sorted(each.data() for each in read_topic(broker, topic_name)) == BEFORE, "what Pulsar's client reads"

    def batch() -> list[dict[str, Any]]:
        return spark.read.format("headgate.pulsar").options(**chosen).load().toArrow().to_pylist()

    assert values(batch()) == BEFORE
    repeated = spark.read.format("headgate.pulsar").options(**chosen).load()
    assert values(repeated.toArrow().to_pylist()) == BEFORE
    batches = micro_batches(spark, tmp_path / "micro-batches", **chosen)
    assert values([*chain.from_iterable(batches)]) == BEFORE
    frame = spark.readStream.format("headgate.pulsar").options(**chosen).load()
    writer = written(frame, "parquet", interval="200 ms", path=str(tmp_path / "rows"), publishInterval="0 seconds")
    query = writer.option("checkpointLocation", str(tmp_path / "continuous")).start()
    wait_until(lambda: len(rows_in(tmp_path / "rows")) >= len(BEFORE), query)
    assert values(rows_in(tmp_path / "rows")) == BEFORE

    getattr(still_open, end)().get()
    producer.send(b"9")
    expected = [*expected, b"9"]
    wait_until(lambda: len(rows_in(tmp_path / "rows")) >= len(expected), query)
    query.stop()
    assert values(rows_in(tmp_path / "rows")) == expected
    assert values(batch()) == expected
    assert values(repeated.toArrow().to_pylist()) == BEFORE, "its ranges were fixed when it was read first"
    batches += micro_batches(spark, tmp_path / "micro-batches", **chosen)
    assert values([*chain.from_iterable(batches)]) == expected
