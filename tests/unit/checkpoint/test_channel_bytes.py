"""Channel state as bytes: what was written comes back, and nothing else is taken for it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.checkpoint.channel_bytes import channel_chunks, read_channel, read_split, split_chunks
from headgate.errors import CorruptStateError, InternalError, StoredStateError, UnsupportedVersionError
from headgate.protocol.channels import ChannelId

GOLDEN = Path(__file__).parents[2] / "golden/channel-state-v1.arrows"
GOLDEN_SPLIT = GOLDEN.with_name("rows-in-flight-v1.arrows")
CHANNEL = ChannelId("keys", 3, 1)
SCHEMA = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),
        ("amount", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", tz="UTC")),
    ],
    metadata={"owner": "somebody else"},
)


def batch(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.record_batch(
        [
            [f"user {each}" for each in numbers],
            [Decimal(each) / 4 if each % 3 else None for each in numbers],
            [[str(each)] * (each % 3) if each % 4 else None for each in numbers],
            list(numbers),
        ],
        schema=SCHEMA,
    )


BATCHES = [batch(0, 5), batch(5, 0), batch(5, 3)]


def write_channel(channel: ChannelId, schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, output: bool) -> bytes:
    rows = sum(each.num_rows for each in batches)
    return b"".join(channel_chunks(channel, schema, batches, buffers=len(batches), rows=rows, output=output))


def read(data: bytes, channel: ChannelId = CHANNEL, *, output: bool = False) -> list[pa.RecordBatch]:
    return list(read_channel(data, channel, output=output))


def test_buffers_come_back_one_by_one() -> None:
    """Every buffer, empty ones too, with the schema of the exchange and nothing added to it."""
    found = read(write_channel(CHANNEL, SCHEMA, BATCHES, output=False))
    assert found == BATCHES
    assert all(each.schema.equals(SCHEMA, check_metadata=True) for each in found)


def test_the_golden_bytes_are_read() -> None:
    """Bytes of version 1, as they were first written, for ever."""
    assert read(GOLDEN.read_bytes()) == BATCHES


def test_of_slices_only_their_own_rows_are_written() -> None:
    """A buffer that is a part of a large batch does not take the rest of it into the checkpoint."""
    large = batch(0, 20_000)
    data = write_channel(CHANNEL, SCHEMA, [large.slice(7_777, 10)], output=False)
    assert len(data) < 3_000
    assert read(data) == [large.slice(7_777, 10)]


def test_a_buffer_holds_only_its_own_memory() -> None:
    """Whoever keeps one of many buffers does not keep all bytes of the channel."""
    data = write_channel(CHANNEL, SCHEMA, [batch(0, 1_000) for _ in range(10)], output=False)
    held = next(read_channel(data, CHANNEL, output=False))
    own = {buffer.size for column in held.columns for buffer in column.buffers() if buffer}
    assert held.get_total_buffer_size() < len(data) / 8 and max(own) < len(data) / 8
    base = next(buffer for buffer in held.column(0).buffers() if buffer)
    while base.parent is not None:
        base = base.parent
    assert base.size < len(data) / 8


def test_it_is_read_lazily() -> None:
    """The first buffers of a channel whose end is missing are there before that is found out."""
    data = write_channel(CHANNEL, SCHEMA, BATCHES, output=False)
    batches = read_channel(data[:-300], CHANNEL, output=False)
    assert next(batches) == BATCHES[0]
    with pytest.raises(CorruptStateError, match=r"'keys' from subtask 3 to 1.*after 2 of 3 buffers"):
        list(itertools.islice(batches, 3))


@pytest.mark.parametrize(
    ("channel", "output"),
    [
        (ChannelId("other", 3, 1), False),
        (ChannelId("keys", 1, 3), False),
        (ChannelId("keys", 3, 2), False),
        (CHANNEL, True),
    ],
)
def test_another_channel_is_refused(channel: ChannelId, output: bool) -> None:
    """The error names both what was wanted and what was found."""
    data = write_channel(CHANNEL, SCHEMA, BATCHES, output=False)
    with pytest.raises(CorruptStateError, match="The input state of channel 'keys' from subtask 3 to 1") as caught:
        read(data, channel, output=output)
    assert f"channel {channel.exchange!r} from subtask {channel.producer}" in str(caught.value)


def test_both_sides_are_distinguished() -> None:
    """Output is output."""
    assert read(write_channel(CHANNEL, SCHEMA, BATCHES, output=True), output=True) == BATCHES


def test_another_version_is_refused() -> None:
    """It is named, as is the channel."""
    data = write_channel(CHANNEL, SCHEMA, BATCHES, output=False)
    assert data.count(b'"v":1}') == 1
    with pytest.raises(UnsupportedVersionError, match="'keys' from subtask 3 to 1 has version 9") as caught:
        read(data.replace(b'"v":1}', b'"v":9}'))
    assert caught.value.facts["expected"] == 1


def test_whatever_is_cut_off_is_found_out() -> None:
    """No prefix is taken for the whole, not even one that ends with a buffer."""
    data = write_channel(CHANNEL, SCHEMA, BATCHES, output=False)
    for length in range(len(data) - 8):  # the last eight bytes are the stream's own end
        with pytest.raises(CorruptStateError, match="'keys' from subtask 3 to 1"):
            read(data[:length])


def test_whatever_byte_is_changed_no_other_error_comes() -> None:
    """Changed rows are for the storage's checksum to find; the rest is damage that names the channel."""
    data = write_channel(CHANNEL, SCHEMA, BATCHES, output=False)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0xA5
        with contextlib.suppress(StoredStateError):
            read(bytes(changed))


@pytest.mark.parametrize("data", [b"", b"not Arrow at all, but rather long", b"x" * 400])
def test_other_bytes_are_refused(data: bytes) -> None:
    """As damaged, by the channel's name."""
    with pytest.raises(CorruptStateError, match="'keys' from subtask 3 to 1"):
        read(data)


def test_a_stream_that_names_no_channel_is_refused() -> None:
    """Arrow data of somebody else."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(BATCHES[0])
    with pytest.raises(CorruptStateError, match="do not name a channel"):
        read(sink.getvalue().to_pybytes())


def test_rows_of_a_split_come_back_and_another_splits_are_refused() -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())], metadata={"of": "the source"})
    whole = pa.record_batch([list(range(100)), ["x" * 50] * 99 + [None]], schema=schema)
    batches = [whole.slice(90), whole.slice(0, 0), whole.slice(3, 2)]
    data = b"".join(split_chunks("rides", "rides-0", schema, batches, buffers=3, rows=12))
    assert len(data) < 4_000, "of a slice only its own rows are written"
    read = list(read_split(data, "rides", "rides-0"))
    assert read == batches and read[0].schema.metadata == schema.metadata
    for source, split_id in (("rides", "rides-1"), ("other", "rides-0")):
        with pytest.raises(CorruptStateError, match="found The rows in flight of split 'rides-0' of source 'rides'"):
            read_split(data, source, split_id)
    with pytest.raises(CorruptStateError, match="do not name a channel"):
        read_channel(data, ChannelId("rides", 0, 0), output=False)
    with pytest.raises(CorruptStateError, match="expected 3 buffers with 13 rows"):
        list(read_split(b"".join(split_chunks("rides", "a", schema, batches, buffers=3, rows=13)), "rides", "a"))


def test_rows_of_another_schema_are_not_written() -> None:
    """Their bytes would be read as those of the exchange's columns."""
    other = pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())})
    with pytest.raises(InternalError, match="Rows of another schema are to be stored: n: int64 instead of n: int32"):
        write_channel(CHANNEL, pa.schema({"n": pa.int32()}), [other], output=True)


def test_the_golden_bytes_of_a_split_are_read() -> None:
    (batch,) = read_split(GOLDEN_SPLIT.read_bytes(), "rides", "rides-0")
    assert batch.to_pydict() == {"n": [1, None], "items": [["a", None], []]}
