"""Walks batches of librdkafka's messages, compiled: which partition each is of, and their columns; and produces rows.

Never: hold the GIL, or an address in the code: it could not be cached.

The functions (numba, cached on disk) get the library's functions' addresses as arguments. A batch is walked twice:
`sort` groups its messages by partition and measures them, `copy` copies those of one partition into Arrow buffers and
gives them back. Headers need two more walks, and only where they are wanted. `produce` is the way back: it walks the
rows of a batch, `note_failure` is called for those that were not delivered.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from headgate.connectors.kafka.librdkafka import Message, Part

_ERR, _TOPIC, _PARTITION, _PAYLOAD, _LEN, _KEY, _KEY_LEN, _OFFSET = (
    getattr(Message, name).offset
    for name in ("err", "topic", "partition", "payload", "len", "key", "key_len", "offset")
)
_FIRST, _SECOND = Part.first.offset, Part.second.offset
_PART_BYTES = ctypes.sizeof(Part)


def _writable_cache() -> None:
    """See that compiled functions can be kept: without it each worker process compiles them anew, for seconds.

    numba keeps them beside this file, or in the user's cache folder; where neither can be written to (a read-only
    installation, a user without a home) a folder that only this user can write to is put into the temporary one.
    """
    try:
        compiled: Callable[[Any], Any] = numba.njit(cache=True)
        compiled(_writable_cache)  # only looks for a place
    except RuntimeError:
        folder = Path(tempfile.gettempdir()) / f"headgate-numba-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.lstat()
        if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
            raise ImportError(f"{folder} can be written to by others. Set NUMBA_CACHE_DIR.") from None
        setattr(numba.config, "CACHE_DIR", str(folder))  # noqa: B010


_writable_cache()
_U64 = types.uint64
_Maker = Callable[..., tuple[Any, Any]]


def _load(bits: int) -> _Maker:
    kind: Any = ir.IntType(bits)
    result: Any = {64: types.int64, 32: types.int32, 8: types.int8}[bits]

    def load(typing: Any, address: Any) -> tuple[Any, Any]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(builder.inttoptr(arguments[0], kind.as_pointer()))

        return result(_U64), generate

    return load


def _store(typing: Any, address: Any, value: Any) -> tuple[Any, Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(_U64, types.int64), generate


def _call(result: Any, *arguments: Any) -> _Maker:
    """Make the call of a C function by its address; all its arguments are 64 bit wide."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        returned = ir.VoidType() if result is types.void else ir.IntType(result.bitwidth)
        function = ir.FunctionType(returned, [ir.IntType(64)] * len(arguments))
        value = builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])
        return context.get_dummy_value() if result is types.void else value

    if len(arguments) == 1:
        return lambda typing, address, first: (result(_U64, *arguments), generate)
    if len(arguments) == 2:
        return lambda typing, address, first, second: (result(_U64, *arguments), generate)
    if len(arguments) == 3:
        return lambda typing, address, first, second, third: (result(_U64, *arguments), generate)
    return lambda typing, address, first, second, third, fourth, fifth: (result(_U64, *arguments), generate)


def _memcpy(typing: Any, target: Any, source: Any, count: Any) -> tuple[Any, Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target, source, count = arguments
        copy: Any = cgutils.raw_memcpy
        copy(builder, builder.inttoptr(target, pointer), builder.inttoptr(source, pointer), count, 1)
        return context.get_dummy_value()

    return types.void(_U64, _U64, _U64), generate


_load64, _load32, _load8 = intrinsic(_load(64)), intrinsic(_load(32)), intrinsic(_load(8))
_store64: Any = intrinsic(_store)
_copy_bytes = intrinsic(_memcpy)
_destroy = intrinsic(_call(types.void, _U64))
_timestamp = intrinsic(_call(types.int64, _U64, _U64))
_headers = intrinsic(_call(types.int32, _U64, _U64))
_header = intrinsic(_call(types.int32, _U64, _U64, _U64, _U64, _U64))
_add_header = _header  # as many arguments, all as wide
_new_headers = intrinsic(_call(types.uint64, _U64))
_produce = intrinsic(_call(types.uint64, _U64, _U64, _U64))


def _compiled(signature: str) -> Callable[[Any], Any]:
    decorate: Callable[[Any], Any] = numba.njit(signature, cache=True, nogil=True, boundscheck=False)
    return decorate


@_compiled("int64(uint64[::1], int64, int64, uint64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def sort(messages, count, line_end, topics, partitions, counts, key_bytes, value_bytes, group_of):  # type: ignore[no-untyped-def]
    """Find the partition of each message and measure each partition; messages with an error are of none (-1)."""
    groups = 0
    group = -1
    for index in range(count):
        message = messages[index]
        if _load32(message + np.uint64(_ERR)) != 0:
            group_of[index] = -1
            continue
        topic = np.uint64(_load64(message + np.uint64(_TOPIC)))
        partition = _load32(message + np.uint64(_PARTITION))
        if group < 0 or topics[group] != topic or partitions[group] != partition:
            group = 0
            while group < groups and (topics[group] != topic or partitions[group] != partition):
                group += 1
            if group == groups:
                groups += 1
                topics[group] = topic
                partitions[group] = partition
                counts[group] = 0
                key_bytes[group] = 0
                value_bytes[group] = 0
        group_of[index] = group
        counts[group] += 1
        key_bytes[group] += _load64(message + np.uint64(_KEY_LEN))
        value_bytes[group] += _load64(message + np.uint64(_LEN)) + line_end
    return groups


@_compiled("int64(uint64[::1], int64, int64[::1], int64[::1], int64, int64[::1], uint64[::1])")
def arrange(messages, count, group_of, counts, groups, starts, arranged):  # type: ignore[no-untyped-def]
    """Put the messages of each group together, from its start on, and those with an error last: return their place."""
    starts[0] = 0
    for group in range(groups):
        starts[group + 1] = starts[group]
        if group > 0:
            starts[group + 1] += counts[group - 1]
    errors = count
    for index in range(count):
        group = group_of[index]
        if group < 0:
            errors -= 1
            arranged[errors] = messages[index]
        else:
            arranged[starts[group + 1]] = messages[index]
            starts[group + 1] += 1
    return errors


@_compiled(
    "UniTuple(int64, 2)(uint64[::1], boolean, boolean, boolean, boolean, int32[::1], uint8[::1], uint8[::1], "
    "int32[::1], uint8[::1], uint8[::1], int64[::1], int64[::1], int32[::1], uint64, uint64)"
)
def copy(  # type: ignore[no-untyped-def]
    messages, keys, values, timestamps, lines, key_ends, key_data, key_valid, value_ends, value_data, value_valid,
    offsets, times, kinds, timestamp_of, destroy,
):  # fmt: skip
    """Copy the messages of one partition into columns, and give them back, which leaves 0 of their addresses.

    Return the numbers of nulls.
    """
    kind = np.empty(1, np.int32)
    kind_at = np.uint64(kind.ctypes.data)
    key_at = np.uint64(key_data.ctypes.data)
    value_at = np.uint64(value_data.ctypes.data)
    key_end = value_end = np.int64(0)
    null_keys = null_values = 0
    for index in range(len(messages)):
        message = messages[index]
        offsets[index] = _load64(message + np.uint64(_OFFSET))
        if keys:
            pointer = np.uint64(_load64(message + np.uint64(_KEY)))
            if pointer == 0:
                null_keys += 1
            else:
                key_valid[index >> 3] |= np.uint8(1 << (index & 7))
                length = _load64(message + np.uint64(_KEY_LEN))
                _copy_bytes(key_at + np.uint64(key_end), pointer, np.uint64(length))
                key_end += length
            key_ends[index + 1] = key_end
        if values:
            pointer = np.uint64(_load64(message + np.uint64(_PAYLOAD)))
            if pointer == 0:
                null_values += 1
            else:
                value_valid[index >> 3] |= np.uint8(1 << (index & 7))
                length = _load64(message + np.uint64(_LEN))
                _copy_bytes(value_at + np.uint64(value_end), pointer, np.uint64(length))
                value_end += length
            if lines:
                value_data[value_end] = 10
                value_end += 1
            value_ends[index + 1] = value_end
        if timestamps:
            times[index] = _timestamp(timestamp_of, message, kind_at)
            kinds[index] = kind[0] - 1
        _destroy(destroy, message)
        messages[index] = 0
    return null_keys, null_values


@_compiled("int64(uint64)")
def _length(text):  # type: ignore[no-untyped-def]
    """Return the length of a C string."""
    length = 0
    while _load8(text + np.uint64(length)) != 0:
        length += 1
    return length


@_compiled("UniTuple(int64, 3)(uint64[::1], uint64[::1], int64[::1], uint64, uint64)")
def measure_headers(messages, lists, counts, headers_of, header_of):  # type: ignore[no-untyped-def]
    """Find each message's list of headers (0: none) and its length; return how many there are, and their bytes."""
    found = np.zeros(3, np.uint64)
    name_at = np.uint64(found.ctypes.data)
    total = name_bytes = value_bytes = np.int64(0)
    for index in range(len(messages)):
        lists[index] = 0
        counts[index] = 0
        if _headers(headers_of, messages[index], name_at) != 0:
            continue
        lists[index] = found[0]
        while (
            _header(
                header_of, lists[index], np.uint64(counts[index]),
                name_at, name_at + np.uint64(8), name_at + np.uint64(16),
            ) == 0
        ):  # fmt: skip
            counts[index] += 1
            name_bytes += _length(found[0])
            value_bytes += np.int64(found[2])
        total += counts[index]
    return total, name_bytes, value_bytes


@_compiled(
    "int64(uint64[::1], int64[::1], int32[::1], uint8[::1], int32[::1], uint8[::1], int32[::1], uint8[::1], "
    "uint8[::1], uint64)"
)
def copy_headers(  # type: ignore[no-untyped-def]
    lists, counts, ends, valid, name_ends, name_data, value_ends, value_data, value_valid, header_of
):  # fmt: skip
    """Copy the headers of one partition's messages into columns. Return the number of null values."""
    found = np.zeros(3, np.uint64)
    name_at = np.uint64(found.ctypes.data)
    name_end = value_end = np.int64(0)
    row = nulls = 0
    for index in range(len(lists)):
        if lists[index] != 0:
            valid[index >> 3] |= np.uint8(1 << (index & 7))
        for number in range(counts[index]):
            _header(
                header_of, lists[index], np.uint64(number), name_at, name_at + np.uint64(8), name_at + np.uint64(16)
            )
            length = np.int64(_length(found[0]))
            _copy_bytes(np.uint64(name_data.ctypes.data) + np.uint64(name_end), found[0], np.uint64(length))
            name_end += length
            name_ends[row + 1] = name_end
            if found[1] == 0:
                nulls += 1
            else:
                value_valid[row >> 3] |= np.uint8(1 << (row & 7))
                _copy_bytes(np.uint64(value_data.ctypes.data) + np.uint64(value_end), found[1], found[2])
                value_end += np.int64(found[2])
            value_ends[row + 1] = value_end
            row += 1
        ends[index + 1] = row
    return nulls


# ---- producing ----

# What `produce` gets: addresses, 0 where there is no such thing, and where each column begins. A column is four
# numbers: its bits that say which rows are not null, at which of them it begins, its ends (32 bits each), its data.
(
    _CLIENT, _PRODUCE, _NEW_HEADERS, _ADD_HEADER, _DESTROY_HEADERS, _PARTS, ROWS, TOPICS, TOPIC_OF, PARTITIONS
) = range(10)  # fmt: skip
VALUES, KEYS, LISTS, _NAMES, _HEADER_VALUES, NUMBERS = range(10, 31, 4)
_BITS, _BEGIN, _ENDS, _DATA = range(4)


@_compiled("boolean(int64[::1], int64, int64)")
def _is_there(rows, column, row):  # type: ignore[no-untyped-def]
    """Whether there is such a column, and the row is not null in it."""
    if rows[column + _ENDS] == 0:
        return False
    bits = rows[column + _BITS]
    position = rows[column + _BEGIN] + row
    return bits == 0 or (_load8(np.uint64(bits + (position >> 3))) >> (position & 7)) & 1 != 0


@_compiled("int64(int64[::1], int64, int64)")
def _end(rows, column, row):  # type: ignore[no-untyped-def]
    """Return where the row of a column begins, and the one before it ends."""
    return np.int64(_load32(np.uint64(rows[column + _ENDS] + 4 * row)))


@_compiled("void(int64[::1], int64, int64, uint64)")
def _put(rows, column, row, part):  # type: ignore[no-untyped-def]
    """Make a part of the bytes of a row; null is the address 0."""
    address = length = np.int64(0)
    if _is_there(rows, column, row):
        first = _end(rows, column, row)
        address = rows[column + _DATA] + first
        length = _end(rows, column, row + 1) - first
    _store64(part + np.uint64(_FIRST), address)
    _store64(part + np.uint64(_SECOND), length)


@_compiled("uint64(int64[::1], int64)")
def _headers_of(rows, row):  # type: ignore[no-untyped-def]
    """Return a new list of a row's headers."""
    first, after = _end(rows, LISTS, row), _end(rows, LISTS, row + 1)
    headers: Any = _new_headers(np.uint64(rows[_NEW_HEADERS]), np.uint64(after - first))
    for each in range(first, after):
        name, value, length = _end(rows, _NAMES, each), np.int64(0), np.int64(0)
        if _is_there(rows, _HEADER_VALUES, each):
            value = rows[_HEADER_VALUES + _DATA] + _end(rows, _HEADER_VALUES, each)
            length = _end(rows, _HEADER_VALUES, each + 1) - _end(rows, _HEADER_VALUES, each)
        _add_header(
            np.uint64(rows[_ADD_HEADER]), headers, np.uint64(rows[_NAMES + _DATA] + name),
            np.uint64(_end(rows, _NAMES, each + 1) - name), np.uint64(value), np.uint64(length),
        )  # fmt: skip
    return headers


@_compiled("UniTuple(int64, 2)(int64[::1], int64)")
def produce(rows, row):  # type: ignore[no-untyped-def]
    """Give rows to a client, from a row on, in their order. Return the one that it did not take, and its error.

    It is the number of rows, and the error 0, if the client took all. The parts are those of a row without headers,
    in the order topic, partition, value, key, flags, and the one of its headers, of which this sets what they hold.
    """
    parts = np.uint64(rows[_PARTS])
    while row < rows[ROWS]:
        topic, partition = rows[TOPICS], np.int64(-1)
        if rows[TOPIC_OF] != 0:
            topic += 8 * _load32(np.uint64(rows[TOPIC_OF] + 4 * row))
        if rows[PARTITIONS] != 0:
            partition = np.int64(_load32(np.uint64(rows[PARTITIONS] + 4 * row)))
        _store64(parts + np.uint64(_FIRST), _load64(np.uint64(topic)))
        _store64(parts + np.uint64(_PART_BYTES + _FIRST), partition)
        _put(rows, VALUES, row, parts + np.uint64(2 * _PART_BYTES))
        _put(rows, KEYS, row, parts + np.uint64(3 * _PART_BYTES))
        headers, count = np.uint64(0), 5
        if _is_there(rows, LISTS, row):
            headers, count = _headers_of(rows, row), 6
            _store64(parts + np.uint64(5 * _PART_BYTES + _FIRST), np.int64(headers))
        error = _produce(np.uint64(rows[_PRODUCE]), np.uint64(rows[_CLIENT]), parts, np.uint64(count))
        if error != 0:
            if headers != 0:  # they are the client's only if it took the row
                _destroy(np.uint64(rows[_DESTROY_HEADERS]), headers)
            return row, np.int64(error)
        row += 1
    return row, np.int64(0)


def _callback(signature: str) -> Callable[[Any], Any]:
    decorate: Callable[[Any], Any] = numba.cfunc(signature, cache=True)
    return decorate


@_callback("void(uint64, uint64, uint64)")
def note_failure(client, message, failure):  # type: ignore[no-untyped-def]
    """Keep the first row that was not delivered, as librdkafka's callback: its topic, partition and error.

    No code of Python runs, which an interrupt could end, and there may be a queue full of them.
    """
    if _load64(failure + np.uint64(16)) == 0:
        _store64(failure, _load64(message + np.uint64(_TOPIC)))
        _store64(failure + np.uint64(8), np.int64(_load32(message + np.uint64(_PARTITION))))
        _store64(failure + np.uint64(16), np.int64(_load32(message + np.uint64(_ERR))))
