"""Frames as bytes: in which order they leave, how they are found in what comes, and rows as messages in parts."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from headgate.protocol.data_frames import HEAD, MAX_METADATA, PREAMBLE, IllegalFrame, Kind, head
from headgate.transport import frame_queue
from headgate.transport.frame_queue import FrameQueue, OutgoingFrame
from headgate.transport.frame_reader import SHARED_BYTES, Frame, FrameReader, OtherVersion
from headgate.transport.row_messages import RowMessages


def small(name: str) -> OutgoingFrame:
    return OutgoingFrame(name.encode(), (), 100)


def large(name: str) -> OutgoingFrame:
    return OutgoingFrame(name.encode(), (), 1 << 20, is_large=True)


def names(frames: list[OutgoingFrame]) -> str:
    return " ".join(frame.head.decode() for frame in frames)


def test_small_frames_pass_large_ones_of_other_channels_which_take_turns() -> None:
    queue = FrameQueue()
    for number, name in ((1, "a"), (2, "b")):
        for each in range(3):
            queue.put(number, large(f"{name}{each}"))
    queue.put(3, small("x"))
    queue.put(1, small("barrier"))
    queue.put(0, small("hello"))
    assert [names(queue.take(1 << 20, 64)) for _ in range(7)] == [
        "hello x a0",
        "b0",
        "a1",
        "b1",
        "a2",
        "barrier b2",
        "",
    ]
    assert not queue


def test_a_channel_keeps_its_order_whatever_others_do() -> None:
    choose = random.Random(1)
    queue = FrameQueue()
    put: dict[int, list[bytes]] = {}
    taken: dict[int, list[bytes]] = {}
    for step in range(5000):
        number = choose.randrange(8)
        frame = choose.choice((small, large))(f"{number} {step}")
        queue.put(number, frame)
        put.setdefault(number, []).append(frame.head)
        if not step % 3:
            for each in queue.take(1 << 20, choose.randrange(1, 10)):
                taken.setdefault(int(each.head.split()[0]), []).append(each.head)
    while queue:
        for each in queue.take(1 << 20, 5):
            taken.setdefault(int(each.head.split()[0]), []).append(each.head)
    assert taken == put


def test_small_frames_without_end_do_not_stop_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_queue, "_MOST_PASSED", 250)
    queue = FrameQueue()
    queue.put(1, large("rows"))
    found = []
    for _ in range(10):
        queue.put(2, small("event"))
        queue.put(2, small("event"))
        found.append(names(queue.take(100, 1)))
    assert found == ["event"] * 3 + ["rows"] + ["event"] * 6


def test_what_is_taken_is_bounded_and_a_channel_can_be_forgotten() -> None:
    queue = FrameQueue()
    for each in range(10):
        queue.put(1, small(f"a{each}"))
    queue.put(2, small("b"))
    queue.put(3, large("c"))
    queue.discard(1)
    queue.discard(4)
    assert names(queue.take(100, 5)) == "b"
    for each in range(10):
        queue.put(1, small(f"{each}"))
    assert names(queue.take(250, 5)) == "0 1 2"
    assert names(queue.take(10_000, 2)) == "3 4"
    queue.discard(3)
    assert names(queue.take(10_000, 64)) == "5 6 7 8 9"
    assert not queue.take(10_000, 64) and not queue


def read(reader: FrameReader, data: bytes, sizes: random.Random | None = None) -> list[Frame]:
    """Give bytes to a reader, in pieces."""
    found = []
    while data:
        room = reader.room()
        size = min(len(room), len(data), sizes.randrange(1, 3000) if sizes else len(room))
        room[:size] = data[:size]
        data = data[size:]
        found += list(reader.take(size))
    return found


def test_frames_are_found_however_their_bytes_come() -> None:
    choose = random.Random(2)

    def some(*sizes: int) -> bytes:
        return choose.randbytes(choose.choice(sizes))

    frames = [(Kind.ROWS, number, some(0, 5, 500), some(0, 1, 9000, 200_000)) for number in range(40)]
    data = PREAMBLE + b"".join(head(kind, number, about, len(body)) + body for kind, number, about, body in frames)
    shared = memoryview(bytearray(SHARED_BYTES))
    for sizes in (None, *map(random.Random, range(5))):
        reader, other = FrameReader(shared), FrameReader(shared)
        reader.trusted = other.trusted = True
        found = []
        for at in range(0, len(data), 50_000):  # two connections of a thread use one space
            found += read(reader, data[at : at + 50_000], sizes)
            read(other, data[at : at + 777], sizes) if not at else None
        assert [(f.kind, f.number, f.metadata, f.body.to_pybytes() if f.body else b"") for f in found] == frames
        assert all(frame.body is None or frame.body.address % 64 == 0 for frame in found)


def test_a_length_is_believed_when_the_other_side_is_trusted() -> None:
    shared = memoryview(bytearray(SHARED_BYTES))
    begin = HEAD.pack(Kind.ROWS, 1, 0, 1 << 20)
    with pytest.raises(IllegalFrame, match="begins with ROWS"):
        read(FrameReader(shared), PREAMBLE + begin)
    trusted = FrameReader(shared)
    trusted.trusted = True
    assert read(trusted, PREAMBLE + begin) == []
    assert len(trusted.room()) == 1 << 20
    for odd in (HEAD.pack(Kind.ROWS, 1, MAX_METADATA + 1, 0), HEAD.pack(99, 1, 0, 0)):
        trusted = FrameReader(shared)
        trusted.trusted = True
        with pytest.raises(IllegalFrame):
            read(trusted, PREAMBLE + odd)


def test_the_first_bytes_say_who_speaks() -> None:
    shared = memoryview(bytearray(SHARED_BYTES))
    reader = FrameReader(shared)
    for each in PREAMBLE:
        assert read(reader, bytes([each])) == []
    for wrong in (b"GET /", b"headgate-date/", b"h\x00"):
        with pytest.raises(IllegalFrame):
            read(FrameReader(shared), wrong)
    with pytest.raises(OtherVersion, match="version 7"):
        read(FrameReader(shared), PREAMBLE[:-1] + b"\x07")


def test_a_reader_that_is_deaf_drops_what_comes() -> None:
    reader = FrameReader(memoryview(bytearray(SHARED_BYTES)))
    reader.is_deaf = True
    assert read(reader, b"\xff" * 200_000) == []


def test_a_reader_that_a_frame_makes_deaf_drops_what_came_with_it() -> None:
    """A connection is refused by its HELLO, with which the first channels' OPEN often comes in one piece."""
    reader = FrameReader(memoryview(bytearray(SHARED_BYTES)))
    data = PREAMBLE + head(Kind.HELLO, 0, b"", 0) + head(Kind.OPEN, 1, b"", 1 << 20) + b"schema"
    reader.room()[: len(data)] = data
    frames = reader.take(len(data))
    assert next(frames).kind is Kind.HELLO
    reader.is_deaf = True
    assert list(frames) == [] and read(reader, b"\xff" * 200_000) == []


SCHEMA = pa.schema({"n": pa.int64(), "t": pa.string(), "l": pa.list_(pa.int32())})


@pytest.mark.parametrize("rows", [0, 3, 10_000, 100_000])
def test_rows_in_parts_are_the_message_that_arrow_serializes(rows: int) -> None:
    batch = pa.record_batch(
        [
            pa.array([None if each % 3 == 0 else each for each in range(rows)], pa.int64()),
            pa.array(["é" * (each % 4) for each in range(rows)]),
            pa.array([[each, None] for each in range(rows)], pa.list_(pa.int32())),
        ],
        schema=SCHEMA,
    )
    messages = RowMessages(SCHEMA)
    for part in (batch, batch.slice(rows // 3), batch.slice(0, rows // 2), batch):
        parts = messages.parts(part, part.nbytes)
        assert b"".join(bytes(memoryview(each).cast("B")) for each in parts) == part.serialize().to_pybytes()


def test_large_columns_are_not_copied() -> None:
    batch = pa.record_batch([pa.array(range(100_000), pa.int64())], names=["n"])
    addresses = {
        each.address for each in RowMessages(batch.schema).parts(batch, batch.nbytes) if isinstance(each, pa.Buffer)
    }
    assert batch.column(0).buffers()[1].address in addresses
