"""Writes record batches to Kafka: at least once, or each task's epoch exactly once by a transaction with a marker.

Never: import pyspark, or report rows as written that the brokers have not acknowledged.

Exactly once, the life of an epoch in a task (traps, 15):

1. ``init_transactions`` with the task's own transactional id: an earlier attempt's open transaction is aborted, one
   that was about to be committed is finished, and a zombie of it can write no more.
2. The marker is looked up: if this epoch is committed already, this is a replay; its rows are counted and dropped.
3. One transaction holds the rows and the new marker, so that there are both or neither.

The marker is an offset of a consumer group named as the transactional id, on partition 0 of every topic that the
transaction writes, and is looked up by the group alone: a replay finds it whatever topic its first row goes to.
A task without rows writes nothing, so that its replay may do so again.

Follows KIP-98, "Exactly Once Delivery and Transactional Messaging".
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.options import OPTION_SPECS
from headgate.errors import OptionError, SinkError, SinkUnavailableError
from headgate.source.options import Options, OptionSpec, boolean, choice, text
from headgate.source.serialization import VersionedSerializer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

NAME = "headgate.kafka"

SINK_OPTION_SPECS: tuple[OptionSpec, ...] = (
    *(spec for spec in OPTION_SPECS if spec.name.lower().startswith("kafka.")),
    OptionSpec("topic", text, None, "the topic of all rows; wins over the column 'topic'"),
    OptionSpec(
        "guarantee", choice("at-least-once", "exactly-once"), "at-least-once",
        "whether a streaming query's retries may repeat rows",
    ),
    OptionSpec("includeHeaders", boolean, False, "", status="no-op", why="A column 'headers' is always written."),
    OptionSpec("checkpointLocation", text, None, "", status="no-op", why="Spark's own."),
    OptionSpec("queryName", text, None, "", status="no-op", why="Spark's own."),
)  # fmt: skip
"""The options of the sink; ``kafka.*`` are those of the source, for a producer."""

_DEFAULTS: dict[str, str | int | bool] = {
    # Java's.
    "delivery.timeout.ms": 120_000,
    # A task ends with a flush, which waits for no linger: this only makes full requests of fast rows.
    "linger.ms": 50,
    # librdkafka's own bound is 1 GiB.
    "queue.buffering.max.kbytes": 64 * 1024,
    "queue.buffering.max.messages": 200_000,
}
_SETTINGS_AGAINST_IDEMPOTENCE = (
    "enable.idempotence", "acks", "request.required.acks", "retries", "message.send.max.retries", "max.in.flight",
    "max.in.flight.requests.per.connection",
)  # fmt: skip
_STEP_S = 0.01
"""How long to wait before looking again whether rows were taken."""
_TRANSACTION_TIMEOUT_MS = 900_000
"""What a broker allows at most, by its default."""


class Marker(msgspec.Struct, frozen=True):
    """Stands for a committed epoch, in the transaction that committed it.

    Parameters
    ----------
    epoch
        The epoch: the number of Spark's micro-batch.
    rows
        How many rows the task wrote in it, so that a replay of other rows is noticed.
    """

    epoch: int
    rows: int


MARKER_SERIALIZER: VersionedSerializer[Marker] = VersionedSerializer(
    Marker, version=1, what="the marker of an epoch in a consumer group of headgate.kafka's sink"
)
"""Version 1 since 0.2.0. It is the metadata of the offset ``epoch + 1``."""


@dataclass(frozen=True)
class RowColumns:
    """Where in a batch the columns are that Kafka knows; others are not written. None: there is no such column."""

    value: int
    key: int | None = None
    topic: int | None = None
    headers: int | None = None
    partition: int | None = None

    @classmethod
    def of(cls, schema: pa.Schema, topic: str | None) -> RowColumns:
        """Check the columns' names and types as Spark's ``kafka`` sink does.

        Parameters
        ----------
        schema
            The rows' columns; names count with their case, of equal ones the first.
        topic
            The topic of all rows, or None if the rows name theirs.

        Raises
        ------
        OptionError
            A column is missing or has the wrong type.
        """
        found: dict[str, int] = {}
        for name, (is_allowed, allowed) in _COLUMN_TYPES.items():
            if name not in schema.names or (name == "topic" and topic is not None):
                continue
            found[name] = schema.names.index(name)
            data_type = schema.field(found[name]).type
            if not is_allowed(data_type):
                raise OptionError(
                    f"{NAME}: the column {name!r} must be {allowed}, not {data_type}. Cast it.",
                    source=NAME, option=name, value=str(data_type),
                )  # fmt: skip
        if "value" not in found:
            raise OptionError(
                f"{NAME}: the rows have no column 'value' ({', '.join(schema.names)}). Name one so: it becomes the "
                "value of the Kafka records.",
                source=NAME, option="value", value=None,
            )  # fmt: skip
        if topic is None and "topic" not in found:
            raise OptionError(
                f"{NAME}: where should the rows go? Set the option 'topic', or add a column 'topic'.",
                source=NAME, option="topic", value=None,
            )  # fmt: skip
        return cls(**found)


def _is_text_or_bytes(data_type: pa.DataType) -> bool:
    return _is_text(data_type) or data_type in (pa.binary(), pa.large_binary())


def _is_text(data_type: pa.DataType) -> bool:
    return data_type in (pa.string(), pa.large_string())


def _is_headers(data_type: pa.DataType) -> bool:
    if not pa.types.is_list(data_type) or not pa.types.is_struct(data_type.value_type):
        return False
    fields = {field.name: field.type for field in data_type.value_type}
    return list(fields) == ["key", "value"] and _is_text(fields["key"]) and _is_text_or_bytes(fields["value"])


_COLUMN_TYPES = {
    "key": (_is_text_or_bytes, "a string or binary"),
    "value": (_is_text_or_bytes, "a string or binary"),
    "topic": (_is_text, "a string"),
    "headers": (_is_headers, "an array<struct<key: string, value: binary>>"),
    "partition": (pa.types.is_int32, "an int"),
}


@dataclass(frozen=True)
class KafkaSink:
    """What to write and where to, checked; it travels to the tasks.

    Parameters
    ----------
    client
        The brokers and how to talk to them.
    columns
        Where the records' parts are in a batch.
    topic
        The topic of all rows; None: the rows name theirs.
    exactly_once
        Whether epochs are written by transactions.
    """

    client: ClientConfig
    columns: RowColumns
    topic: str | None
    exactly_once: bool

    @classmethod
    def of(cls, raw: Mapping[str, str], schema: pa.Schema) -> KafkaSink:
        """Validate the options and the columns.

        Raises
        ------
        OptionError
            An option is unknown or has a bad value; a column is missing or has the wrong type.
        """
        options = Options.parse(NAME, SINK_OPTION_SPECS, raw)
        client = ClientConfig.of(options)
        exactly_once = options["guarantee"] == "exactly-once"
        if "transactional.id" in client.producer():
            raise options.error(
                "kafka.transactional.id", "cannot be set: with guarantee exactly-once each task has its own."
            )
        if exactly_once and client.producer().get("enable.idempotence") in (False, "false"):
            raise options.error("kafka.enable.idempotence", "cannot be false with guarantee exactly-once.")
        return cls(client, RowColumns.of(schema, options["topic"]), options["topic"], exactly_once)


class KafkaWriter:
    """Writes batches, in order. One thread; it may block in every call.

    Rows are written for certain when `flush` has returned, and not before; after an error any of them may be.

    Raises
    ------
    OptionError
        librdkafka knows no such setting, or not such a value.
    """

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._failed: SinkError | None = None
        self._last_trouble = ""
        self._producer = self._make_producer()

    def _settings(self) -> dict[str, Any]:
        user = self._sink.client.producer()
        settings: dict[str, Any] = _DEFAULTS | user
        # As in Java's producer: on, unless the user chose something that it excludes.
        if not any(name in user for name in _SETTINGS_AGAINST_IDEMPOTENCE):
            settings["enable.idempotence"] = True
        return settings

    def _make_producer(self) -> Producer:
        from confluent_kafka import KafkaException, Producer

        own = {
            "on_delivery": self._on_delivery,
            "error_cb": self._on_trouble,
            # Success is told by an empty queue; a call of Python for each row would halve the speed.
            "delivery.report.only.error": True,
        }
        try:
            return Producer(self._settings() | own)
        except KafkaException as error:
            raise self._sink.client.option_error(error.args[0].str()) from error

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand rows over to the producer's queue; wait while it is full.

        Raises
        ------
        SinkError
            A row cannot be written, or an earlier one was not.
        """
        from confluent_kafka import KafkaException

        produce = self._producer.produce
        for row in self._records(batch):
            try:
                produce(*row)
            except BufferError:
                self._produce_when_there_is_room(row)
            except KafkaException as error:
                raise self._error(error.args[0], row[0], row[3]) from error
        self._serve(0)

    def _records(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """Yield the positional arguments of ``Producer.produce`` for each row."""
        columns = self._sink.columns

        def values(index: int | None) -> Iterable[Any]:
            if index is None:
                return repeat(None)
            column = batch.column(index)
            return column.to_pylist()  # type: ignore[no-any-return]

        def octets(index: int | None) -> Iterable[bytes | None]:
            if index is None:
                return repeat(None)
            return batch.column(index).cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]

        topics: Iterable[str] = repeat(self._sink.topic) if self._sink.topic is not None else values(columns.topic)
        if columns.topic is not None and batch.column(columns.topic).null_count:
            raise SinkError(
                f"{NAME}: a row's topic is null. Filter such rows out, or set the option 'topic' for all rows.",
                sink=NAME, topic=None,
            )  # fmt: skip
        partitions: Iterable[int] = repeat(-1)
        if columns.partition is not None:
            column = batch.column(columns.partition)
            least = pc.min(column).as_py()
            if least is not None and least < 0:
                raise SinkError(
                    f"{NAME}: a row's partition is {least}; it must be from 0, or null to let Kafka choose.",
                    sink=NAME, partition=least,
                )  # fmt: skip
            partitions = column.fill_null(-1).to_pylist()
        four = (topics, octets(columns.value), octets(columns.key), partitions)
        if columns.headers is None:
            return zip(*four)
        headers = map(_headers, batch.column(columns.headers).to_pylist())
        return zip(*four, repeat(None), repeat(None), repeat(0), headers)  # no callbacks, time stamp of now

    def _produce_when_there_is_room(self, row: tuple[Any, ...]) -> None:
        """Wait for the brokers to take rows; rows that they do not take in time fail, so this ends."""
        from confluent_kafka import KafkaException

        while True:
            was_empty = not len(self._producer)
            self._serve(_STEP_S)
            try:
                self._producer.produce(*row)
                return
            except BufferError:
                if was_empty:
                    size = sum(len(each) for each in row[1:3] if each is not None)
                    raise SinkError(
                        f"{NAME}: a row for topic {row[0]!r} has {size} bytes and does not fit into the producer's "
                        "buffer. Raise kafka.buffer.memory.",
                        sink=NAME, topic=row[0],
                    ) from None  # fmt: skip
            except KafkaException as error:
                raise self._error(error.args[0], row[0], row[3]) from error

    def flush(self) -> None:
        """Wait until the brokers have all rows.

        Raises
        ------
        SinkError
            They do not have all.
        """
        while self._serve(_STEP_S, flush=True):
            pass

    def close(self) -> None:
        """Let go of the producer. Rows that were not flushed are dropped."""
        from confluent_kafka import KafkaException

        self._producer.purge()
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)
        # It and this object refer to each other: without this its threads would live until a garbage collection.
        del self._producer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = self._error(error, message.topic(), message.partition())

    def _on_trouble(self, error: KafkaError) -> None:
        """Note what librdkafka cannot overcome; what it can, it tries again until rows are too old."""
        from confluent_kafka import KafkaError as Codes

        if error.code() != Codes._ALL_BROKERS_DOWN or not self._last_trouble:
            self._last_trouble = str(error.str())
        hopeless = error.fatal() or error.code() in (Codes._AUTHENTICATION, Codes._SSL)
        if hopeless and self._failed is None:
            self._failed = self._error(error)

    def _serve(self, seconds: float, flush: bool = False) -> int:
        """Run the callbacks that are due, and return how many rows the brokers have not acknowledged.

        The wait is not cut short when they have: successes are not reported.
        """
        from confluent_kafka import KafkaException

        try:
            left = self._producer.flush(seconds) if flush else self._producer.poll(seconds)
        except KafkaException as error:  # a fatal error is raised instead of being told to a callback
            raise self._failed or self._error(error.args[0]) from error
        if self._failed is not None:
            raise self._failed
        return left

    def _error(self, error: KafkaError, topic: str | None = None, partition: int | None = None) -> SinkError:
        """Make one of ours of librdkafka's."""
        return sink_error(error, self._sink.client, topic, partition, self._last_trouble)


def _headers(headers: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes | None]] | None:
    if headers is None:
        return None
    pairs = []
    for header in headers:
        if header is None or header["key"] is None:
            raise SinkError(f"{NAME}: a row has a header without a key. Every header needs one.", sink=NAME)
        pairs.append((header["key"], header["value"]))
    return pairs


class TransactionalWriter(KafkaWriter):
    """Writes epochs by transactions: `begin`, `write`, then `commit` or `abort`; and again.

    Made, it has ended what earlier writers of this name left open, and they can write no more.

    Parameters
    ----------
    sink
        What to write and where to.
    name
        The transactional id, and the name of the consumer group that holds the marker.

    Raises
    ------
    SinkError
        The brokers do not answer or refuse.
    OptionError
        librdkafka knows no such setting, or not such a value.
    """

    def __init__(self, sink: KafkaSink, name: str) -> None:
        self._name = name
        super().__init__(sink)
        self._topics: set[str] = set()
        self._rows = 0
        self._began_s = time.monotonic()
        self._timeout_s = sink.client.timeout_ms / 1000
        try:
            self._init_transactions()
        except SinkError:
            self.close()
            raise

    def _init_transactions(self) -> None:
        """Wait for the brokers in steps: only between calls is told that they refuse the password."""
        from confluent_kafka import KafkaError as Codes
        from confluent_kafka import KafkaException

        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                with self._translated("starting"):
                    self._producer.init_transactions(min(0.2, self._timeout_s))
                return
            except SinkError as error:
                # librdkafka goes on in the background; the next call waits for the same.
                cause = error.__cause__
                slow = isinstance(cause, KafkaException) and (
                    cause.args[0].retriable()
                    or cause.args[0].code() in (Codes._TIMED_OUT, Codes.CONCURRENT_TRANSACTIONS)
                )
                if not slow or self._failed is not None or time.monotonic() >= deadline_s:
                    raise

    def _settings(self) -> dict[str, Any]:
        settings = {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS} | super()._settings()
        user, timeout_ms = self._sink.client.producer(), str(settings["transaction.timeout.ms"])
        if timeout_ms.isdecimal() and not {"delivery.timeout.ms", "message.timeout.ms"} & user.keys():
            # librdkafka wants it so.
            settings["delivery.timeout.ms"] = min(settings["delivery.timeout.ms"], int(timeout_ms))
        return settings | {"transactional.id": self._name}

    def marker(self) -> Marker | None:
        """Return the marker of the last epoch that was committed under this name; None: there is none yet."""
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka.admin import AdminClient

        with self._translated("reading the marker"):
            admin = AdminClient({**self._sink.client.admin()})  # a client that is let go of answers nothing
            futures = admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self._name)], require_stable=True, request_timeout=self._timeout_s
            )
            answer = futures[self._name].result()
        last: Any = None
        for each in answer.topic_partitions:
            if each.error is not None:
                raise self._error(each.error, each.topic, each.partition)
            if each.offset >= 0 and (last is None or each.offset > last.offset):
                last = each
        return None if last is None else MARKER_SERIALIZER.deserialize((last.metadata or "").encode())

    def begin(self) -> None:
        """Begin a transaction."""
        self._topics.clear()
        self._rows = 0
        self._began_s = time.monotonic()
        with self._translated("beginning a transaction"):
            self._producer.begin_transaction()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows into the transaction.

        Raises
        ------
        SinkError
            A row cannot be written: the transaction must be aborted.
        """
        super().write(batch)
        self._rows += batch.num_rows
        if self._sink.topic is not None:
            self._topics.add(self._sink.topic)
        else:
            self._topics.update(batch.column(self._sink.columns.topic).unique().to_pylist())

    def commit(self, epoch: int) -> None:
        """Commit all rows since `begin`, and the marker of ``epoch`` with them; at least one row.

        Raises
        ------
        SinkError
            It is not committed; or, if the brokers did not answer in time, perhaps it is: the next writer of this name
            brings it to an end, and its `marker` tells.
        """
        from confluent_kafka import Consumer, TopicPartition

        self.flush()
        metadata = MARKER_SERIALIZER.serialize(Marker(epoch, self._rows)).decode()
        offsets = [TopicPartition(topic, 0, epoch + 1, metadata) for topic in sorted(self._topics)]
        # It joins no group: only the name is needed, and there is no other way to say it.
        consumer = Consumer(self._sink.client.consumer() | {"group.id": self._name})
        try:
            with self._translated("committing"):
                self._producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), self._timeout_s)
                self._producer.commit_transaction(self._timeout_s)
        finally:
            consumer.close()

    def abort(self) -> None:
        """Abort the transaction if the brokers answer; if not, the next writer of this name does, or time."""
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(min(10.0, self._timeout_s))
            self._producer.poll(0)
        self._failed = None  # what failed belonged to this transaction; a fatal error shows again

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            with contextlib.suppress(KafkaException):
                self._producer.poll(0)  # the reason may be waiting for its callback
            raise self._failed or self._error(error.args[0], doing=doing) from error

    def _error(
        self, error: KafkaError, topic: str | None = None, partition: int | None = None, doing: str = "writing"
    ) -> SinkError:
        from confluent_kafka import KafkaError as Codes

        code, timeout_ms = error.code(), int(self._settings()["transaction.timeout.ms"])
        if code == Codes.INVALID_TRANSACTION_TIMEOUT:
            return SinkError(
                f"{NAME}: the brokers do not allow transactions of {timeout_ms} ms. Set kafka.transaction.timeout.ms "
                "to at most their transaction.max.timeout.ms.",
                sink=NAME, name=self._name,
            )  # fmt: skip
        if code in (Codes._FENCED, Codes.INVALID_PRODUCER_EPOCH, Codes.PRODUCER_FENCED, Codes.INVALID_TXN_STATE):
            open_ms = int((time.monotonic() - self._began_s) * 1000)
            if open_ms >= timeout_ms:
                return SinkError(
                    f"{NAME}: the brokers gave up the transaction {self._name!r}, which was open for {open_ms} ms; "
                    f"kafka.transaction.timeout.ms is {timeout_ms}. Raise it (and the brokers' "
                    "transaction.max.timeout.ms), or let a task of a batch take less time.",
                    sink=NAME, name=self._name,
                )  # fmt: skip
            return SinkError(
                f"{NAME}: a newer attempt of the same task writes as {self._name!r}: this one has lost the right to. "
                "If it was not retried by Spark, the query runs twice with one checkpoint.",
                sink=NAME, name=self._name,
            )  # fmt: skip
        return sink_error(error, self._sink.client, topic, partition, self._last_trouble, doing)


def write_batches(sink: KafkaSink, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows, at least once.

    Raises
    ------
    SinkError
        Not all rows were written; some may be.
    """
    for first, rest in _rows_in(batches):
        writer = _idle.pop(sink, None) or KafkaWriter(sink)
        try:
            for batch in chain([first], rest):
                writer.write(batch)
            writer.flush()
        except BaseException:
            writer.close()
            raise
        while len(_idle) >= _MOST_IDLE:
            _idle.pop(next(iter(_idle))).close()
        _idle[sink] = writer


_idle: dict[KafkaSink, KafkaWriter] = {}
"""Writers of tasks that have ended, for the next tasks of a reused Python worker: a new one takes half a second until
it may write with idempotence. A transaction's writer is never kept: that it is new is what fences zombies."""
_MOST_IDLE = 4


def write_epoch(sink: KafkaSink, name: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows of a task's epoch, unless they are written already.

    Parameters
    ----------
    sink
        What to write and where to.
    name
        The task's transactional id: the same for all epochs and all attempts.
    epoch
        The epoch's number.
    batches
        Its rows, read to their end in any case: Spark keeps the state of operators before a sink only then.

    Raises
    ------
    SinkError
        The rows were not written, none of them; or they are not those that were written in this epoch before.
    """
    for first, rest in _rows_in(batches):
        with TransactionalWriter(sink, name) as writer:
            done = writer.marker()
            if done is not None and done.epoch >= epoch:
                rows = first.num_rows + sum(batch.num_rows for batch in rest)
                _check_replay(name, done, epoch, rows)
                return
            writer.begin()
            try:
                for batch in chain([first], rest):
                    writer.write(batch)
                writer.commit(epoch)
            except BaseException:
                writer.abort()
                raise


def _rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]]:
    """Yield the first batch that has rows and the rest; nothing if none has: then nobody connects."""
    rest = iter(batches)
    for first in rest:
        if first.num_rows:
            yield first, rest
            return


def _check_replay(name: str, done: Marker, epoch: int, rows: int) -> None:
    """Notice a replay that is cut into tasks otherwise than the first time: it would lose rows and repeat others."""
    if done.epoch == epoch and done.rows != rows:
        raise SinkError(
            f"{NAME}: {name!r} wrote {done.rows} rows in batch {epoch}, and its replay has {rows}. A replayed batch "
            "must have the same rows in the same tasks: run the query with the same settings and as many cores as "
            "before, or once with guarantee at-least-once, which repeats this batch.",
            sink=NAME, name=name, epoch=epoch, expected=done.rows, found=rows,
        )  # fmt: skip


def sink_error(
    error: KafkaError, client: ClientConfig, topic: str | None = None, partition: int | None = None, trouble: str = "",
    doing: str = "writing",
) -> SinkError:  # fmt: skip
    """Return the error of ours for one of librdkafka's.

    Parameters
    ----------
    error
        What librdkafka said.
    client
        The brokers and how to talk to them.
    topic, partition
        Where the row should have gone, if it is about a row.
    trouble
        What librdkafka complained of before: why it could not connect.
    doing
        What was being done.
    """
    from confluent_kafka import KafkaError as Codes

    code, said, brokers = error.code(), client.redact(error.str()), client.address
    facts: dict[str, Any] = {"sink": NAME, "topic": topic, "partition": partition}
    if code in (Codes._UNKNOWN_TOPIC, Codes.UNKNOWN_TOPIC_OR_PART):
        return SinkError(
            f"{NAME}: the topic {topic!r} does not exist, and the brokers do not make it. Create it, or correct "
            "the name.",
            **facts,
        )
    if code == Codes._UNKNOWN_PARTITION:
        return SinkError(f"{NAME}: the topic {topic!r} has no partition {partition}. Rows may not name it.", **facts)
    if code == Codes.MSG_SIZE_TOO_LARGE:
        return SinkError(
            f"{NAME}: a row for topic {topic!r} is too large for Kafka ({said}). Raise kafka.max.request.size, and "
            "max.message.bytes of the topic.",
            **facts,
        )
    if code in (Codes._AUTHENTICATION, Codes.SASL_AUTHENTICATION_FAILED, Codes._SSL):
        return SinkError(
            f"{NAME}: the brokers at {brokers} and this client do not accept each other: {said}. Check the options "
            "kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.",
            **facts,
        )
    where = "" if topic is None else f" to topic {topic!r}"
    unreachable = (
        Codes._MSG_TIMED_OUT, Codes._TIMED_OUT, Codes._TIMED_OUT_QUEUE, Codes._TRANSPORT, Codes._ALL_BROKERS_DOWN,
        Codes._RESOLVE, Codes.REQUEST_TIMED_OUT, Codes.NOT_ENOUGH_REPLICAS,
    )  # fmt: skip
    if code in unreachable:
        why = f" Last trouble: {client.redact(trouble)}." if trouble else ""
        return SinkUnavailableError(
            f"{NAME}: the brokers at {brokers} did not answer in time while {doing}{where}: {said}.{why} Check "
            "kafka.bootstrap.servers and the brokers; kafka.delivery.timeout.ms says how long to try.",
            address=brokers,
            **facts,
        )
    return SinkError(f"{NAME}: {doing}{where} failed: {said} ({error.name()}).", **facts)
