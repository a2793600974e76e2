"""Decodes whole batches of messages by librdkafka's C interface: the one place that knows memory layouts.

Never: use a library that was not checked (`check_library` says why not, and `plain` does the work then), or keep a
message after its columns are made.

The library is the one inside confluent-kafka's wheel, its clients are made here: confluent-kafka's own ``Consumer``
cannot be used, because its callbacks crash when librdkafka calls them outside of its own methods (a deleted topic is
enough). All that is relied on is librdkafka's public interface, whose ABI the ``.so.1`` in its name fixes: the struct
``rd_kafka_message_t`` and the functions of `_FUNCTIONS`.

The compiled functions (numba, cached on disk, without the GIL) get the library's functions' addresses as arguments: an
address in the code could not be cached. A batch is walked twice: `_sort` groups its messages by partition and measures
them, `_copy` copies the messages of one partition into Arrow buffers of their own and gives them back. Headers need two
more walks, and only where they are wanted.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from headgate.connectors.kafka.consumer import HEADERS, ClientEvent, Consumed, Pace, client_log
from headgate.connectors.kafka.records import Records, Wanted
from headgate.enumerators.partition import TopicPartition
from headgate.errors import SourceError

OLDEST, NEWEST = 0x02080000, 0x03000000
"""Versions of librdkafka: from, and below."""
MOST_MESSAGES = 50_000
"""The most messages in one batch."""
_MOST_BYTES = 2**31 - 1
_LOOK_MS = 500
_SLEEP_S = 0.001


class _Message(ctypes.Structure):
    """``rd_kafka_message_t``; the compiled functions have its offsets below."""

    _fields_ = [
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    ]


_ERR, _TOPIC, _PARTITION, _PAYLOAD, _LEN, _KEY, _KEY_LEN, _OFFSET = (
    getattr(_Message, name).offset
    for name in ("err", "topic", "partition", "payload", "len", "key", "key_len", "offset")
)


class _Assigned(ctypes.Structure):
    """The beginning of ``rd_kafka_topic_partition_t``."""

    _fields_ = [("topic", c_char_p), ("partition", c_int32), ("offset", c_int64)]


class _MetadataTopic(ctypes.Structure):
    """``rd_kafka_metadata_topic_t``."""

    _fields_ = [("topic", c_char_p), ("partition_count", c_int), ("partitions", c_void_p), ("err", c_int)]


class _Metadata(ctypes.Structure):
    """The beginning of ``rd_kafka_metadata_t``."""

    _fields_ = [
        ("broker_count", c_int),
        ("brokers", c_void_p),
        ("topic_count", c_int),
        ("topics", POINTER(_MetadataTopic)),
    ]


_OnError = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
_OnLog = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_assign": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_conf_destroy": (None, [c_void_p]),
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_conf_set_error_cb": (None, [c_void_p, _OnError]),
    "rd_kafka_conf_set_log_cb": (None, [c_void_p, _OnLog]),
    "rd_kafka_consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
    "rd_kafka_destroy_flags": (None, [c_void_p, c_int]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_error_code": (c_int, [c_void_p]),
    "rd_kafka_error_destroy": (None, [c_void_p]),
    "rd_kafka_error_string": (c_char_p, [c_void_p]),
    "rd_kafka_get_watermark_offsets": (c_int, [c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64)]),
    "rd_kafka_header_get_all": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "rd_kafka_incremental_assign": (c_void_p, [c_void_p, c_void_p]),
    "rd_kafka_incremental_unassign": (c_void_p, [c_void_p, c_void_p]),
    "rd_kafka_message_destroy": (None, [c_void_p]),
    "rd_kafka_message_headers": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_message_timestamp": (c_int64, [c_void_p, c_void_p]),
    "rd_kafka_metadata": (c_int, [c_void_p, c_int, c_void_p, POINTER(POINTER(_Metadata)), c_int]),
    "rd_kafka_metadata_destroy": (None, [c_void_p]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_poll_set_consumer": (c_int, [c_void_p]),
    "rd_kafka_query_watermark_offsets": (
        c_int, [c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int]
    ),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_queue_get_consumer": (c_void_p, [c_void_p]),
    "rd_kafka_queue_yield": (None, [c_void_p]),
    "rd_kafka_set_log_queue": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_topic_name": (c_char_p, [c_void_p]),
    "rd_kafka_topic_partition_list_add": (POINTER(_Assigned), [c_void_p, c_char_p, c_int32]),
    "rd_kafka_topic_partition_list_destroy": (None, [c_void_p]),
    "rd_kafka_topic_partition_list_new": (c_void_p, [c_int]),
    "rd_kafka_version": (c_int, []),
}  # fmt: skip
_CONSUMER, _WITHOUT_CLOSE = 1, 0x8


def check_library() -> None:
    """Raise an ImportError that says why, if bulk decoding cannot be used with what is installed here."""
    _library()


@functools.cache
def _library() -> Any:
    import confluent_kafka

    home = Path(confluent_kafka.__file__).parent
    found = sorted(
        [*home.parent.glob("confluent_kafka.libs/librdkafka-*.so*"), *home.glob(".dylibs/librdkafka*.dylib")]
    )
    if len(found) != 1:
        raise ImportError(f"confluent-kafka in {home.parent} does not have its own librdkafka")
    return _typed(ctypes.CDLL(str(found[0])))


def _typed(library: Any) -> Any:
    """Declare the functions of a library whose version is known."""
    library.rd_kafka_version.restype = c_int
    version = library.rd_kafka_version()
    if not OLDEST <= version < NEWEST or ctypes.sizeof(c_void_p) != 8:
        raise ImportError(f"librdkafka {version:#010x} is not one whose interface is known")
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


# ---- compiled ----


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
_copy_bytes = intrinsic(_memcpy)
_destroy = intrinsic(_call(types.void, _U64))
_timestamp = intrinsic(_call(types.int64, _U64, _U64))
_headers = intrinsic(_call(types.int32, _U64, _U64))
_header = intrinsic(_call(types.int32, _U64, _U64, _U64, _U64, _U64))


def _compiled(signature: str) -> Callable[[Any], Any]:
    decorate: Callable[[Any], Any] = numba.njit(signature, cache=True, nogil=True, boundscheck=False)
    return decorate


@_compiled("int64(uint64[::1], int64, int64, uint64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def _sort(messages, count, line_end, topics, partitions, counts, key_bytes, value_bytes, group_of):  # type: ignore[no-untyped-def]
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


@_compiled("int64(uint64[::1], int64, int64[::1], int64[::1], uint64[::1])")
def _arrange(messages, count, group_of, starts, arranged):  # type: ignore[no-untyped-def]
    """Put the messages of each group together; those with an error last."""
    errors = len(arranged)
    for index in range(count):
        group = group_of[index]
        if group < 0:
            errors -= 1
            arranged[errors] = messages[index]
        else:
            arranged[starts[group]] = messages[index]
            starts[group] += 1
    return errors


@_compiled(
    "UniTuple(int64, 2)(uint64[::1], boolean, boolean, boolean, boolean, int32[::1], uint8[::1], uint8[::1], "
    "int32[::1], uint8[::1], uint8[::1], int64[::1], int64[::1], int32[::1], uint64, uint64)"
)
def _copy(  # type: ignore[no-untyped-def]
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
def _measure_headers(messages, lists, counts, headers_of, header_of):  # type: ignore[no-untyped-def]
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
def _copy_headers(  # type: ignore[no-untyped-def]
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


# ---- columns of a batch ----

_NO_ENDS, _NO_BYTES = np.empty(0, np.int32), np.empty(0, np.uint8)


def _binary(rows: int, data_bytes: int, wanted: bool = True) -> tuple[Any, Any, Any]:
    """Return empty buffers of a binary array: ends, data, and bits that say which are not null."""
    if not wanted:
        return _NO_ENDS, _NO_BYTES, _NO_BYTES
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    return ends, np.empty(data_bytes, np.uint8), np.zeros((rows + 7) // 8, np.uint8)


def _array(kind: pa.DataType, buffers: tuple[Any, Any, Any], nulls: int) -> Any:
    ends, data, valid = buffers
    bits = pa.py_buffer(valid) if nulls else None
    return pa.Array.from_buffers(kind, len(ends) - 1, [bits, pa.py_buffer(ends), pa.py_buffer(data)], nulls)


def _check_size(source: TopicPartition, *sizes: int) -> None:
    if max(sizes) > _MOST_BYTES:
        raise SourceError(
            f"Kafka's client had {max(sizes)} bytes of {source} at once; a column holds 2 GiB. "
            "Lower kafka.queued.max.messages.kbytes.",
            source="kafka",
        )


def _text(given: bytes | None) -> str:
    return (given or b"").decode(errors="replace")


class BulkConsumer:
    """A client of librdkafka that reads the partitions it is given and returns records as columns. A `KafkaConsumer`.

    Parameters
    ----------
    settings
        librdkafka's settings.

    Raises
    ------
    ValueError
        librdkafka refuses the settings.
    """

    def __init__(self, settings: Mapping[str, str | int | bool]) -> None:
        self._library = _library()
        self._topics: set[str] = set()  # whose leaders it knows, or looks for
        self._events: list[ClientEvent] = []
        self._pace = Pace()
        # librdkafka calls these in `consume` only, on its thread; ctypes takes the GIL for them.
        self._callbacks = (_OnError(self._on_error), _OnLog(_on_log))
        self._client = self._connect({**settings, "log.queue": True})
        self._library.rd_kafka_set_log_queue(self._client, None)
        self._library.rd_kafka_poll_set_consumer(self._client)
        self._lock = threading.Lock()
        # Guarded by _lock, against a wake_up while it is closed:
        self._queue: int | None = self._library.rd_kafka_queue_get_consumer(self._client)
        self._messages = np.empty(MOST_MESSAGES, np.uint64)
        self._arranged = np.empty(MOST_MESSAGES, np.uint64)
        self._group_of = np.empty(MOST_MESSAGES, np.int64)
        self._tables = tuple(
            np.empty(MOST_MESSAGES, kind) for kind in (np.uint64, np.int32, np.int64, np.int64, np.int64)
        )
        address = {name: ctypes.cast(getattr(self._library, name), c_void_p).value or 0 for name in _FUNCTIONS}
        self._timestamp_of = np.uint64(address["rd_kafka_message_timestamp"])
        self._destroy = np.uint64(address["rd_kafka_message_destroy"])
        self._headers_of = np.uint64(address["rd_kafka_message_headers"])
        self._header_of = np.uint64(address["rd_kafka_header_get_all"])

    def _connect(self, settings: Mapping[str, str | int | bool]) -> int:
        library, reason = self._library, ctypes.create_string_buffer(512)
        conf = library.rd_kafka_conf_new()
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if library.rd_kafka_conf_set(conf, name.encode(), text.encode(), reason, len(reason)) != 0:
                library.rd_kafka_conf_destroy(conf)
                raise ValueError(_text(reason.value))
        on_error, on_log = self._callbacks
        library.rd_kafka_conf_set_error_cb(conf, on_error)
        library.rd_kafka_conf_set_log_cb(conf, on_log)
        client: int | None = library.rd_kafka_new(_CONSUMER, conf, reason, len(reason))
        if client is None:
            library.rd_kafka_conf_destroy(conf)
            raise ValueError(_text(reason.value))
        return client

    def _on_error(self, client: int, code: int, text: bytes | None, opaque: int) -> None:
        self._events.append(ClientEvent(code, _text(text)))

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions as well, from these offsets on. Waits half a second for brokers at most."""
        self._change("rd_kafka_incremental_assign", positions)
        topics = {source.topic for source in positions}
        if self._topics and not topics <= self._topics:
            # A client that is connected looks for the leaders of new topics but once a second. Ask now, for all that
            # it reads; if there is no answer, it goes on looking.
            answer = POINTER(_Metadata)()
            if self._library.rd_kafka_metadata(self._client, 0, None, ctypes.byref(answer), _LOOK_MS) == 0:
                self._library.rd_kafka_metadata_destroy(answer)
        self._topics |= topics

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        """Read these partitions no longer: nothing of them comes from here on."""
        self._change("rd_kafka_incremental_unassign", dict.fromkeys(sources, 0))

    def _change(self, function: str, positions: Mapping[TopicPartition, int]) -> None:
        if not positions:
            return
        library = self._library
        listed = library.rd_kafka_topic_partition_list_new(len(positions))
        try:
            for source, offset in positions.items():
                added = library.rd_kafka_topic_partition_list_add(listed, source.topic.encode(), source.partition)
                added.contents.offset = offset
            error = getattr(library, function)(self._client, listed)
        finally:
            library.rd_kafka_topic_partition_list_destroy(listed)
        if error:
            text = _text(library.rd_kafka_error_string(error))
            library.rd_kafka_error_destroy(error)
            raise SourceError(f"The Kafka client refuses to read {', '.join(map(str, positions))}: {text}")

    def consume(self, wanted: Wanted, at_most: int, timeout_ms: int) -> Consumed:
        """Return up to ``at_most`` messages; blocks until the first comes, or nothing does within the time."""
        consume, at = self._library.rd_kafka_consume_batch_queue, self._messages.ctypes.data
        count = consume(self._queue, timeout_ms, at, 1)
        at_most = min(at_most, MOST_MESSAGES)
        if 0 < count < at_most:
            linger_s = self._pace.linger_s(time.monotonic())
            if linger_s <= _SLEEP_S:
                time.sleep(linger_s)  # the client's own waits are whole milliseconds
                linger_s = 0
            count += max(0, consume(self._queue, math.ceil(1000 * linger_s), at + 8 * count, at_most - count))
            self._pace.given_out(count, time.monotonic())
        records = self._records_or_nothing_left(count, wanted) if count > 0 else []
        events, self._events = self._events, []
        return Consumed(records, events)

    def _records_or_nothing_left(self, count: int, wanted: Wanted) -> list[Records]:
        """Return the records; on an error give all messages back: with one that is left, `close` would never return."""
        arranged = self._arranged[:count]
        arranged[:] = self._messages[:count]
        try:
            return self._records(count, wanted, arranged)
        except BaseException:
            for message in arranged:
                if message:
                    self._library.rd_kafka_message_destroy(int(message))
            raise

    def _records(self, count: int, wanted: Wanted, arranged: npt.NDArray[np.uint64]) -> list[Records]:
        topics, partitions, counts, key_bytes, value_bytes = self._tables
        groups = _sort(
            self._messages, count, int(wanted.lines), topics, partitions, counts, key_bytes, value_bytes,
            self._group_of,
        )  # fmt: skip
        starts = np.zeros(groups + 1, np.int64)
        np.cumsum(counts[:groups], out=starts[1:])
        errors = _arrange(self._messages, count, self._group_of, starts.copy(), arranged)
        records = [
            self._columns(
                TopicPartition(_text(self._library.rd_kafka_topic_name(int(topics[group]))), int(partitions[group])),
                arranged[starts[group] : starts[group + 1]],
                int(key_bytes[group]), int(value_bytes[group]), wanted,
            )
            for group in range(groups)
        ]  # fmt: skip
        for index in range(count - 1, errors - 1, -1):
            self._events.append(self._event(int(arranged[index])))
            self._library.rd_kafka_message_destroy(int(arranged[index]))
            arranged[index] = 0
        return records

    def _event(self, address: int) -> ClientEvent:
        message = _Message.from_address(address)
        source = None
        if message.topic:
            source = TopicPartition(_text(self._library.rd_kafka_topic_name(message.topic)), message.partition)
        text = _text(ctypes.string_at(message.payload, message.len)) if message.payload else ""
        return ClientEvent(message.err, text, source, message.offset)

    def _columns(
        self, source: TopicPartition, messages: npt.NDArray[np.uint64], key_bytes: int, value_bytes: int, wanted: Wanted
    ) -> Records:
        rows = len(messages)
        _check_size(source, key_bytes, value_bytes)
        headers = self._headers(source, messages) if wanted.headers else None  # before the messages are given back
        keys = _binary(rows, key_bytes, wanted.keys)
        values = _binary(rows, value_bytes, wanted.values)
        offsets = np.empty(rows, np.int64)
        times = np.empty(rows if wanted.timestamps else 0, np.int64)
        kinds = np.empty(len(times), np.int32)
        null_keys, null_values = _copy(
            messages, wanted.keys, wanted.values, wanted.timestamps, wanted.lines, *keys, *values, offsets, times,
            kinds, self._timestamp_of, self._destroy,
        )  # fmt: skip
        return Records(
            source,
            offsets,
            _array(pa.binary(), keys, null_keys) if wanted.keys else None,
            _array(pa.binary(), values, null_values) if wanted.values else None,
            times if wanted.timestamps else None,
            kinds if wanted.timestamps else None,
            headers,
        )

    def _headers(self, source: TopicPartition, messages: npt.NDArray[np.uint64]) -> Any:
        rows = len(messages)
        lists, counts = np.empty(rows, np.uint64), np.empty(rows, np.int64)
        total, name_bytes, value_bytes = _measure_headers(messages, lists, counts, self._headers_of, self._header_of)
        _check_size(source, int(name_bytes), int(value_bytes))
        ends, _, valid = _binary(rows, 0)
        name_ends, name_data, _ = _binary(total, name_bytes)
        values = _binary(total, value_bytes)
        nulls = _copy_headers(lists, counts, ends, valid, name_ends, name_data, *values, self._header_of)
        names = _array(pa.string(), (name_ends, name_data, _NO_BYTES), 0)
        pairs = pa.StructArray.from_arrays([names, _array(pa.binary(), values, nulls)], fields=list(HEADERS.value_type))
        without = int(np.count_nonzero(lists == 0))
        bits = pa.py_buffer(valid) if without else None
        return pa.Array.from_buffers(HEADERS, rows, [bits, pa.py_buffer(ends)], without, children=[pairs])

    def watermarks(self, source: TopicPartition, timeout_ms: int) -> tuple[int, int]:
        """Ask the partition's leader for its first and its next offset. Raises ConnectionError with the reason."""
        low, high = c_int64(), c_int64()
        error = self._library.rd_kafka_query_watermark_offsets(
            self._client, source.topic.encode(), source.partition, ctypes.byref(low), ctypes.byref(high), timeout_ms
        )
        self._raise(error)
        return low.value, high.value

    def known_end(self, source: TopicPartition) -> int | None:
        """Return a partition's next offset as it came with the last fetch; None: none did yet. Asks nobody."""
        low, high = c_int64(), c_int64()
        error = self._library.rd_kafka_get_watermark_offsets(
            self._client, source.topic.encode(), source.partition, ctypes.byref(low), ctypes.byref(high)
        )
        return None if error or high.value < 0 else high.value

    def partitions(self, timeout_ms: int) -> dict[str, int]:
        """Ask for all topics: the number of partitions of each. Raises ConnectionError with the reason."""
        answer = POINTER(_Metadata)()
        self._raise(self._library.rd_kafka_metadata(self._client, 1, None, ctypes.byref(answer), timeout_ms))
        try:
            topics = [answer.contents.topics[index] for index in range(answer.contents.topic_count)]
            return {_text(each.topic): each.partition_count for each in topics if not each.err}
        finally:
            self._library.rd_kafka_metadata_destroy(answer)

    def _raise(self, error: int) -> None:
        if error:
            raise ConnectionError(_text(self._library.rd_kafka_err2str(error)))

    def wake_up(self) -> None:
        """Make a `consume` that blocks, or the next one, return at once. Called from any thread."""
        with self._lock:
            if self._queue is not None:
                self._library.rd_kafka_queue_yield(self._queue)

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            queue, self._queue = self._queue, None
        if queue is not None:
            self._library.rd_kafka_queue_destroy(queue)
            self._library.rd_kafka_destroy_flags(self._client, _WITHOUT_CLOSE)


def _on_log(client: int, level: int, facility: bytes | None, text: bytes | None) -> None:
    """Pass on what librdkafka has to say; its levels are those of syslog."""
    client_log.log(logging.INFO if level <= 5 else logging.DEBUG, "%s: %s", _text(facility), _text(text))
