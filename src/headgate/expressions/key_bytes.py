"""Keys that are arrays or structs as bytes, and back: two are equal, as Spark groups them, if their bytes are.

Never: loop over values in Python, or change what the bytes of a value are, which is part of the checkpoint format.

Arrow neither groups by nested values nor compares them. As in Spark null is null within them, one NaN is any other, and
-0.0 is 0.0. A key that is null as a whole is null here, too.

A value is written level by level, from the outside, and the entries of a level follow one another: so all values of a
column are written and read at once. Each entry begins with a byte, which is 1, or 0 for null.

    level           the rest of an entry (of null: zeros)            after its last entry
    --------------  -----------------------------------------------  --------------------------------------------
    array           how many elements                                the level of all elements
    struct          nothing                                          the level of each field, one after the other
    string, binary  how many bytes                                   all these bytes
    others          the value: of booleans a byte, else as in Arrow  nothing

How many there are has four bytes, the lowest first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


def key_bytes(values: Any) -> Any:
    """Return the bytes of nested values, of the type binary; null where they are null.

    Examples
    --------
    >>> [each.hex(" ") for each in key_bytes(pa.array([[1, None], []], pa.list_(pa.int8()))).to_pylist()]
    ['01 02 00 00 00 01 01 00 00', '01 00 00 00 00']
    """
    blocks: list[Any] = []
    _write(values, np.arange(len(values) + 1), blocks)
    written = pc.binary_join_element_wise(*blocks, b"")
    return written if values.null_count == 0 else pc.if_else(values.is_valid(), written, None)


def key_value(written: Any, kind: pa.DataType) -> Any:
    """Return the values of a type that have these bytes, with one zero and one NaN.

    Examples
    --------
    >>> numbers = pa.array([[-0.0], None], pa.list_(pa.float64()))
    >>> key_value(key_bytes(numbers), numbers.type).to_pylist()
    [[0.0], None]
    """
    there = written.is_valid().to_numpy(zero_copy_only=False)
    found = _Reader(written.drop_null()).read(kind, np.ones(np.count_nonzero(there), np.int64))
    return found if there.all() else found.take(pa.array(np.cumsum(there) - 1, mask=~there))


# Writing: of each level a block, which has the bytes of each row.


def _write(values: Any, bounds: Numbers, blocks: list[Any]) -> None:
    """Add the blocks of a level and of those within; the entries of a row are between two bounds."""
    kind = values.type
    if pa.types.is_struct(kind):
        blocks.append(_entries(values, np.empty((len(values), 0), np.uint8), bounds))
        for field in values.flatten():  # null where the struct is
            _write(field, bounds, blocks)
    elif _is_list(kind):
        lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        blocks.append(_entries(values, _counts(lengths), bounds))
        _write(values.flatten(), _ends(lengths)[bounds], blocks)  # without what is below nulls
    elif _is_text(kind):
        plain = values.cast(pa.large_binary()).fill_null(b"")
        _, offsets, data = plain.buffers()
        ends = np.frombuffer(offsets, np.int64, count=plain.offset + len(plain) + 1)[plain.offset :]
        blocks.append(_entries(values, _counts(np.diff(ends)), bounds))
        blocks.append(_block(np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8), ends[bounds]))
    else:
        blocks.append(_entries(values, _fixed(values), bounds))


def _entries(values: Any, rest: Bytes, bounds: Numbers) -> Any:
    entries = np.empty((len(values), 1 + rest.shape[1]), np.uint8)
    entries[:, 0] = 1
    entries[:, 1:] = rest
    if values.null_count:
        entries[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return _block(entries.reshape(-1), bounds * entries.shape[1])


def _block(data: Bytes, bounds: Numbers) -> Any:
    offsets = bounds - bounds[0]
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[bounds[0] : bounds[-1]])]
    assert offsets[-1] < 1 << 31
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def _counts(numbers: Any) -> Bytes:
    return numbers.astype("<i4").view(np.uint8).reshape(-1, 4)  # type: ignore[no-any-return]


def _fixed(values: Any) -> Bytes:
    """Return the bytes of values of fixed width, floating point numbers with one zero and one NaN."""
    kind = values.type
    if pa.types.is_null(kind) or len(values) == 0:
        return np.empty((len(values), 0 if pa.types.is_null(kind) else _width(kind)), np.uint8)
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    width = _width(kind)
    data = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    if pa.types.is_floating(kind):
        numbers = data.view(kind.to_pandas_dtype()) + kind.to_pandas_dtype()(0)  # -0.0 becomes 0.0
        numbers[np.isnan(numbers)] = np.nan
        data = numbers.view(np.uint8)
    return data.reshape(-1, width)


# Reading.


class _Reader:
    """What is left to be read of each row."""

    def __init__(self, written: Any) -> None:
        _, offsets, data = written.buffers()
        ends = np.frombuffer(offsets, np.int32, count=written.offset + len(written) + 1) if offsets else np.zeros(1)
        self._at = ends[written.offset :][: len(written)].astype(np.int64)
        self._data: Bytes = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)

    def read(self, kind: Any, many: Numbers) -> Any:
        """Return the values of a level, of which each row has so many."""
        if pa.types.is_struct(kind):
            there, _ = self._entries(many, 0)
            return _made(kind, there, [], [self.read(field.type, many) for field in kind])
        if _is_list(kind):
            there, counts = self._entries(many, 4)
            ends = _ends(counts.view("<i4").reshape(-1))
            elements = self.read(kind.value_type, np.diff(ends[_ends(many)]))
            return _made(kind, there, [ends.astype(np.int32)], [elements])
        if _is_text(kind):
            there, counts = self._entries(many, 4)
            ends = _ends(counts.view("<i4").reshape(-1))
            return _made(kind, there, [ends.astype(np.int32), self._take(np.diff(ends[_ends(many)]))])
        if pa.types.is_null(kind):
            there, _ = self._entries(many, 0)
            return pa.nulls(len(there))
        there, values = self._entries(many, _width(kind))
        if pa.types.is_boolean(kind):
            return pa.array(values.reshape(-1).astype(bool), mask=~there)
        return _made(kind, there, [values])

    def _entries(self, many: Numbers, width: int) -> tuple[Any, Bytes]:
        """Return of each entry whether it is not null, and the rest of its bytes."""
        entries = self._take(many * (1 + width)).reshape(-1, 1 + width)
        return entries[:, 0].astype(bool), np.ascontiguousarray(entries[:, 1:])

    def _take(self, sizes: Numbers) -> Bytes:
        """Return the next bytes, so many of each row."""
        ends = np.cumsum(sizes)
        places = np.repeat(self._at - (ends - sizes), sizes) + np.arange(int(ends[-1]) if len(ends) else 0)
        self._at += sizes
        return self._data[places]


def _made(kind: pa.DataType, there: Any, buffers: list[Any], children: list[Any] | None = None) -> Any:
    validity = None if there.all() else pa.array(there).buffers()[1]
    given = [validity, *(pa.py_buffer(np.ascontiguousarray(each)) for each in buffers)]
    return pa.Array.from_buffers(kind, len(there), given, children=children)


def _ends(lengths: Any) -> Numbers:
    """Return where each of some neighbours begins, and where the last one ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _width(kind: pa.DataType) -> int:
    return max(8, int(kind.bit_width)) // 8


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
