"""Offsets of every version that was ever written can still be read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headgate.microbatch.offsets import Offset, SplitInProgress, offset_serializer

GOLDEN = Path(__file__).parents[2] / "golden"

VERSION_1 = Offset(
    source="headgate.files",
    options={"fileFormat": "csv"},
    number=3,
    enumerator={"v": 1, "seen": []},
    splits=[SplitInProgress(split={"v": 1, "split_id": "a", "stop": 9}, then={"v": 1, "split_id": "a", "stop": None})],
    plan=[{"v": 1, "split_id": "a", "stop": 4}],
    state_id="0123",
)


def test_version_1_is_read_and_written_as_it_was() -> None:
    golden = (GOLDEN / "offset-v1.json").read_bytes()
    assert offset_serializer.deserialize(golden) == VERSION_1
    assert offset_serializer.serialize(VERSION_1) == golden


def test_grouping_was_added_to_version_1() -> None:
    """Left out, it is as in offsets of 0.1.0; an older Headgate would ignore it."""
    golden = (GOLDEN / "offset-v1-grouping.json").read_bytes()
    with_grouping = msgspec.structs.replace(VERSION_1, grouping={"cores": 2})
    assert offset_serializer.deserialize(golden) == with_grouping
    assert offset_serializer.serialize(with_grouping) == golden


def test_event_times_were_added_to_version_1() -> None:
    """Left out in queries that are not aligned; a hint only, which an older Headgate may ignore."""
    golden = (GOLDEN / "offset-v1-event-times.json").read_bytes()
    aligned = msgspec.structs.replace(VERSION_1, grouping={"cores": 2}, event_times={"a": 1_700_000_000_000, "b": -5})
    assert offset_serializer.deserialize(golden) == aligned
    assert offset_serializer.serialize(aligned) == golden
