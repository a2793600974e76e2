"""What a decoder returns: consecutive records of one partition as columns.

Never: hold a message object. The columns own their memory; librdkafka's is given back before they are returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.enumerators.partition import TopicPartition


@dataclass(frozen=True)
class Wanted:
    """What is needed of each record; the rest is neither copied nor decoded.

    Parameters
    ----------
    keys, values, timestamps, headers
        Whether these columns are wanted. Offsets always are.
    lines
        Whether a line end is appended to each value, so that the values' memory as a whole is text in lines.
    """

    keys: bool = True
    values: bool = True
    timestamps: bool = True
    headers: bool = False
    lines: bool = False


class Records(msgspec.Struct, frozen=True):
    """Some consecutive records of one partition, in order; offsets may have gaps.

    Parameters
    ----------
    source
        The partition.
    offsets
        The records' offsets.
    keys, values
        Binary arrays with nulls; None where they are not wanted. With `Wanted.lines` each value that is not null
        ends with a line feed that is not part of it, and a null is a lone line feed under its null bit.
    timestamps_ms, timestamp_types
        Milliseconds since 1970-01-01 UTC, and Kafka's number for their kind (0 created, 1 appended, -1 none);
        None where they are not wanted.
    headers
        ``list<struct<key: string, value: binary>>``, null where a record has none; None where they are not wanted.
    parts
        Where these are the records of several partitions: those of each, in the same memory.
    """

    source: TopicPartition
    offsets: npt.NDArray[np.int64]
    keys: pa.BinaryArray | None = None
    values: pa.BinaryArray | None = None
    timestamps_ms: npt.NDArray[np.int64] | None = None
    timestamp_types: npt.NDArray[np.int32] | None = None
    headers: pa.ListArray | None = None
    parts: tuple[Records, ...] = ()

    def where(self, place: int) -> tuple[str, dict[str, Any]]:
        """Say where the record with this number is, for an error about it, and the error's facts."""
        for part in self.parts:
            if place < len(part.offsets):
                return part.where(place)
            place -= len(part.offsets)
        source, offset = self.source, int(self.offsets[place])
        name = f"at offset {offset} of partition {source.partition} of the topic {source.topic!r}"
        return name, {"topic": source.topic, "partition": source.partition, "offset": offset}

    @property
    def data_bytes(self) -> int:
        """The bytes of keys, values and headers, without what Arrow needs beside them."""
        found = 0
        for array in (self.keys, self.values):
            if array is not None:
                found += _data_bytes(array)
        if self.headers is not None:
            found += sum(map(_data_bytes, self.headers.flatten().flatten()))  # names and values
        return found

    def pieces(self, most_bytes: int) -> Iterator[Records]:
        """Cut these into pieces of about so many bytes."""
        rows = len(self.offsets)
        if rows == 0:
            return
        step = max(1, rows * most_bytes // max(1, self.data_bytes))
        for begin in range(0, rows, step):
            yield self.slice(begin, min(rows, begin + step))

    def slice(self, start: int, stop: int) -> Records:
        """Return the records numbered ``start`` to ``stop`` (not included), without a copy."""
        if start == 0 and stop == len(self.offsets):
            return self

        def part(array: pa.Array | None) -> pa.Array | None:
            return None if array is None else array.slice(start, stop - start)

        return Records(
            self.source,
            self.offsets[start:stop],
            part(self.keys),
            part(self.values),
            None if self.timestamps_ms is None else self.timestamps_ms[start:stop],
            None if self.timestamp_types is None else self.timestamp_types[start:stop],
            part(self.headers),
        )


def _data_bytes(array: pa.BinaryArray) -> int:
    _, ends, data = array.buffers()
    if data is None:
        return 0
    if array.offset == 0 and ends.size == 4 * (len(array) + 1):
        return int(data.size)
    found = np.frombuffer(ends, np.int32, len(array) + 1, 4 * array.offset)  # a part of others' memory
    return int(found[-1] - found[0])
