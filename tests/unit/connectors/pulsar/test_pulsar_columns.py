"""The columns of messages, without a broker."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.pulsar.columns import METADATA, PulsarColumns, time_of
from headgate.connectors.pulsar.event_times import _time_ms
from headgate.errors import BadDataError
from tests.unit.connectors.pulsar.messages import Message, MessageId

TOPIC = "persistent://public/default/rides"
LATEST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=datetime.UTC)
LATEST_MS = 253_402_300_799_999


class Schemas:
    """The schemas of one topic, by their versions; the last one is the newest."""

    def __init__(self, kind: str, *data: str) -> None:
        self._all = [{"type": kind, "data": each} for each in data] or [{"type": kind, "data": ""}]

    def kind(self, topic: str) -> str:
        return self._all[-1]["type"]

    def find(self, topic: str, version: int | None = None) -> dict[str, Any] | None:
        return self._all[-1 if version is None else version]


def columns(schema: pa.Schema, schemas: Schemas | None = None) -> PulsarColumns:
    chosen = {"valueFormat": "schema", "allowDifferentTopicSchemas": False}
    return PulsarColumns(schema, chosen, None, schemas or Schemas("BYTES"))  # type: ignore[arg-type]


def rows(schema: pa.Schema, messages: list[Message], schemas: Schemas | None = None) -> list[dict[str, Any]]:
    batch, kept = columns(schema, schemas).rows(TOPIC, messages, TOPIC)
    assert batch is not None
    assert kept is None
    return batch.to_pylist()


def of(column: str) -> pa.Schema:
    return pa.schema([(column, METADATA[column])])


@pytest.mark.parametrize("unit", [1000, 1_000_000, 10**9], ids=["micros", "nanos", "more than 64 bits of micros"])
def test_an_event_time_that_is_not_in_milliseconds_is_an_error(unit: int) -> None:
    """Nor is anything planned by it."""
    given = [Message(MessageId(5, n), b"", event_ms=ms) for n, ms in enumerate((0, LATEST_MS, 1_700_000_000_000))]
    assert rows(of("__eventTime"), given)[:2] == [{"__eventTime": None}, {"__eventTime": LATEST}]
    bad = Message(MessageId(5, 3), b"", event_ms=1_700_000_000 * unit * 1000)
    of_message = time_of("__EventTime")
    assert of_message is not None
    for read in (lambda: rows(of("__eventTime"), [*given, bad]), lambda: of_message(bad)):
        what = re.escape(
            f"the __eventTime of the message 5:3 of {TOPIC} is {bad.event_ms}, which is not a time in milli"
        )
        with pytest.raises(BadDataError, match=what) as caught:
            read()
        assert caught.value.facts["message_id"] == "5:3"
    assert len(rows(of("__publishTime"), [*given, bad])) == 4, "who does not ask for it can read on"
    assert [_time_ms(each) for each in [*given, bad]] == [
        bad.publish_ms, LATEST_MS, 1_700_000_000_000, bad.publish_ms,
    ]  # fmt: skip


def test_nor_is_a_time_of_publication() -> None:
    with pytest.raises(
        BadDataError, match=r"the __publishTime of the message 5:1 .* is 1700000000000000, which is not"
    ):
        rows(of("__publishTime"), [Message(MessageId(5, n), b"", publish_ms=1700 * 10 ** (9 + 3 * n)) for n in (0, 1)])


@pytest.mark.parametrize(
    ("kind", "type_", "most"),
    [("TIMESTAMP", pa.timestamp("us", "UTC"), (2**63 - 1) // 1000), ("DATE", pa.date32(), (2**31 - 1) * 86_400_000)],
)
def test_values_that_no_time_can_have_are_an_error(kind: str, type_: pa.DataType, most: int) -> None:
    schema, schemas = pa.schema([("value", type_)]), Schemas(kind)
    given = [None, *(number.to_bytes(8, "big", signed=True) for number in (0, -1, most, -most))]
    batch, _ = columns(schema, schemas).rows(TOPIC, [Message(MessageId(5, 0), each) for each in given], TOPIC)
    assert batch is not None
    unit = 1000 if kind == "TIMESTAMP" else 1
    numbers = batch.column(0).cast(pa.int64() if kind == "TIMESTAMP" else pa.int32()).to_pylist()
    assert numbers[:3] == [None, 0, -1000 if kind == "TIMESTAMP" else -1]
    assert numbers[3] == (most * unit if kind == "TIMESTAMP" else most // 86_400_000)
    for wrong in (most + 86_400_000, -(2**63)):
        with pytest.raises(BadDataError, match=rf"of the message 5:0 of {TOPIC} is {wrong} ms since 1970-01-01"):
            rows(schema, [Message(MessageId(5, 0), wrong.to_bytes(8, "big", signed=True))], schemas)
