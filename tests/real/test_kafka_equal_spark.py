"""The same options over the same topics: ``headgate.kafka`` gives what Spark's ``kafka`` gives, column by column."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import lit

from local.kafka import Broker
from local.topics import Message, create_topic, produce, wait_for_transactions

PARTITIONS = 3
COUNT = 300
NOON = 1_767_268_800_000
"""Time of the first record, in milliseconds; each is a second later than the one before."""


def records(seed: int) -> list[Message]:
    """Return records of every kind: nulls, empty and large values, headers, in uneven partitions."""
    draw = random.Random(seed)
    values = [None, b"", b"\x00\xff\xfe", b"plain", b"x" * 3000, "gr\u00fc\u00dfe".encode()]
    headers: list[list[tuple[str, bytes | None]]] = [[], [], [("a", b"1")], [("a", b"1"), ("a", None), ("", b"")]]
    return [
        Message(
            value=draw.choice(values),
            key=draw.choice([None, b"", b"key-%d" % number]),
            partition=min(PARTITIONS - 1, draw.randrange(PARTITIONS + 3)),
            timestamp_ms=NOON + number * 1000,
            headers=draw.choice(headers),
        )
        for number in range(COUNT)
    ]


@pytest.fixture(scope="module")
def topics(kafka: Broker) -> tuple[str, str]:
    """Return two topics of the same kind; the second with the broker's time stamps."""
    mark = uuid.uuid4().hex[:8]
    first = create_topic(kafka.plain, f"equal-{mark}-one", PARTITIONS)
    second = create_topic(kafka.plain, f"equal-{mark}-two", PARTITIONS, message_timestamp_type="LogAppendTime")
    produce(kafka.plain, first, records(1))
    produce(kafka.plain, second, records(2))
    return first, second


def offsets(topic: str, *each: int) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in enumerate(each)}})


def load(spark: SparkSession, kind: str, kafka: Broker, **options: object) -> DataFrame:
    return spark.read.format(kind).option("kafka.bootstrap.servers", kafka.plain).options(**options).load()


def read(spark: SparkSession, kind: str, kafka: Broker, **options: object) -> list[Row]:
    return in_order(load(spark, kind, kafka, **options))


def in_order(frame: DataFrame) -> list[Row]:
    """Return a frame's rows sorted here: Spark would read its source twice, first for a sample of the order."""
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def by_time(*each: int) -> str:
    """Return the JSON of positions in the topic ``one``, for `filled`."""
    return offsets("{one}", *each).replace("{", "{{").replace("}", "}}").replace("{{one}}", "{one}")


CASES: dict[str, dict[str, object]] = {
    "subscribe": {"subscribe": "{one}"},
    "subscribe two": {"subscribe": " {one} , {two}"},
    "subscribePattern": {"subscribePattern": "equal-{mark}-.*"},
    "subscribePattern matches whole names": {"subscribePattern": "{one}|{mark}-two"},
    "assign": {"assign": '{{"{one}": [0, 2]}}'},
    "includeHeaders": {"subscribe": "{one},{two}", "includeHeaders": "true"},
    "startingOffsets": {"subscribe": "{one}", "startingOffsets": '{{"{one}": {{"0": 3, "1": -2, "2": 20}}}}'},
    "both offsets": {
        "subscribe": "{one}",
        "startingOffsets": '{{"{one}": {{"0": 3, "1": 5, "2": 7}}}}',
        "endingOffsets": '{{"{one}": {{"0": 9, "1": 5, "2": -1}}}}',
    },
    "startingTimestamp": {"subscribe": "{one}", "startingTimestamp": NOON + 100_000},
    "endingTimestamp": {"subscribe": "{one}", "endingTimestamp": NOON + 100_000},
    "timestamps between records": {
        "subscribe": "{one}",
        "startingTimestamp": NOON + 99_500,
        "endingTimestamp": NOON + 200_500,
    },
    "startingOffsetsByTimestamp": {
        "subscribe": "{one}",
        "startingOffsetsByTimestamp": by_time(NOON, NOON + 50_000, NOON + 1000),
    },
    "endingOffsetsByTimestamp": {
        "subscribe": "{one}",
        "endingOffsetsByTimestamp": by_time(NOON, NOON + 50_000, NOON * 2),
    },
    "a time stamp wins over offsets": {
        "subscribe": "{one}",
        "startingTimestamp": NOON + 100_000,
        "startingOffsets": "earliest",
    },
    "startingOffsetsByTimestampStrategy latest": {
        "subscribe": "{one}",
        "startingTimestamp": NOON * 2,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "minPartitions": {"subscribe": "{one}", "minPartitions": "11"},
    "maxRecordsPerPartition": {"subscribe": "{one}", "maxRecordsPerPartition": "50"},
    "case does not matter": {"SUBSCRIBE": "{one}", "StartingOffsets": "EARLIEST"},
    "failOnDataLoss false": {
        "subscribe": "{one}",
        "failOnDataLoss": "false",
        "startingOffsets": '{{"{one}": {{"0": 0, "1": 0, "2": 0}}}}',
    },
}


def filled(options: dict[str, object], topics: tuple[str, str]) -> dict[str, object]:
    one, two = topics
    mark = one.split("-")[1]
    return {
        name: value.format(one=one, two=two, mark=mark) if isinstance(value, str) else value
        for name, value in options.items()
    }


@pytest.fixture(scope="module")
def batches(spark: SparkSession, kafka: Broker, topics: tuple[str, str]) -> dict[str, dict[str, Any]]:
    """Return the schema and the rows of each case, by either source: each is asked for all cases in one query."""
    found: dict[str, dict[str, Any]] = {}
    for kind in ("kafka", "headgate.kafka"):
        frames = {case: load(spark, kind, kafka, **filled(options, topics)) for case, options in CASES.items()}
        named = [frame.withColumn("case", lit(case)) for case, frame in frames.items()]
        rows = in_order(reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), named))
        found[kind] = {case: (frames[case].schema, [row for row in rows if row["case"] == case]) for case in CASES}
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_batch_has_the_rows_and_columns_of_sparks_source(batches: dict[str, dict[str, Any]], case: str) -> None:
    schema, rows = batches["kafka"][case]
    found_schema, found = batches["headgate.kafka"][case]
    assert found_schema == schema
    places, found_places = ([(row.topic, row.partition, row.offset) for row in each] for each in (rows, found))
    assert found_places == places, sorted(set(places) ^ set(found_places))
    assert found == rows
    assert rows or "latest" in case


def test_schemas_are_equal_nullability_included(spark: SparkSession, kafka: Broker, topics: tuple[str, str]) -> None:
    for headers in ("false", "true"):
        ours, theirs = (
            spark.read.format(kind)
            .options(subscribe=topics[0], includeHeaders=headers)
            .option("kafka.bootstrap.servers", kafka.plain)
            .load()
            .schema
            for kind in ("headgate.kafka", "kafka")
        )
        assert ours == theirs


def test_tasks_are_as_many_as_sparks(spark: SparkSession, kafka: Broker, topics: tuple[str, str]) -> None:
    """A task per partition, unless ``minPartitions`` asks for more; so a user's parallelism does not change."""
    for least, exact in ((None, True), (2, True), (10, False), (60, False)):
        ours, theirs = (
            spark.read.format(kind)
            .options(subscribe=topics[0], **({} if least is None else {"minPartitions": str(least)}))
            .option("kafka.bootstrap.servers", kafka.plain)
            .load()
            .rdd.getNumPartitions()
            for kind in ("headgate.kafka", "kafka")
        )
        assert ours == max(PARTITIONS, least or 0)
        # Spark rounds the pieces of each partition, and so has one more or less at times.
        assert abs(ours - theirs) <= (0 if exact else PARTITIONS)


@pytest.mark.parametrize("isolation", [None, "read_committed"])
def test_aborted_records_are_seen_where_sparks_source_sees_them(
    spark: SparkSession, kafka: Broker, topic_name: str, isolation: str | None
) -> None:
    """Librdkafka's own default would hide them."""
    create_topic(kafka.plain, topic_name)
    producer = Producer({"bootstrap.servers": kafka.plain, "transactional.id": topic_name})
    producer.init_transactions(30)
    for end in ("commit", "abort", "commit"):
        producer.begin_transaction()
        producer.produce(topic_name, end.encode())
        producer.flush(30)  # what is aborted must have been written
        getattr(producer, f"{end}_transaction")(30)
    wait_for_transactions(kafka.plain, topic_name)
    options = {"subscribe": topic_name} | ({} if isolation is None else {"kafka.isolation.level": isolation})
    found = read(spark, "headgate.kafka", kafka, **options)
    assert found == read(spark, "kafka", kafka, **options)
    assert len(found) == (3 if isolation is None else 2)


@pytest.mark.parametrize("assigner", ["hash", "round-robin"])
def test_the_assigner_decides_which_ranges_share_a_task(
    spark: SparkSession, kafka: Broker, topics: tuple[str, str], assigner: str
) -> None:
    """``hash`` spreads each topic separately, ``round-robin`` all partitions together."""
    rows = (
        spark.read.format("headgate.kafka")
        .options(subscribe=",".join(topics), **{"scan.split-assigner": assigner, "scan.parallelism": "4"})
        .option("kafka.bootstrap.servers", kafka.plain)
        .load()
        .selectExpr("spark_partition_id() AS task", "topic", "partition")
        .distinct()
        .collect()
    )
    assert len(rows) == 2 * PARTITIONS
    for topic in topics:
        counts = [sum(row.task == task and row.topic == topic for row in rows) for task in range(4)]
        assert max(counts) - min(counts) <= 1
    counts = [sum(row.task == task for row in rows) for task in range(4)]
    assert assigner == "hash" or max(counts) - min(counts) <= 1


def test_json_values_go_through_the_mode_with_partition_and_offset(
    spark: SparkSession, kafka: Broker, topic_name: str
) -> None:
    values = [b'{"n": 1}', b"no JSON", None, b'{\n"n":\r\n2}\n', b'{"n": "x"}', b'{"n": 3}']
    create_topic(kafka.plain, topic_name, 2)
    produce(kafka.plain, topic_name, [Message(value, partition=1) for value in values])

    def rows(mode: str) -> list[tuple[object, ...]]:
        frame = spark.read.format("headgate.kafka").option("kafka.bootstrap.servers", kafka.plain)
        frame = frame.options(subscribe=topic_name, valueFormat="json", mode=mode)
        loaded = frame.schema("n int, _partition int, _offset long, _corrupt_record string").load()
        return [tuple(row) for row in loaded.orderBy("_offset").collect()]

    assert rows("PERMISSIVE") == [
        (1, 1, 0, None), (None, 1, 1, "no JSON"), (None, 1, 2, None), (2, 1, 3, None), (None, 1, 4, '{"n": "x"}'),
        (3, 1, 5, None),
    ]  # fmt: skip
    assert [row[2] for row in rows("DROPMALFORMED")] == [0, 2, 3, 5]
    with pytest.raises(PySparkException, match=f"(?s)offset 1 of partition 1 of the topic '{topic_name}'"):
        rows("FAILFAST")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "70"}, marks=pytest.mark.spark_since("read-limits")
        ),
        {"startingTimestamp": str(NOON + 100_000), "includeHeaders": "true"},
    ],
)
def test_a_stream_has_the_rows_of_sparks_source(
    spark: SparkSession, kafka: Broker, topics: tuple[str, str], tmp_path: Path, options: dict[str, str]
) -> None:
    found = []
    for kind in ("kafka", "headgate.kafka"):
        frame = spark.readStream.format(kind).option("kafka.bootstrap.servers", kafka.plain)
        query = (
            frame.option("subscribe", topics[0])
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / kind / "rows"))
            .option("checkpointLocation", str(tmp_path / kind / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        most = max(progress["numInputRows"] for progress in query.recentProgress)
        assert most <= int(options.get("maxOffsetsPerTrigger", COUNT)) + (2 if kind == "kafka" else 0)
        found.append(in_order(spark.read.parquet(str(tmp_path / kind / "rows"))))
    assert found[0] == found[1]
    assert found[0]


WRONG: dict[str, dict[str, object]] = {
    "no subscription": {},
    "two subscriptions": {"subscribe": "{one}", "assign": '{{"{one}": [0]}}'},
    "no servers": {"subscribe": "{one}", "kafka.bootstrap.servers": ""},
    "a batch from latest": {"subscribe": "{one}", "startingOffsets": "latest"},
    "a batch to earliest": {"subscribe": "{one}", "endingOffsets": "earliest"},
    "a missing partition": {"subscribe": "{one}", "startingOffsets": '{{"{one}": {{"0": 3}}}}'},
    "a partition too many": {"assign": '{{"{one}": [0]}}', "startingOffsets": '{{"{one}": {{"0": 3, "1": 0}}}}'},
    "no JSON": {"assign": "{one}"},
    "a deserializer": {"subscribe": "{one}", "kafka.key.deserializer": "x"},
    "auto.offset.reset": {"subscribe": "{one}", "kafka.auto.offset.reset": "earliest"},
    "a time stamp after all": {"subscribe": "{one}", "startingTimestamp": NOON * 2},
    "minPartitions 0": {"subscribe": "{one}", "minPartitions": "0"},
    "no such topic": {"subscribe": "no-such-topic-anywhere"},
    "an offset out of range": {"subscribe": "{one}", "startingOffsets": '{{"{one}": {{"0": 9999, "1": 0, "2": 0}}}}'},
}


@pytest.mark.parametrize("case", WRONG)
def test_what_sparks_source_refuses_is_refused_here(
    spark: SparkSession, kafka: Broker, topics: tuple[str, str], case: str
) -> None:
    options = filled(WRONG[case], topics)
    servers = options.pop("kafka.bootstrap.servers", kafka.plain)
    for kind in ("headgate.kafka", "kafka"):
        if kind == "kafka" and case in ("no such topic", "an offset out of range"):
            continue  # Spark's source tries for minutes, or reads to the end of its own time-out
        with pytest.raises((PySparkException, Py4JJavaError)) as caught:
            reader = spark.read.format(kind).options(**options)
            (reader.option("kafka.bootstrap.servers", servers) if servers else reader).load().collect()
        if kind == "headgate.kafka":
            assert "headgate" in str(caught.value)


def test_a_stream_has_no_end(spark: SparkSession, kafka: Broker, topics: tuple[str, str], tmp_path: Path) -> None:
    """As it comes to a user; of the three options that name an end, `test_kafka_positions` tries each."""
    with pytest.raises((PySparkException, StreamingQueryException), match="endingTimestamp"):
        frame = spark.readStream.format("headgate.kafka").option("kafka.bootstrap.servers", kafka.plain)
        query = (
            frame.option("subscribe", topics[0])
            .option("endingTimestamp", "1")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        query.awaitTermination()


@pytest.fixture(autouse=True)
def _stop_queries(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()
