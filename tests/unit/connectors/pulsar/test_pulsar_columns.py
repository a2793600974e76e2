"""The columns of messages, without a broker."""

from __future__ import annotations

import copy
import datetime
import io
import json
import random
import re
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pytest

from headgate.connectors.pulsar.columns import METADATA, PulsarColumns, time_of, value_fields
from headgate.connectors.pulsar.event_times import _time_ms
from headgate.errors import BadDataError, OptionError
from headgate.formats.json_values import JSON_OPTIONS
from tests.unit.connectors.pulsar.messages import Message, MessageId

TOPIC = "persistent://public/default/rides"
LATEST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=datetime.UTC)
LATEST_MS = 253_402_300_799_999


class Schemas:
    """The schemas of one topic, by their versions; the last one is the newest."""

    def __init__(self, kind: str, *data: str) -> None:
        self._all = [{"type": kind, "data": each} for each in data] or [{"type": kind, "data": ""}]

    def find(self, topic: str, version: int | None = None) -> dict[str, Any] | None:
        return self._all[-1 if version is None else version]


def columns(schema: pa.Schema, schemas: Schemas | None = None) -> PulsarColumns:
    chosen = {spec.name: spec.default for spec in JSON_OPTIONS}
    chosen |= {"valueFormat": "schema", "allowDifferentTopicSchemas": False}
    return PulsarColumns(schema, chosen, None, schemas or Schemas("BYTES"))  # type: ignore[arg-type]


def rows(schema: pa.Schema, messages: list[Message], schemas: Schemas | None = None) -> list[dict[str, Any]]:
    batch, kept = columns(schema, schemas).rows(TOPIC, messages, TOPIC)
    assert batch is not None
    assert kept is None
    return batch.to_pylist()


def written(schema: Any, values: list[Any], version: int = 0) -> list[Message]:
    """Return messages whose values are Avro; None: a tombstone."""
    parsed, messages = fastavro.parse_schema(copy.deepcopy(schema)), []
    for entry, value in enumerate(values):
        file = io.BytesIO()
        if value is not None:
            fastavro.schemaless_writer(file, parsed, value)
        data = None if value is None else file.getvalue()
        messages.append(Message(MessageId(5, entry), data, version=version))
    return messages


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


# -- records ----------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """A type that was made up: how Avro describes it, Arrow's, and pairs of what is written and what must be read."""

    described: Any
    kind: pa.DataType
    values: list[tuple[Any, Any]]


UTC = datetime.UTC
DAY = datetime.date(1969, 7, 20)
MOMENT = datetime.datetime(1969, 7, 20, 20, 17, 40, 123_000)
TIME = pa.timestamp("us", "UTC")
SIMPLE: list[Made] = [
    Made("boolean", pa.bool_(), [(True, True), (False, False)]),
    Made("int", pa.int32(), [(-(2**31), -(2**31)), (7, 7)]),
    Made("long", pa.int64(), [(2**63 - 1, 2**63 - 1), (0, 0)]),
    Made("float", pa.float32(), [(-0.5, -0.5), (1e30, 1.0000000150474662e30)]),
    Made("double", pa.float64(), [(1e300, 1e300), (0.1, 0.1)]),
    Made("string", pa.string(), [("", ""), ("schlüssel", "schlüssel")]),
    Made("bytes", pa.binary(), [(b"", b""), (b"\xff\0", b"\xff\0")]),
    Made({"type": "int", "logicalType": "date"}, pa.date32(), [(DAY, DAY)]),
    Made({"type": "int", "logicalType": "time-millis"}, pa.int32(), [(datetime.time(1, 2, 3, 4000), 3_723_004)]),
    Made({"type": "long", "logicalType": "time-micros"}, pa.int64(), [(datetime.time(1, 2, 3, 4), 3_723_000_004)]),
    Made({"type": "long", "logicalType": "timestamp-millis"}, TIME, [(MOMENT.replace(tzinfo=UTC),) * 2]),
    Made({"type": "long", "logicalType": "timestamp-micros"}, TIME, [(MOMENT.replace(tzinfo=UTC),) * 2]),
    Made({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64(), [(-3, -3)]),
    Made({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("us"), [(MOMENT, MOMENT)]),
    Made({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us"), [(MOMENT, MOMENT)]),
    Made({"type": "string", "logicalType": "uuid"}, pa.string(), [(uuid.UUID(int=7), str(uuid.UUID(int=7)))]),
    Made({"type": "string", "logicalType": "date"}, pa.string(), [("not a date", "not a date")]),
    Made({"type": "int", "logicalType": "of-our-own"}, pa.int32(), [(5, 5)]),
    Made(
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, pa.decimal128(6, 2),
        [(Decimal("-1234.56"), Decimal("-1234.56")), (Decimal("0.00"), Decimal("0.00"))],
    ),
    Made(
        {"type": "bytes", "logicalType": "decimal", "precision": 4}, pa.decimal128(4, 0), [(Decimal(99), Decimal(99))]
    ),
]  # fmt: skip


class Maker:
    """Makes up types, and uses again what has a name, by it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = (f"N{number}" for number in range(10**6))
        self._made: list[tuple[str, Made]] = []

    def type(self, namespace: str, depth: int) -> Made:
        kinds = [self._simple, self._fixed, self._decimal, self._enum, self._again]
        if depth:
            kinds += [self._record, self._array, self._map, self._nullable]
        return self.random.choice(kinds)(namespace, depth - 1)

    def record(self, depth: int, namespace: str = "") -> Made:
        name = next(self._names)
        own = self.random.choice([None, None, "org.harbour", "org.harbour.inner", "other"])
        inner = namespace if own is None else own
        fields = [self.type(inner, depth) for _ in range(self.random.randint(1, 4))]
        names = [f"{'fF'[number % 2]}{number // 2}" for number, _ in enumerate(fields)]
        described: dict[str, Any] = {"type": "record", "name": name} | ({} if own is None else {"namespace": own})
        if own and self.random.random() < 0.3:
            described = {"type": "record", "name": f"{own}.{name}"}
        described["fields"] = [{"name": one, "type": each.described} for one, each in zip(names, fields, strict=True)]
        values = [
            [dict(zip(names, (pair[side] for pair in row), strict=True)) for side in (0, 1)]
            for row in ([self.random.choice(each.values) for each in fields] for _ in range(3))
        ]
        kind = pa.struct([(one, each.kind) for one, each in zip(names, fields, strict=True)])
        made = Made(described, kind, [(given, read) for given, read in values])
        self._made.append((f"{inner}.{name}" if inner else name, made))
        return made

    def _simple(self, namespace: str, depth: int) -> Made:
        return self.random.choice(SIMPLE)

    def _record(self, namespace: str, depth: int) -> Made:
        return self.record(depth, namespace)

    def _named(
        self, namespace: str, described: dict[str, Any], kind: pa.DataType, values: list[tuple[Any, Any]]
    ) -> Made:
        made = Made(described | {"name": next(self._names)}, kind, values)
        self._made.append((f"{namespace}.{made.described['name']}" if namespace else made.described["name"], made))
        return made

    def _fixed(self, namespace: str, depth: int) -> Made:
        logical = self.random.choice([{}, {"logicalType": "duration"}])
        given = bytes(range(12))
        return self._named(namespace, {"type": "fixed", "size": 12} | logical, pa.binary(), [(given, given)])

    def _decimal(self, namespace: str, depth: int) -> Made:
        described = {"type": "fixed", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 3}
        return self._named(namespace, described, pa.decimal128(12, 3), [(Decimal("-7.125"), Decimal("-7.125"))])

    def _enum(self, namespace: str, depth: int) -> Made:
        return self._named(namespace, {"type": "enum", "symbols": ["A", "B"]}, pa.string(), [("A", "A"), ("B", "B")])

    def _again(self, namespace: str, depth: int) -> Made:
        known = [each for each in self._made if "." in each[0] or not namespace]  # else it cannot be named from here
        if not known:
            return self._simple(namespace, depth)
        full, made = self.random.choice(known)
        before, _, name = full.rpartition(".")
        short = before == namespace and self.random.random() < 0.5
        return Made(name if short else full, made.kind, made.values)

    def _array(self, namespace: str, depth: int) -> Made:
        inner = self.type(namespace, depth)
        values = [([], []), tuple(list(side) for side in zip(*inner.values, strict=True))]
        return Made({"type": "array", "items": inner.described}, pa.list_(pa.field("element", inner.kind)), values)

    def _map(self, namespace: str, depth: int) -> Made:
        inner = self.type(namespace, depth)
        values = [({"k": given}, [("k", read)]) for given, read in inner.values]
        return Made({"type": "map", "values": inner.described}, pa.map_(pa.string(), inner.kind), [({}, []), *values])

    def _nullable(self, namespace: str, depth: int) -> Made:
        inner = self.type(namespace, depth)
        if isinstance(inner.described, list):
            return inner
        null = self.random.choice(["null", {"type": "null"}])
        described = [null, inner.described] if self.random.random() < 0.7 else [inner.described, null]
        return Made(described, inner.kind, [(None, None), *inner.values])


@pytest.mark.parametrize("block", range(4))
def test_avro_of_any_type_is_read_as_it_was_written(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        made = Maker(seed).record(4)
        data = json.dumps(made.described)
        fields = value_fields({"type": "AVRO", "data": data}, TOPIC)
        assert pa.struct(fields) == made.kind, data
        messages = written(made.described, [None, *(given for given, _ in made.values)])
        found = rows(pa.schema(fields), messages, Schemas("AVRO", data))
        assert found == [dict.fromkeys(made.values[0][1]), *(read for _, read in made.values)], data


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Ride", "fields": [{"name": name, "type": each} for name, each in fields]}


def test_a_class_within_a_class_as_java_describes_it() -> None:
    place = {"type": "record", "name": "Place", "namespace": "org.Ferry$", "fields": [{"name": "x", "type": "int"}]}
    ride = record(("from", ["null", place]), ("to", ["null", "org.Ferry$.Place"])) | {"namespace": "org"}
    both = pa.struct([("x", pa.int32())])
    assert value_fields({"type": "JSON", "data": json.dumps(ride)}, TOPIC) == [
        pa.field("from", both), pa.field("to", both),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        ["int", "string"],
        ["null", "Ride"],
        "Nobody",
        "null",
        {"type": "bytes", "logicalType": "decimal", "precision": 39},
        {"items": "int"},
    ],
    ids=str,
)
def test_a_type_that_is_not_read_is_named_and_others_are_read_beside_it(wrong: Any) -> None:
    data = json.dumps(record(("a", "int"), ("b", wrong)))
    with pytest.raises(
        OptionError, match=rf"schema of {TOPIC} has a type that is not read: .*Set valueFormat to binary"
    ):
        value_fields({"type": "AVRO", "data": data}, TOPIC)
    if wrong not in ("Nobody", {"items": "int"}):
        value = {"a": 3, "b": b"\x01" if isinstance(wrong, dict) else (None if "null" in wrong else 5)}
        given = record(("a", "int"), ("b", "bytes" if isinstance(wrong, dict) else wrong))
        assert rows(pa.schema([("a", pa.int32())]), written(given, [value]), Schemas("AVRO", data)) == [{"a": 3}]


def test_types_within_types_are_what_is_within() -> None:
    inner = {"type": {"type": "long", "logicalType": "timestamp-micros"}, "logicalType": "date"}
    found = value_fields(
        {"type": "AVRO", "data": json.dumps(record(("a", inner), ("b", {"type": ["null", "int"]})))}, "t"
    )
    assert found == [pa.field("a", TIME), pa.field("b", pa.int32())]


def test_columns_have_their_names_in_any_case() -> None:
    """As Spark's; nested ones as well. Those of Pulsar's own are never read from values."""
    inner = {"type": "record", "name": "In", "fields": [{"name": "X", "type": "int"}, {"name": "y", "type": "int"}]}
    given = record(("User", "string"), ("user", "string"), ("Place", ["null", {"type": "array", "items": inner}]))
    message = written(given, [{"User": "a", "user": "b", "Place": [{"X": 1, "y": 2}]}])[0]
    place = pa.list_(pa.struct([("Y", pa.int32()), ("x", pa.int32()), ("z", pa.int32())]))
    schema = pa.schema([("__EVENTTIME", TIME), ("PLACE", place), ("user", pa.string()), ("__Key", pa.binary())])
    schemas = Schemas("AVRO", json.dumps(given))
    assert rows(schema, [replace(message, key="k")], schemas) == [
        {"__EVENTTIME": None, "PLACE": [{"Y": 2, "x": 1, "z": None}], "user": "b", "__Key": b"k"}
    ]
    with pytest.raises(OptionError, match=r"'USER' may be any of the fields 'User', 'user' of"):
        rows(pa.schema([("USER", pa.string())]), [message], schemas)
    assert rows(pa.schema([("Value", pa.binary())]), [message], schemas) == [{"Value": message.value}]
    with pytest.raises(OptionError, match=r"column __KEY is string, but it can only be binary"):
        columns(pa.schema([("__KEY", pa.string())]))


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_record_with_a_field_named_as_a_column_of_ours_is_read_as_one_column(kind: str) -> None:
    given = record(("__Key", "int"), ("b", ["null", "string"]))
    data = json.dumps(given)
    with pytest.raises(OptionError, match=r"have a field '__Key', .* \.schema\('value struct<…>, __key …'\)"):
        value_fields({"type": kind, "data": data}, TOPIC)
    values = [{"__Key": 7, "b": "x"}, None, {"__Key": 8, "b": None}]
    messages = written(given, values) if kind == "AVRO" else [
        Message(MessageId(5, entry), None if value is None else json.dumps(value).encode())
        for entry, value in enumerate(values)
    ]  # fmt: skip
    whole = pa.struct([("b", pa.string()), ("__Key", pa.int32())])
    schema = pa.schema([("__key", pa.binary()), ("Value", whole)])
    found = rows(schema, [replace(each, key=f"k{each.id.entry}") for each in messages], Schemas(kind, data))
    assert found == [{"__key": b"k%d" % entry, "Value": value} for entry, value in enumerate(values)]
    own = record(("value", {"type": "record", "name": "In", "fields": [{"name": "b", "type": "string"}]}))
    value = {"value": {"b": "x"}}
    message = written(own, [value])[0] if kind == "AVRO" else Message(MessageId(5, 0), json.dumps(value).encode())
    only = pa.schema([("value", pa.struct([("b", pa.string())]))])
    assert rows(only, [message], Schemas(kind, json.dumps(own))) == [value], "a field of that name"
