"""What the Pulsar sink stores: bytes of released versions are read, and sequence ids stay what they were."""

from __future__ import annotations

from pathlib import Path

from headgate.connectors.pulsar.sink.micro_batch import MANIFEST_SERIALIZER, Manifest, StagedTask
from headgate.connectors.pulsar.sink.publisher import (
    ITEM_SERIALIZER,
    MARK_SERIALIZER,
    PublishedMark,
    first_sequence_id,
)
from headgate.sink.staging import InlineRows, RowsFile, StagedItem, StagedPiece

ITEM = StagedItem(
    name="headgate-2f6c-sink-3-0-1",
    topic="persistent://public/default/rides",
    pieces=(
        StagedPiece(4, 17, RowsFile("staged/headgate-2f6c-sink-3-0-1/4.arrow", 8_400_123, 3_735_928_559)),
        StagedPiece(5, 17, InlineRows(b"\x00rows\xff")),
    ),
)
MANIFEST = Manifest((StagedTask(0, (RowsFile("staged/headgate-2f6c/7/0-ab-0.arrow", 123, 456),)), StagedTask(1, ())))


def test_bytes_of_version_1_are_read_and_written(repository: Path) -> None:
    golden = (repository / "tests/golden/pulsar-staged-rows-v1.json").read_bytes().strip()
    assert ITEM_SERIALIZER.deserialize(golden) == ITEM
    assert ITEM_SERIALIZER.serialize(ITEM) == golden
    golden = (repository / "tests/golden/pulsar-micro-batch-v1.json").read_bytes().strip()
    assert MANIFEST_SERIALIZER.deserialize(golden) == MANIFEST
    assert MANIFEST_SERIALIZER.serialize(MANIFEST) == golden
    golden = (repository / "tests/golden/pulsar-published-mark-v1.json").read_bytes().strip()
    assert MARK_SERIALIZER.deserialize(golden) == PublishedMark(5)
    assert MARK_SERIALIZER.serialize(PublishedMark(5)) == golden


def test_sequence_ids_rise_with_pieces_and_none_is_0() -> None:
    """What is staged by one version may be sent again by another: the ids are part of what is stored."""
    assert [first_sequence_id(number) for number in range(3)] == [1, 4_294_967_297, 8_589_934_593]
