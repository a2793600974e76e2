"""The sinks memory, console and noop, and how their rows travel in checkpoints."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.debug.carried_rows import CarriedRows, decode_rows
from headgate.connectors.debug.console import ConsoleCommitter, ConsoleSink, show
from headgate.connectors.debug.memory import MemorySink
from headgate.connectors.debug.noop import NoopSink
from headgate.errors import CorruptStateError, OptionError, UnsupportedVersionError
from headgate.protocol.operator_context import OperatorContext
from headgate.sink import SinkWriter

SCHEMA = pa.schema({"id": pa.int64()})
GOLDEN_HEAD = b'{"version":1,"writer":"w","number":2,"total":9}\n'


def context(execution: int = 1) -> OperatorContext:
    return OperatorContext(uid="sink", subtask=0, parallelism=1, run=1, execution=execution, query_id="q")


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def prepared(writer: SinkWriter, checkpoint_id: int) -> tuple[bytes, ...]:
    return writer.prepare_commit(checkpoint_id, final=False).result(0).committables


def test_a_committable_is_a_line_of_json_and_an_arrow_stream() -> None:
    carried = CarriedRows(writer="w", number=2, total=9, table=pa.table({"id": [1]}))
    data = carried.encode()
    assert data.startswith(GOLDEN_HEAD) and pa.ipc.open_stream(data[len(GOLDEN_HEAD) :]).read_all() == carried.table
    assert decode_rows(data) == carried
    with pytest.raises(UnsupportedVersionError):
        decode_rows(data.replace(b"1", b"2", 1))
    for broken in (b"", GOLDEN_HEAD, data[:-20], b"{}\n"):
        with pytest.raises(CorruptStateError):
            decode_rows(broken)


def test_memory_holds_each_committed_row_once() -> None:
    sink = MemorySink({"checkpointLocation": "x"}, SCHEMA)
    committer, writer = sink.create_committer(""), sink.create_writer(context(), SCHEMA, [])
    assert committer.table() == SCHEMA.empty_table()
    writer.write(rows(1, 2))
    first = prepared(writer, 1)
    writer.write(rows(3))
    second = prepared(writer, 2)
    assert second[0] == first[0], "checkpoint 1 failed: its rows are carried"
    for epoch in (1, 1):
        assert committer.commit(second, epoch=epoch, final=False) == ()
    writer.notify_checkpoint_complete(2)
    assert prepared(writer, 3) == ()
    writer.write(rows(4))
    lost = prepared(writer, 4)
    restored = sink.create_writer(context(execution=2), SCHEMA, [])
    restored.write(rows(4))
    committer.commit(prepared(restored, 5), epoch=2, final=True)
    assert committer.table().to_pydict() == {"id": [1, 2, 3, 4]}
    assert lost


def test_a_complete_result_without_rows_is_one() -> None:
    sink = MemorySink({}, SCHEMA)
    sink.output_mode = "complete"
    committer, writer = sink.create_committer(""), sink.create_writer(context(), SCHEMA, [])
    writer.write(rows(1, 2))
    committer.commit(prepared(writer, 1), epoch=0, final=False)
    writer.notify_checkpoint_complete(1)
    assert committer.table().num_rows == 2
    committer.commit(prepared(writer, 2), epoch=1, final=False)
    assert committer.table() == SCHEMA.empty_table()


def test_rows_that_others_stand_for_are_discarded() -> None:
    writer = MemorySink({}, SCHEMA).create_writer(context(), SCHEMA, [])
    writer.write(rows(1, 2))
    writer.discard_rows()
    writer.write(rows(3))
    (carried,) = map(decode_rows, prepared(writer, 1))
    assert (carried.total, carried.table.to_pydict()) == (1, {"id": [3]})


def test_memory_shows_rows_of_a_program_with_other_columns() -> None:
    """Those that its last checkpoint had, and that it did not commit itself."""

    def committed_after(before: pa.Schema, batch: pa.RecordBatch) -> pa.Table:
        writer = MemorySink({}, before).create_writer(context(), before, [])
        writer.write(batch)
        now = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("new", pa.string(), nullable=False)])
        sink = MemorySink({}, now)
        committer = sink.create_committer("")
        committer.commit(prepared(writer, 1), epoch=0, final=False)
        writer = sink.create_writer(context(execution=2), now, [])
        writer.write(pa.record_batch([[2], ["b"]], schema=now))
        committer.commit(prepared(writer, 2), epoch=1, final=False)
        return committer.table()

    narrow = pa.record_batch({"id": pa.array([1], pa.int32()), "old": ["a"]})
    table = committed_after(narrow.schema, narrow)
    assert table.to_pylist() == [{"id": 1, "new": None, "old": "a"}, {"id": 2, "new": "b", "old": None}]
    assert table.schema.types == [pa.int64(), pa.string(), pa.string()]
    table.validate(full=True)
    text = pa.record_batch({"id": ["one"]})
    with pytest.raises(OptionError, match=r"holds rows of other columns.* id .*begin at a new location"):
        committed_after(text.schema, text)


def test_noop_counts() -> None:
    sink = NoopSink({})
    writer = sink.create_writer(context(), SCHEMA, [])
    writer.write(rows(1, 2))
    writer.write(rows(3))
    assert writer.rows == 3 and prepared(writer, 1) == () and sink.create_committer("") is None


def test_console_prints_the_first_rows_of_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink({"numRows": "2"})
    committer, writer = sink.create_committer(""), sink.create_writer(context(), SCHEMA, [])
    for batch in (rows(1), rows(2, 3, 4), rows(5)):
        writer.write(batch)
    committables = prepared(writer, 1)
    assert decode_rows(committables[0]).table.num_rows == 2, "no more travel than are printed"
    for each in (committables, committables, ()):
        assert committer.commit(each, epoch=7, final=False) == ()
    assert capsys.readouterr().out == (
        "-------------------------------------------\nBatch: 7\n-------------------------------------------\n"
        "+---+\n| id|\n+---+\n|  1|\n|  2|\n+---+\nonly showing top 2 rows\n\n"
    )


def test_console_writes_where_it_is_configured() -> None:
    out = io.StringIO()
    writer = ConsoleSink({"truncate": "false"}).create_writer(context(), SCHEMA, [])
    writer.write(rows(1))
    ConsoleCommitter(20, 0, out).commit(prepared(writer, 1), epoch=1, final=True)
    assert "|1  |\n+---+\n\n" in out.getvalue()


@pytest.mark.parametrize("options", [{"numRows": "0"}, {"truncate": "maybe"}, {"rows": "1"}])
def test_console_refuses_what_it_does_not_know(options: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        ConsoleSink(options)


MOMENT = datetime.datetime(2020, 1, 1, 0, 0, 0, 123456)


@pytest.mark.parametrize(
    ("value", "data_type", "shown"),
    [
        (None, pa.int8(), "NULL"),
        (True, pa.bool_(), "true"),
        (1.0, pa.float64(), "1.0"),
        (1e10, pa.float64(), "1.0E10"),
        (1.5e-7, pa.float64(), "1.5E-7"),
        (-123456.75, pa.float64(), "-123456.75"),
        (float("-inf"), pa.float64(), "-Infinity"),
        (Decimal("1E-7"), pa.decimal128(10, 7), "0.0000001"),
        (MOMENT, pa.timestamp("us"), "2020-01-01 00:00:00.123456"),
        (MOMENT.replace(microsecond=100_000), pa.timestamp("us", "UTC"), "2020-01-01 00:00:00.1"),
        (MOMENT.replace(microsecond=0), pa.timestamp("ns", "Asia/Tokyo"), "2020-01-01 00:00:00"),
        (datetime.date(2020, 1, 2), pa.date32(), "2020-01-02"),
        (b"ab\xff", pa.binary(), "[61 62 FF]"),
        ([1, None], pa.list_(pa.int8()), "[1, NULL]"),
        ([], pa.list_(pa.int8()), "[]"),
        ([("k", None), ("l", 1)], pa.map_(pa.string(), pa.int8()), "{k -> NULL, l -> 1}"),
        ({"x": None, "y": "a"}, pa.struct([("x", pa.int8()), ("y", pa.string())]), "{NULL, a}"),
        ("a\nb", pa.string(), "a\\nb"),
    ],
)
def test_values_look_as_in_spark(value: Any, data_type: pa.DataType, shown: str) -> None:
    table = pa.table({"v": pa.array([value], data_type)})
    assert show(table, total=1, truncate=0).split("\n")[3].strip("|").rstrip() == shown


def test_long_values_are_cut() -> None:
    table = pa.table({"v": ["abcdefghijklmnopqrstuvwxyz"]})
    assert "|abcdefghijklmnopq...|" in show(table, total=1, truncate=20)
    assert "|abc|" in show(table, total=1, truncate=3)
    assert "only showing top 1 row\n" in show(table, total=2, truncate=3)
