"""Staged rows: the same rows come back, files are whole or not there, and bytes of released versions are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.staging import ITEM_SERIALIZER, STAGED_SCHEMA, staged, staged_sink
from headgate.errors import CorruptStateError, OptionError
from headgate.sink.staging import InlineRows, RowsEncoder, RowsFile, StagedItem, StagedPiece, StagingFolder

ITEM = StagedItem(
    name="headgate-2f6c-sink-3-0-1",
    topic="rides",
    pieces=(
        StagedPiece(4, 17, RowsFile("staged/headgate-2f6c-sink-3-0-1/4.arrow", 8_400_123, 3_735_928_559)),
        StagedPiece(5, 17, InlineRows(b"\x00rows\xff")),
    ),
)
SETTINGS = {"kafka.bootstrap.servers": "127.0.0.1:9"}


def test_bytes_of_version_1_are_read_and_written(repository: Path) -> None:
    golden = (repository / "tests/golden/kafka-staged-rows-v1.json").read_bytes().strip()
    assert ITEM_SERIALIZER.deserialize(golden) == ITEM
    assert ITEM_SERIALIZER.serialize(ITEM) == golden


def test_rows_of_any_columns_are_staged_as_kafka_has_them() -> None:
    """Text becomes bytes, columns that Kafka does not know are left out."""
    headers = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))
    batch = pa.record_batch(
        {
            "other": [1, 2, 3],
            "topic": ["a", "b", "a"],
            "headers": pa.array([[{"key": "k", "value": "ü"}, {"key": "", "value": None}], None, []], headers),
            "value": ["x", None, ""],
            "key": pa.array([b"\xff", None, b""], pa.large_binary()),
        }
    )
    sink = KafkaSink.of(SETTINGS, batch.schema)
    rows = staged(sink, batch.slice(1)).to_pylist() + staged(sink, batch.slice(0, 1)).to_pylist()
    assert rows == [
        {"value": None, "key": None, "partition": None, "headers": None, "topic": "b"},
        {"value": b"", "key": b"", "partition": None, "headers": [], "topic": "a"},
        {
            "value": b"x", "key": b"\xff", "partition": None, "topic": "a",
            "headers": [{"key": "k", "value": "ü".encode()}, {"key": "", "value": None}],
        },
    ]  # fmt: skip
    assert staged_sink(sink.client, None).columns.topic == STAGED_SCHEMA.names.index("topic")


def test_the_topic_of_all_rows_is_not_staged_with_each() -> None:
    batch = pa.record_batch({"value": ["x"], "topic": ["loses"]})
    sink = KafkaSink.of(SETTINGS | {"topic": "wins"}, batch.schema)
    assert staged(sink, batch).to_pylist()[0]["topic"] is None
    assert staged_sink(sink.client, "wins").columns.topic is None


def test_pieces_come_back_from_memory_and_from_files(tmp_path: Path) -> None:
    folder, encoder = StagingFolder(f"file://{tmp_path}", "headgate.kafka"), RowsEncoder(STAGED_SCHEMA)
    batch = staged(
        KafkaSink.of(SETTINGS | {"topic": "t"}, pa.schema({"value": pa.string()})),
        pa.record_batch({"value": ["x"] * 3}),
    )
    for each in range(2):
        encoder.add(batch)
        encoder.add(batch)
        assert encoder.rows == 6
        data = encoder.take()
        file = folder.write(f"staged/n/{each}.arrow", data)
        for rows in (file, InlineRows(data)):
            assert folder.read(rows).read_all().num_rows == 6
        folder.delete(file)
        folder.delete(file)
        with pytest.raises(CorruptStateError, match=rf"{each}\.arrow' are gone"):
            folder.read(file)
    assert encoder.rows == 0


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    folder = StagingFolder(str(tmp_path), "headgate.kafka")
    file = folder.write("staged/n/0.arrow", b"0123456789")
    assert [each.name for each in tmp_path.rglob("*.*")] == ["0.arrow"], "no partial file is left"
    (tmp_path / "staged/n/0.arrow").write_bytes(b"01234")
    with pytest.raises(CorruptStateError, match=r"0\.arrow' are not what was written: 5 bytes of 10"):
        folder.read(file)


def test_a_location_that_nobody_opens_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="no file system for nfs"):
        StagingFolder("nfs://host/folder", "headgate.kafka")
