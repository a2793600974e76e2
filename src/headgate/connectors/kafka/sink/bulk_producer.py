"""Produces whole batches of rows by librdkafka's C interface: compiled code walks their columns.

Never: use a library that was not checked (`plain_producer` does the work then), lose the error of a row that was not
delivered, or free a client that a call is in.

Clients are made here: confluent-kafka's own ``Producer`` cannot be used, because its callback drops what becomes of
rows that it did not produce itself.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from ctypes import c_void_p
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from headgate.connectors.kafka import bulk_compiled
from headgate.connectors.kafka.bulk_compiled import (
    KEYS,
    LISTS,
    PARTITIONS,
    ROWS,
    TOPIC_OF,
    TOPICS,
    VALUES,
)
from headgate.connectors.kafka.consumer import FATAL
from headgate.connectors.kafka.librdkafka import (
    COPY,
    FLAGS,
    FUNCTIONS,
    HEADERS,
    IN_FLIGHT,
    KEY,
    PARTITION,
    PRODUCER,
    QUEUED,
    TOPIC_HANDLE,
    VALUE,
    OnError,
    Part,
    library,
    make_client,
    text_of,
)
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.row_producer import OnFailure

_INVALID, _QUEUE_FULL = -186, -184
_PARTS = (TOPIC_HANDLE, PARTITION, VALUE, KEY, FLAGS, HEADERS)
_NARROW = (pa.string().id, pa.binary().id)


class _Client:
    """A client of librdkafka, and all that has to live as long as it. It ends with the last reference to it.

    Calls of the library get it as an argument, and so refer to it: whoever lets go of it need not know who is in one.
    No frame does that an error's traceback could hold.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._as_parameter_: int | None = None  # the address, for ctypes
        self._process = os.getpid()
        self._library = library()
        self._topics: dict[str, int] = {}
        self.troubles: list[tuple[int, str]] = []
        self.failure = np.zeros(3, np.int64)  # written by `note_failure`
        noted = self.troubles  # the callback may not refer to this object: a circle would keep its threads alive
        self._on_error = OnError(lambda client, code, text, opaque: noted.append((code, text_of(text))))

        def prepare(conf: int) -> None:
            self._library.rd_kafka_conf_set_dr_msg_cb(conf, bulk_compiled.note_failure.address)
            self._library.rd_kafka_conf_set_opaque(conf, self.failure.ctypes.data)

        made = settings | {"delivery.report.only.error": True}
        self._as_parameter_ = make_client(PRODUCER, made, self._on_error, prepare)
        self._parts = (Part * len(_PARTS))(*(Part(kind) for kind in _PARTS))
        self._parts[4].first = COPY
        address = {name: ctypes.cast(getattr(self._library, name), c_void_p).value or 0 for name in FUNCTIONS}
        functions = ("produceva", "headers_new", "header_add", "headers_destroy")
        self.constants = np.zeros(bulk_compiled.NUMBERS, np.int64)
        self.constants[: ROWS] = (
            self._as_parameter_, *(address[f"rd_kafka_{name}"] for name in functions), ctypes.addressof(self._parts),
        )  # fmt: skip

    def topic(self, name: str) -> int:
        """Return the handle of a topic; 0 if there cannot be one of that name."""
        if "\0" in name:  # a C string ends there: it would be another topic
            return 0
        handle = self._topics.get(name)
        if handle is None:
            handle = self._library.rd_kafka_topic_new(self, name.encode(), None) or 0
            if handle:
                self._topics[name] = handle
        return handle

    def produce(self, rows: Any, row: int) -> tuple[int, int]:
        """Add rows from one on, as `bulk_compiled.produce`."""
        return bulk_compiled.produce(rows, row)  # type: ignore[no-any-return]

    def __del__(self) -> None:
        if self._as_parameter_ is None or os.getpid() != self._process:
            return  # a process that was forked has none of its threads, for which this would wait
        for handle in self._topics.values():
            self._library.rd_kafka_topic_destroy(handle)
        self._library.rd_kafka_destroy(self._as_parameter_)


class BulkProducer:
    """A producer of librdkafka that gets its rows from compiled code. A `RowProducer`.

    Parameters and errors are those of `producer.make_producer`.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        sink: KafkaSink,
        on_failure: OnFailure,
        on_trouble: Callable[[KafkaError], object],
    ) -> None:
        self._library = library()
        self._columns = sink.columns
        self._topic = sink.topic
        self._on_failure = on_failure
        self._on_trouble = on_trouble
        self._handles_of_all: Any = None  # the one of the topic of all rows
        self._lock = threading.Lock()  # held while callbacks may run, and while what they left is taken
        self._client = _Client(settings)

    # ---- rows ----

    def rows(self, batch: pa.RecordBatch) -> Callable[[], int]:
        """Return what adds the rows of a batch to the queue."""
        return partial(self._add, _Rows(batch))

    def _add(self, rows: _Rows) -> int:
        if rows.done < rows.batch.num_rows:
            if rows.addresses is None:
                rows.addresses = self._addresses(rows)
            rows.done, error = self._client.produce(rows.addresses, rows.done)
            if error:
                self._raise_unless_full(error, rows.done)
        return rows.done

    def _addresses(self, rows: _Rows) -> Any:
        """Return what `bulk_compiled.produce` gets."""
        columns, batch, addresses = self._columns, rows.batch, self._client.constants.copy()
        if self._topic is not None:
            topics = self._handles_of_all = self._handles_of_all or self._handles([self._topic])
        else:
            named = batch.column(columns.topic).dictionary_encode()
            topics = self._handles(named.dictionary.to_pylist(), named.indices)
            addresses[TOPIC_OF] = rows.numbers(named.indices)
        rows.kept.append(topics)
        addresses[ROWS], addresses[TOPICS] = batch.num_rows, ctypes.addressof(topics)
        addresses[VALUES : VALUES + 4] = rows.octets(batch.column(columns.value))
        if columns.key is not None:
            addresses[KEYS : KEYS + 4] = rows.octets(batch.column(columns.key))
        if columns.partition is not None:
            addresses[PARTITIONS] = rows.numbers(batch.column(columns.partition).fill_null(-1))
        if columns.headers is not None:
            addresses[LISTS:] = rows.headers(batch.column(columns.headers))
        return addresses

    def _handles(self, names: list[str], topic_of: Any = None) -> Any:
        """Return the handles of topics; rows have them by number, or all the only one."""
        handles = (c_void_p * len(names))()
        for number, name in enumerate(names):
            handles[number] = self._client.topic(name)
            if not handles[number]:
                row = 0 if topic_of is None else topic_of.index(number).as_py()
                raise self._refusal(_INVALID, row)
        return handles

    def _raise_unless_full(self, error: int, row: int) -> None:
        code = self._library.rd_kafka_error_code(error)
        self._library.rd_kafka_error_destroy(error)
        if code != _QUEUE_FULL:
            raise self._refusal(code, row)

    def _refusal(self, code: int, row: int) -> KafkaException:
        """Return the error of a row as confluent-kafka words it."""
        text = text_of(self._library.rd_kafka_err2str(code))
        return KafkaException(KafkaError(code, f"Unable to produce message: {text}"), row)

    # ---- callbacks ----

    def poll(self, seconds: float) -> None:
        """Run the callbacks that are due."""
        with self._lock:
            self._library.rd_kafka_poll(self._client, int(1000 * seconds))
            self._take_locked()

    def flush(self, seconds: float) -> int:
        """Wait until the brokers have all rows. When they have is not reported: nothing cuts the wait short."""
        with self._lock:
            self._library.rd_kafka_flush(self._client, int(1000 * seconds))
            self._take_locked()
        return len(self)

    def _take_locked(self) -> None:
        """Pass on what callbacks have left. Raises ``KafkaException`` if the client is of no use any longer.

        What is wrong with the client comes first: it is why rows failed.
        """
        while self._client.troubles:  # no local variable has the client: an error's traceback would keep it
            code, text = self._client.troubles.pop(0)
            if code == FATAL:
                reason = ctypes.create_string_buffer(512)
                code = self._library.rd_kafka_fatal_error(self._client, reason, len(reason))
                raise KafkaException(KafkaError(code, text_of(reason.value), fatal=True))
            self._on_trouble(KafkaError(code, text))
        if self._client.failure[2]:
            topic, partition, code = self._client.failure.tolist()
            self._client.failure[2] = 0
            failed = KafkaError(code, text_of(self._library.rd_kafka_err2str(code)))
            self._on_failure(failed, text_of(self._library.rd_kafka_topic_name(topic)), partition)

    def __len__(self) -> int:
        return int(self._library.rd_kafka_outq_len(self._client))

    def purge(self) -> None:
        """Drop all rows that the brokers do not have."""
        self._library.rd_kafka_purge(self._client, QUEUED | IN_FLIGHT)

    # ---- transactions ----

    def init_transactions(self, seconds: float) -> None:
        """Fence earlier producers of the same transactional id."""
        self._check(self._library.rd_kafka_init_transactions(self._client, int(1000 * seconds)))

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._check(self._library.rd_kafka_begin_transaction(self._client))

    def send_offsets(self, group: str, topics: Iterable[str], offset: int, metadata: str, seconds: float) -> None:
        """Commit an offset on partition 0 of topics for a consumer group, with the transaction."""
        library, text = self._library, metadata.encode()
        listed = library.rd_kafka_topic_partition_list_new(1)
        known_as = library.rd_kafka_consumer_group_metadata_new(group.encode())
        try:
            for topic in topics:
                added = library.rd_kafka_topic_partition_list_add(listed, topic.encode(), 0).contents
                added.offset = offset
                added.metadata_size = len(text) + 1  # with the zero at its end, up to which copies of it are read
                added.metadata = library.rd_kafka_mem_malloc(None, added.metadata_size)  # freed with the list
                ctypes.memmove(added.metadata, text, added.metadata_size)
            error = library.rd_kafka_send_offsets_to_transaction(self._client, listed, known_as, int(1000 * seconds))
        finally:
            library.rd_kafka_consumer_group_metadata_destroy(known_as)
            library.rd_kafka_topic_partition_list_destroy(listed)
        self._check(error)

    def commit_transaction(self, seconds: float) -> None:
        """Commit the transaction."""
        self._check(self._library.rd_kafka_commit_transaction(self._client, int(1000 * seconds)))

    def abort_transaction(self, seconds: float) -> None:
        """Abort the transaction."""
        self._check(self._library.rd_kafka_abort_transaction(self._client, int(1000 * seconds)))

    def _check(self, error: int | None) -> None:
        """Raise an error of the transaction's, or what callbacks have left in the call, which belongs to it, too."""
        library, raised = self._library, None
        if error:
            raised = KafkaError(
                library.rd_kafka_error_code(error),
                text_of(library.rd_kafka_error_string(error)),
                fatal=bool(library.rd_kafka_error_is_fatal(error)),
                retriable=bool(library.rd_kafka_error_is_retriable(error)),
                txn_requires_abort=bool(library.rd_kafka_error_txn_requires_abort(error)),
            )
            library.rd_kafka_error_destroy(error)
        with self._lock:
            self._take_locked()
        if raised is not None:
            raise KafkaException(raised)

    def close(self) -> None:
        """Drop what is not sent, and let go of the client."""
        self.purge()
        del self._client


class _Rows:
    """A batch on its way into the queue: how many of its rows are there, and where its memory is."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.done = 0
        self.addresses: Any = None
        self.kept: list[Any] = []  # what the addresses are of

    def numbers(self, array: Any) -> int:
        """Return the address of numbers of 32 bits."""
        self.kept.append(array)
        return int(array.buffers()[1].address + 4 * array.offset)

    def octets(self, array: Any) -> tuple[int, int, int, int]:
        """Return a column of text or bytes as `bulk_compiled.produce` gets it."""
        if array.type.id not in _NARROW:
            array = array.cast(pa.binary())
        self.kept.append(array)
        bits, ends, data = array.buffers()
        offset = array.offset
        ends_at = 0 if ends is None else ends.address  # an array without rows may have none
        # An empty value is not null: it needs an address, which nobody reads.
        data_at = data.address if data is not None and data.address else ends_at
        return 0 if bits is None else bits.address, offset, ends_at + 4 * offset, data_at

    def headers(self, lists: Any) -> tuple[int, ...]:
        """Return lists of headers, their names and their values, likewise."""
        self.kept.append(lists)
        bits, ends = lists.buffers()[:2]
        pairs, offset = lists.values, lists.offset
        begin = (0 if bits is None else bits.address, offset, ends.address + 4 * offset, 0)
        return (*begin, *self.octets(pairs.field(0)), *self.octets(pairs.field(1)))
