"""Rows as parts of messages: what is refused before it is staged, and which partition each goes to."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.sink.rows import ROWS_SCHEMA, Router, java_hash, parts
from headgate.errors import SinkError

ADDRESS = {"service.url": "pulsar://127.0.0.1:9"}
PROPERTIES = pa.map_(pa.string(), pa.string())


def sink_of(schema: pa.Schema, **options: str) -> PulsarSink:
    return PulsarSink.of(ADDRESS | options, schema)


@pytest.mark.parametrize(
    ("key", "hash_code"),
    [("", 0), ("a", 97), ("hello", 99162322), ("schlüssel", 180015919), ("polygenelubricants", -2147483648)],
)
def test_the_hash_of_a_key_is_java_s(key: str, hash_code: int) -> None:
    assert java_hash(key) == hash_code & 0x7FFFFFFF


def test_rows_of_any_columns_have_the_parts_that_pulsar_knows() -> None:
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    batch = pa.record_batch(
        {
            "other": [1, 2],
            "__topic": ["a", "public/x/b"],
            "__eventTime": pa.array([at, None], pa.timestamp("us", "UTC")),
            "__messageProperties": pa.array([[("k", "v")], None], PROPERTIES),
            "value": ["ü", None],
            "__key": pa.array(["é".encode(), None], pa.large_binary()),
        }
    )
    rows = parts(sink_of(batch.schema), batch)
    assert rows.schema == ROWS_SCHEMA
    assert rows.to_pylist() == [
        {"value": "ü".encode(), "key": "é", "event_time_ms": int(at.timestamp() * 1000), "properties": [("k", "v")],
         "topic": "a"},
        {"value": None, "key": None, "event_time_ms": None, "properties": None, "topic": "public/x/b"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"__key": pa.array([b"\xff"])}, "__key is not UTF-8"),
        ({"__eventTime": pa.array([-1])}, "__eventTime is -1 ms, before 1970"),
        ({"__messageProperties": pa.array([[("k", None)]], PROPERTIES)}, "__messageProperties is null"),
        ({"__topic": pa.array([None], pa.string())}, "__topic is null"),
    ],
)
def test_rows_that_can_never_be_sent_are_named(columns: dict[str, pa.Array], error: str) -> None:
    batch = pa.record_batch({"value": ["x"]} | columns)
    with pytest.raises(SinkError, match=error):
        parts(sink_of(batch.schema, **({} if "__topic" in columns else {"topic": "t"})), batch)


def test_keys_choose_partitions_and_other_rows_have_them_in_turns() -> None:
    count = {"persistent://public/default/t": 3}
    asked: list[str] = []

    def partitions(topic: str) -> list[str]:
        asked.append(topic)
        return [f"{topic}-partition-{number}" for number in range(count[topic])]

    keys = [f"k{n}" for n in range(50)] + [None] * 3000
    batch = pa.record_batch({"value": ["x"] * len(keys), "__key": keys})
    sink = sink_of(batch.schema, topic="t")
    router = Router(sink, partitions)
    routed = router.route(batch)
    numbers = [int(name.rpartition("-")[2]) for name in routed.column("topic").to_pylist()]
    assert numbers[:50] == [java_hash(key) % 3 for key in keys[:50]]
    assert numbers[50:] == [0] * 1000 + [1] * 1000 + [2] * 1000
    count["persistent://public/default/t"] = 1
    assert len(set(router.route(batch).column("topic").to_pylist())) == 3, "until it is to forget"
    router.forget()
    assert set(router.route(batch).column("topic").to_pylist()) == {"persistent://public/default/t-partition-0"}
    assert asked == ["persistent://public/default/t"] * 2


def test_a_name_of_a_topic_that_is_none_is_named() -> None:
    batch = pa.record_batch({"value": ["x"], "__topic": ["non-persistent://public/default/t"]})
    sink = sink_of(batch.schema)
    with pytest.raises(SinkError, match="'non-persistent://public/default/t'; it must be a persistent topic"):
        Router(sink, lambda topic: [topic]).route(batch)
