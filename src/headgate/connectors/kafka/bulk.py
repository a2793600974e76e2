"""Decodes whole batches of messages by librdkafka's C interface.

Never: use a library that was not checked (`librdkafka.check_library` says why not, and `plain` does the work then), or
keep a message after its columns are made.

Clients are made here: confluent-kafka's own ``Consumer`` cannot be used, because its callbacks crash when librdkafka
calls them outside of its own methods (a deleted topic is enough).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, c_int64, c_void_p
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.connectors.kafka.bulk_compiled import arrange, copy, copy_headers, measure_headers, sort
from headgate.connectors.kafka.consumer import HEADERS, PARTITION_EOF, ClientEvent, Consumed, Pace
from headgate.connectors.kafka.librdkafka import (
    CONSUMER,
    FUNCTIONS,
    WITHOUT_CLOSE,
    Message,
    Metadata,
    OnError,
    library,
    make_client,
    text_of,
)
from headgate.connectors.kafka.records import Records, Wanted
from headgate.enumerators.partition import TopicPartition
from headgate.errors import SourceError
from headgate.source import Signal

MOST_MESSAGES = 50_000
"""The most messages in one batch."""
_FEW_MESSAGES = 1024
"""So many of several partitions become columns together: what follows costs as much for a few as for many."""
_MOST_BYTES = 2**31 - 1
_LOOK_MS = 500
_SLEEP_S = 0.001


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


def _together(records: Records, sources: Sequence[TopicPartition], starts: Sequence[int]) -> Records:
    """Return records of several partitions, each of which begins at one of the starts, with its parts."""
    parts = (
        msgspec.structs.replace(records.slice(start, stop), source=source)
        for source, start, stop in zip(sources, starts, starts[1:])
    )
    return msgspec.structs.replace(records, parts=tuple(parts))


def _too_much(source: TopicPartition, data_bytes: int) -> SourceError:
    return SourceError(
        f"Kafka's client had {data_bytes} bytes of {source} at once; a column holds 2 GiB. "
        "Lower kafka.queued.max.messages.kbytes.",
        source="kafka",
    )


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
        self._library = library()
        self._topics: set[str] = set()  # whose leaders it knows, or looks for
        self._sources: dict[tuple[int, int], TopicPartition] = {}  # by the topic's address, while it is being read
        self._events: list[ClientEvent] = []
        self._pace = Pace()
        # librdkafka calls it in `consume` only, on its thread; ctypes takes the GIL for it.
        self._callback = OnError(self._on_error)
        self._client = make_client(CONSUMER, settings, self._callback)
        self._library.rd_kafka_poll_set_consumer(self._client)
        self._lock = threading.Lock()
        # Guarded by _lock, against a wake_up while it is closed:
        self._queue: int | None = self._library.rd_kafka_queue_get_consumer(self._client)
        self._signal: Signal | None = None
        self._messages = np.empty(MOST_MESSAGES, np.uint64)
        self._address = self._messages.ctypes.data
        self._arranged = np.empty(MOST_MESSAGES, np.uint64)
        self._group_of = np.empty(MOST_MESSAGES, np.int64)
        self._starts = np.empty(MOST_MESSAGES + 1, np.int64)
        self._tables = tuple(
            np.empty(MOST_MESSAGES, kind) for kind in (np.uint64, np.int32, np.int64, np.int64, np.int64)
        )
        address = {name: ctypes.cast(getattr(self._library, name), c_void_p).value or 0 for name in FUNCTIONS}
        self._timestamp_of = np.uint64(address["rd_kafka_message_timestamp"])
        self._destroy = np.uint64(address["rd_kafka_message_destroy"])
        self._headers_of = np.uint64(address["rd_kafka_message_headers"])
        self._header_of = np.uint64(address["rd_kafka_header_get_all"])

    def _on_error(self, client: int, code: int, text: bytes | None, opaque: int) -> None:
        self._events.append(ClientEvent(code, text_of(text)))

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions as well, from these offsets on. Waits half a second for brokers at most."""
        self._change("rd_kafka_incremental_assign", positions)
        topics = {source.topic for source in positions}
        if self._topics and not topics <= self._topics:
            # A client that is connected looks for the leaders of new topics but once a second. Ask now, for all that
            # it reads; if there is no answer, it goes on looking.
            answer = POINTER(Metadata)()
            if self._library.rd_kafka_metadata(self._client, 0, None, ctypes.byref(answer), _LOOK_MS) == 0:
                self._library.rd_kafka_metadata_destroy(answer)
        self._topics |= topics

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        """Read these partitions no longer: nothing of them comes from here on."""
        self._change("rd_kafka_incremental_unassign", dict.fromkeys(sources, 0))

    def _change(self, function: str, positions: Mapping[TopicPartition, int]) -> None:
        if not positions:
            return
        self._sources.clear()
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
            text = text_of(library.rd_kafka_error_string(error))
            library.rd_kafka_error_destroy(error)
            raise SourceError(f"The Kafka client refuses to read {', '.join(map(str, positions))}: {text}")

    def begin_signals(self, signal: Signal) -> bool:
        """Signal from now on that there is something to consume where there was nothing."""
        self._signal = signal._replace(fd=os.dup(signal.fd))  # the client writes to it until `end_signals`
        enable = self._library.rd_kafka_queue_io_event_enable
        enable(self._queue, self._signal.fd, self._signal.byte, len(self._signal.byte))
        return True

    def signal_what_waits(self) -> None:
        """Signal that there is something to consume, if there is."""
        if self._signal is not None and self.has_waiting():
            with contextlib.suppress(BlockingIOError):
                os.write(*self._signal)

    def end_signals(self) -> None:
        """Give no signals any more."""
        signal, self._signal = self._signal, None
        if signal is not None:
            self._library.rd_kafka_queue_io_event_enable(self._queue, -1, None, 0)
            os.close(signal.fd)

    def has_waiting(self) -> bool:
        """Whether there is something to consume."""
        return bool(self._library.rd_kafka_queue_length(self._queue))

    def consume(self, wanted: Wanted, at_most: int, timeout_ms: int) -> Consumed:
        """Return up to ``at_most`` messages; blocks until the first comes, or nothing does within the time."""
        consume, at = self._library.rd_kafka_consume_batch_queue, self._address
        count = consume(self._queue, timeout_ms, at, 1)
        at_most = min(at_most, MOST_MESSAGES)
        if 0 < count < at_most:
            linger_s = self._pace.linger_s(time.monotonic())
            if timeout_ms == 0:
                linger_s = min(linger_s, _SLEEP_S)
            if linger_s <= _SLEEP_S:
                time.sleep(linger_s)  # the client's own waits are whole milliseconds
                linger_s = 0
            count += max(0, consume(self._queue, math.ceil(1000 * linger_s), at + 8 * count, at_most - count))
            self._pace.given_out(count, time.monotonic())
        records = self._records_or_nothing_left(count, wanted) if count > 0 else []
        events, self._events = self._events, []
        if len(records) == 1 and records[0].parts:
            return Consumed(list(records[0].parts), events, records[0])
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
        groups = sort(
            self._messages, count, int(wanted.lines), topics, partitions, counts, key_bytes, value_bytes,
            self._group_of,
        )  # fmt: skip
        errors = arrange(self._messages, count, self._group_of, counts, groups, self._starts, arranged)
        starts = self._starts[: groups + 1].tolist()
        sources = [self._source(int(topics[group]), int(partitions[group])) for group in range(groups)]
        if groups > 1 and starts[-1] <= _FEW_MESSAGES:
            data_bytes = int(key_bytes[:groups].sum()), int(value_bytes[:groups].sum())
            records = [
                _together(self._columns(sources[0], arranged[: starts[-1]], *data_bytes, wanted), sources, starts)
            ]
        else:
            records = [
                self._columns(
                    source, arranged[starts[group] : starts[group + 1]], int(key_bytes[group]), int(value_bytes[group]),
                    wanted,
                )
                for group, source in enumerate(sources)
            ]  # fmt: skip
        for index in range(count - 1, errors - 1, -1):
            self._events.append(self._event(int(arranged[index])))
            self._library.rd_kafka_message_destroy(int(arranged[index]))
            arranged[index] = 0
        return records

    def _source(self, topic: int, partition: int) -> TopicPartition:
        """Return a partition, of a topic at an address."""
        source = self._sources.get((topic, partition))
        if source is None:
            name = text_of(self._library.rd_kafka_topic_name(topic))
            source = self._sources[topic, partition] = TopicPartition(name, partition)
        return source

    def _event(self, address: int) -> ClientEvent:
        message = Message.from_address(address)
        source = self._source(message.topic, message.partition) if message.topic else None
        if message.err == PARTITION_EOF or not message.payload:
            return ClientEvent(message.err, "", source, message.offset)
        return ClientEvent(message.err, text_of(ctypes.string_at(message.payload, message.len)), source, message.offset)

    def _columns(
        self, source: TopicPartition, messages: npt.NDArray[np.uint64], key_bytes: int, value_bytes: int, wanted: Wanted
    ) -> Records:
        rows = len(messages)
        if key_bytes > _MOST_BYTES or value_bytes > _MOST_BYTES:
            raise _too_much(source, max(key_bytes, value_bytes))
        headers = self._headers(source, messages) if wanted.headers else None  # before the messages are given back
        keys = _binary(rows, key_bytes, wanted.keys)
        values = _binary(rows, value_bytes, wanted.values)
        offsets = np.empty(rows, np.int64)
        times = np.empty(rows if wanted.timestamps else 0, np.int64)
        kinds = np.empty(len(times), np.int32)
        null_keys, null_values = copy(
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
        total, name_bytes, value_bytes = measure_headers(messages, lists, counts, self._headers_of, self._header_of)
        if max(name_bytes, value_bytes) > _MOST_BYTES:
            raise _too_much(source, int(max(name_bytes, value_bytes)))
        ends, _, valid = _binary(rows, 0)
        name_ends, name_data, _ = _binary(total, name_bytes)
        values = _binary(total, value_bytes)
        nulls = copy_headers(lists, counts, ends, valid, name_ends, name_data, *values, self._header_of)
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
        answer = POINTER(Metadata)()
        self._raise(self._library.rd_kafka_metadata(self._client, 1, None, ctypes.byref(answer), timeout_ms))
        try:
            topics = [answer.contents.topics[index] for index in range(answer.contents.topic_count)]
            return {text_of(each.topic): each.partition_count for each in topics if not each.err}
        finally:
            self._library.rd_kafka_metadata_destroy(answer)

    def _raise(self, error: int) -> None:
        if error:
            raise ConnectionError(text_of(self._library.rd_kafka_err2str(error)))

    def wake_up(self) -> None:
        """Make a `consume` that blocks, or the next one, return at once. Called from any thread."""
        with self._lock:
            if self._queue is not None:
                self._library.rd_kafka_queue_yield(self._queue)

    def close(self) -> None:
        """Disconnect."""
        self.end_signals()
        with self._lock:
            queue, self._queue = self._queue, None
        if queue is not None:
            self._library.rd_kafka_queue_destroy(queue)
            self._library.rd_kafka_destroy_flags(self._client, WITHOUT_CLOSE)
