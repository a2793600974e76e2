"""Bytes of manifests: every version is read for ever, damage is named, and other people's JSON stays readable."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.checkpoint.manifest import HEADER_BYTES, Manifest, SourceEntry, UncommittedEpoch, deserialize, run_of
from headgate.checkpoint.manifest import serialize as written
from headgate.errors import CorruptStateError, InternalError, UnsupportedVersionError
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import (
    ChannelState,
    ChunkState,
    FileState,
    FinishedSplit,
    InFlightRows,
    InlineState,
    KeyedState,
    OperatorState,
    ReaderState,
    SplitState,
    StateHandle,
    SubtaskState,
)

VERSION_1 = Manifest(
    checkpoint_id=17,
    epoch=9,
    kind=CheckpointKind.SAVEPOINT,
    query_id="0b6cdd14-bd0b-4d65-a44b-9b6c5a6f0a0d",
    run=3,
    created_ms=1_790_000_000_000,
    parallelism=2,
    max_parallelism=128,
    sources={
        "rides": SourceEntry(
            name="headgate.kafka",
            enumerator=InlineState(b'{"assigned":["rides-0"],"v":1}'),
            fixed={"subscribe": ["rides"], "minPartitions": None},
        ),
        "big": SourceEntry(name="headgate.files", enumerator=FileState("chk-17/enumerator-1-big", 70_000, 7)),
    },
    stages=(("rides", "big", "parse", "sink"),),
    subtasks=(
        (
            SubtaskState(
                readers={
                    "rides": ReaderState(
                        splits=(SplitState("rides-0", '{"position":5,"topic":"Straße","v":1}'.encode()),),
                        finished=(FinishedSplit("rides-1", 2),),
                    )
                },
                operators={"parse": OperatorState(items=(InlineState(b"\x80pickle"), FileState("chk-17/parse", 9, 8)))},
            ),
            SubtaskState(input_ended=True),
        ),
    ),
    commits={"sink": (b'{"file":"a"}', b"\x80bytes")},
    uncommitted=(UncommittedEpoch(8, {"sink": (b"",)}),),
)


VERSION_2 = msgspec.structs.replace(
    VERSION_1,
    stages=(("rides", "big", "parse"), ("window", "sink")),
    subtasks=(
        *VERSION_1.subtasks,
        (
            SubtaskState(
                keyed={
                    "window": KeyedState(
                        chunks=(
                            ChunkState(
                                chunk_id="window/3/0/1",
                                handle=FileState("shared/window/window%2F3%2F0%2F1", 9_000, 12),
                                first_key_group=0,
                                last_key_group=63,
                            ),
                            ChunkState(
                                chunk_id="window/3/0/2",
                                handle=InlineState(b"\xff"),
                                first_key_group=5,
                                last_key_group=5,
                            ),
                        )
                    )
                }
            ),
            SubtaskState(),
        ),
    ),
    exchanges={
        "by-user": ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1),
        "spread": ExchangePlan(kind="rebalance", producer_stage=0, consumer_stage=1, targets=3),
    },
    signatures={"by-user": "by user string"},
    channels=(
        ChannelState(
            exchange="by-user",
            producer=0,
            consumer=1,
            output=True,
            handle=FileState("chk-17/by-user-0-1-output-3-0-1", 400, 13),
            buffers=2,
            rows=10,
            size_bytes=380,
        ),
    ),
    channels_parallelism=2,
)


def by_user(
    producer: int, consumer: int, handle: StateHandle, *, output: bool, relocated: bool = False
) -> ChannelState:
    return ChannelState(
        exchange="by-user", producer=producer, consumer=consumer, output=output, handle=handle, buffers=2, rows=10,
        size_bytes=380, relocated=relocated,
    )  # fmt: skip


VERSION_3 = msgspec.structs.replace(
    VERSION_2,
    channels=(
        by_user(0, 0, FileState("chk-17/0-3-output-0-w", 400, 13, 0), output=True),
        by_user(0, 1, FileState("chk-17/0-3-output-0-w", 300, 14, 400), output=True),
        by_user(1, 0, InlineState(b"\xff\xff\xff\xff"), output=False),
        by_user(0, 1, FileState("chk-17/1-3-input-w", 500, 15, 0), output=False, relocated=True),
        by_user(1, 1, FileState("chk-17/whole", 500, 15), output=False),
    ),
)


def test_version_1_is_read_as_ever(repository: Path) -> None:
    golden = (repository / "tests/golden/manifest-v1").read_bytes()
    assert deserialize(golden, "m") == VERSION_1
    assert run_of(golden[:HEADER_BYTES], "m") == 3


def test_version_2_is_read_as_ever(repository: Path) -> None:
    golden = (repository / "tests/golden/manifest-v2").read_bytes()
    assert deserialize(golden, "m") == VERSION_2
    assert run_of(golden[:HEADER_BYTES], "m") == 3


def test_version_3_is_read_as_ever(repository: Path) -> None:
    golden = (repository / "tests/golden/manifest-v3").read_bytes()
    assert deserialize(golden, "m") == VERSION_3
    assert run_of(golden[:HEADER_BYTES], "m") == 3


def in_flight(handle: StateHandle) -> InFlightRows:
    return InFlightRows(handle=handle, buffers=2, rows=30, size_bytes=700)


VERSION_4 = msgspec.structs.replace(
    VERSION_3,
    sources={
        uid: msgspec.structs.replace(
            entry,
            unassigned=(
                SplitState("rides-4", b"{}", in_flight(FileState("shared/rides/in-flight-16-0-3-source-0-w", 90, 16))),
            ),
        )
        for uid, entry in VERSION_3.sources.items()
    },
    subtasks=(
        (
            SubtaskState(
                readers={
                    "rides": ReaderState(
                        splits=(
                            SplitState("rides-0", b'{"v":1}', in_flight(FileState("chk-17/0-3-source-0-w", 90, 16, 0))),
                            SplitState("rides-1", b"\xff", in_flight(InlineState(b"\xff")), ended=True),
                            SplitState("rides-2", b"{}", ended=True),
                            SplitState("rides-3", b"{}"),
                        )
                    )
                }
            ),
            SubtaskState(),
        ),
        *VERSION_3.subtasks[1:],
    ),
)


def test_version_4_is_read_and_written_as_ever(repository: Path) -> None:
    golden = (repository / "tests/golden/manifest-v4").read_bytes()
    assert deserialize(golden, "m") == VERSION_4
    assert written(VERSION_4) == golden
    assert run_of(golden[:HEADER_BYTES], "m") == 3
    assert sum(each.rows for each in VERSION_4.in_flight) == 5 * 10 + (2 + len(VERSION_4.sources)) * 30


def test_a_person_can_read_it() -> None:
    body = json.loads(written(VERSION_1).partition(b"\n")[2])
    reader = body["subtasks"][0][0]["readers"]["rides"]
    assert reader["splits"]["rides-0"] == {"position": 5, "topic": "Straße", "v": 1}
    assert body["sources"]["rides"]["enumerator"]["data"]["assigned"] == ["rides-0"]


@given(st.binary() | st.sampled_from([b"{}", b'{"a": "\xff"}', b"{} ", b'"text"', b"[1]", b"{}{}", b'{"a":1,"a":1}']))
def test_any_bytes_come_back_to_the_byte(data: bytes) -> None:
    manifest = msgspec.structs.replace(VERSION_1, commits={"sink": (data,)})
    assert deserialize(written(manifest), "m").commits == {"sink": (data,)}


def test_a_field_that_old_manifests_lack_is_written_only_where_it_says_something() -> None:
    """So that the bytes of all others stay what they were."""
    manifest = msgspec.structs.replace(
        VERSION_2, channels=tuple(msgspec.structs.replace(each, relocated=True) for each in VERSION_2.channels)
    )
    assert deserialize(written(manifest), "m") == manifest != VERSION_2
    assert b"relocated" in written(manifest) and b"relocated" not in written(VERSION_2)


def test_damage_anywhere_is_an_error_that_names_the_file() -> None:
    data = written(VERSION_4)
    for end in (0, 1, 40, len(data) // 2, len(data) - 1):
        with pytest.raises(CorruptStateError, match="chk-17/_metadata"):
            deserialize(data[:end], "chk-17/_metadata")
    for at in range(0, len(data), 7):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if not changed.startswith(b"headgate-manifest v=4 run=") or at in range(26, data.index(b" bytes")):
            continue  # the run is for ordering: it is in the body, too
        with pytest.raises(CorruptStateError, match="m/_metadata"):
            deserialize(changed, "m/_metadata")
    with pytest.raises(CorruptStateError, match="promises"):
        deserialize(data + b" ", "m")


def test_another_version_is_refused() -> None:
    data = written(VERSION_1).replace(b"v=4 ", b"v=5 ", 1)
    with pytest.raises(UnsupportedVersionError, match="m has version 5"):
        deserialize(data, "m")


def test_a_split_twice_in_a_reader_is_a_bug() -> None:
    splits = (SplitState("a", b"{}"), SplitState("a", b"{}"))
    state = SubtaskState(readers={"rides": ReaderState(splits=splits)})
    with pytest.raises(InternalError, match="twice"):
        written(msgspec.structs.replace(VERSION_1, subtasks=((state,),)))
