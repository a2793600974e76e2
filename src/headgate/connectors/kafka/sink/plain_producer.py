"""Produces rows one by one, by confluent-kafka's own producer: the fall-back of `bulk_producer`; a test compares them.

Never: be the way that a fast machine takes: Python takes three times as long for a row as compiled code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.connectors.kafka.consumer import client_log
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.row_producer import OnFailure

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


class PlainProducer:
    """A producer of confluent-kafka's. A `RowProducer`; parameters and errors are those of `producer.make_producer`."""

    def __init__(
        self,
        settings: dict[str, Any],
        sink: KafkaSink,
        on_failure: OnFailure,
        on_trouble: Callable[[KafkaError], object],
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                on_failure(error, message.topic(), message.partition())

        own = {"on_delivery": on_delivery, "error_cb": on_trouble, "delivery.report.only.error": True}
        self._sink = sink
        try:
            self._producer = Producer(settings | own, logger=client_log)
        except KafkaException as error:
            raise ValueError(error.args[0].str()) from error

    def rows(self, batch: pa.RecordBatch) -> Callable[[], int]:
        """Return what adds the rows of a batch to the queue."""
        records, done = self._records(batch), 0
        row = next(records, None)

        def add() -> int:
            from confluent_kafka import KafkaException

            nonlocal row, done
            while row is not None:
                try:
                    self._producer.produce(*row)  # no variable has the client: an error's traceback would keep it
                except BufferError:
                    break
                except KafkaException as error:
                    raise KafkaException(error.args[0], done) from error
                row = next(records, None)
                done += 1
            return done

        return add

    def _records(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """Yield the positional arguments of ``Producer.produce`` for each row."""
        columns = self._sink.columns

        def octets(index: int | None) -> Iterable[bytes | None]:
            if index is None:
                return repeat(None)
            return batch.column(index).cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]

        topics: Iterable[str | None] = repeat(self._sink.topic)
        if self._sink.topic is None:
            topics = batch.column(columns.topic).to_pylist()
        partitions: Iterable[int] = repeat(-1)
        if columns.partition is not None:
            partitions = batch.column(columns.partition).fill_null(-1).to_pylist()
        four = (topics, octets(columns.value), octets(columns.key), partitions)
        if columns.headers is None:
            return zip(*four)
        headers = map(_headers, batch.column(columns.headers).to_pylist())
        return zip(*four, repeat(None), repeat(None), repeat(0), headers)  # no callbacks, time stamp of now

    def __len__(self) -> int:
        return len(self._producer)

    def poll(self, seconds: float) -> None:
        """Run the callbacks that are due."""
        self._producer.poll(seconds)

    def flush(self, seconds: float) -> int:
        """Wait until the brokers have all rows. When they have is not reported: nothing cuts the wait short."""
        return int(self._producer.flush(seconds))

    def purge(self) -> None:
        """Drop all rows that the brokers do not have."""
        self._producer.purge()

    def init_transactions(self, seconds: float) -> None:
        """Fence earlier producers of the same transactional id."""
        self._producer.init_transactions(seconds)

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def send_offsets(self, group: str, topics: Iterable[str], offset: int, metadata: str, seconds: float) -> None:
        """Commit an offset on partition 0 of topics for a consumer group, with the transaction."""
        from confluent_kafka import Consumer, TopicPartition

        # It joins no group and asks nobody: only the name is needed, and there is no other way to say it.
        consumer = Consumer({"group.id": group}, logger=client_log)
        try:
            known_as = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        offsets = [TopicPartition(topic, 0, offset, metadata) for topic in topics]
        self._producer.send_offsets_to_transaction(offsets, known_as, seconds)

    def commit_transaction(self, seconds: float) -> None:
        """Commit the transaction."""
        self._producer.commit_transaction(seconds)

    def abort_transaction(self, seconds: float) -> None:
        """Abort the transaction."""
        self._producer.abort_transaction(seconds)

    def close(self) -> None:
        """Drop what is not sent, and let go of the client."""
        from confluent_kafka import KafkaException

        self._producer.purge()
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)
        del self._producer  # which ends its threads, once nobody is in a call of it


def _headers(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return None if headers is None else [(header["key"], header["value"]) for header in headers]
