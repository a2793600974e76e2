"""The Kafka sink of continuous queries: rows at once, at least once; or with the checkpoint, exactly once.

Never: block the mailbox thread on brokers or disks; report a checkpoint's rows as safe that are neither acknowledged by
the brokers nor durable.

``at-least-once``: a thread hands rows to the producer as they come; a barrier waits until the brokers have them.
``exactly-once``: a thread stages rows with the checkpoint; when it is complete, another publishes them in a transaction
(`publisher` has the story). The transaction of the last checkpoint follows it: a runner waits for `finish` before
it ends the slot, and a slot that is killed leaves it to the next run of the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import pyarrow as pa

from headgate.connectors.kafka.client_config import require_client_library
from headgate.connectors.kafka.sink.options import NAME, KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter, check_rows
from headgate.connectors.kafka.sink.publisher import StagedPublisher
from headgate.connectors.kafka.sink.staging import IF_GONE, ITEM_SERIALIZER, STAGED_SCHEMA, staged
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import InlineState, OperatorState
from headgate.sink import Sink, SinkWriter
from headgate.sink.staging import (
    InlineRows,
    RowsEncoder,
    RowsFile,
    StagedPiece,
    folder_of,
    staging_folder,
    staging_name,
)
from headgate.sink.writer_thread import WriterThread

_LINGER_MS = 1
"""How long a row may wait for others to share its request: with 0 nearly each has one of its own."""
_QUEUE_BYTES = 4 * 1024 * 1024
"""How much may wait for the producer, or for staging, before the source is asked to pause."""
_PIECE_BYTES = 8 * 1024 * 1024
"""Staged rows go into a file when there are so many: memory does not depend on the time between checkpoints."""
_INLINE_BYTES = 64 * 1024
"""Up to here a checkpoint's last piece is in its state."""
_CLOSE_S = 5.0
"""The longest that `close` waits for each thing, in seconds."""


def make_kafka_sink(options: Mapping[str, str], schema: pa.Schema) -> ContinuousKafkaSink:
    """Return the sink for the formats ``kafka`` and ``headgate.kafka``. On the driver.

    Parameters
    ----------
    options
        Those of ``writeStream``: as for `headgate.kafka` in Structured Streaming.
    schema
        The columns that are written.

    Raises
    ------
    OptionError
        An option is unknown or has a bad value; a column is missing or has the wrong type.
    DeploymentError
        confluent-kafka is not installed.
    """
    require_client_library()
    return ContinuousKafkaSink(KafkaSink.of(options, schema))


class ContinuousKafkaSink(Sink):
    """Writes rows to Kafka. Made by `make_kafka_sink`."""

    name = NAME

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self.publishes_on_slots = sink.exactly_once
        self.publishes_at_once = not sink.exactly_once

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        """Return a subtask's writer. It begins to publish what the items hold, whatever the guarantee is now.

        Raises
        ------
        OptionError
            librdkafka refuses a setting; or there is no ``checkpointLocation`` to stage rows at.
        StoredStateError
            The items cannot be read.
        """
        publisher = self._publisher(context, items) if items or self._sink.exactly_once else None
        if publisher is None or not self._sink.exactly_once:
            return AtLeastOnceWriter(self._sink, context, publisher)
        return ExactlyOnceWriter(self._sink, context, publisher)

    def _publisher(self, context: OperatorContext, items: Sequence[bytes]) -> StagedPublisher:
        inherited = [ITEM_SERIALIZER.deserialize(item) for item in items]
        return StagedPublisher(
            self._sink,
            staging_folder(context.options, NAME, IF_GONE),
            staging_name(context),
            inherited,
            stages=self._sink.exactly_once,
        )


class AtLeastOnceWriter(SinkWriter):
    """Hands rows on as they come. A restore repeats those since the checkpoint.

    Parameters
    ----------
    sink
        What to write and where to.
    context
        Whose writer it is.
    publisher
        Publishes what an exactly-once writer had staged before the guarantee was changed; None: there is nothing.
    """

    def __init__(self, sink: KafkaSink, context: OperatorContext, publisher: StagedPublisher | None) -> None:
        self._kafka = KafkaWriter(sink, linger_ms=_LINGER_MS)
        self._publisher = publisher
        self._thread = WriterThread(
            f"headgate-kafka-writer-{context.subtask}", limit_bytes=_QUEUE_BYTES, when_idle=self._kafka.serve
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, which are handed on at once.

        Raises
        ------
        SinkError
            Earlier rows were not written.
        """
        self._raise_failure()
        self._thread.submit(lambda: self._kafka.write(batch), batch.nbytes)

    def ready(self) -> Future[None] | None:
        """Return None if more rows may come now, else a future that is done when the brokers took some."""
        self._raise_failure()
        return self._thread.room()

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Return a future that is done when the brokers have all rows up to now."""
        self._raise_failure()

        def flush() -> OperatorState:
            self._kafka.flush()
            return _state([] if self._publisher is None else self._publisher.items())

        return self._thread.submit(flush)

    def finish(self) -> Future[None] | None:
        """Return what is done when nothing is left to be published."""
        return None if self._publisher is None else self._publisher.finish()

    def unpublished_ms(self) -> int:
        """Return how long what was inherited has waited to be published, at most; raises as `ready`."""
        self._raise_failure()
        return 0 if self._publisher is None else self._publisher.waiting_ms()

    def close(self) -> None:
        """Drop the rows that were not flushed; publish what was inherited, or leave it to a restore."""
        if not self._thread.stop(0.1):
            self._kafka.drop_rows()  # calls that wait for the brokers learn of it, and end
            self._thread.stop(_CLOSE_S)
        self._kafka.close()
        if self._publisher is not None:
            self._publisher.close(_CLOSE_S)

    def _raise_failure(self) -> None:
        self._thread.raise_failure()
        if self._publisher is not None:
            self._publisher.raise_failure()


class ExactlyOnceWriter(SinkWriter):
    """Stages rows, and publishes them when their checkpoint is complete.

    Parameters
    ----------
    sink
        What to write and where to.
    context
        Whose writer it is.
    publisher
        Publishes staged rows.
    """

    def __init__(self, sink: KafkaSink, context: OperatorContext, publisher: StagedPublisher) -> None:
        self._sink = sink
        self._folder = staging_folder(context.options, NAME, IF_GONE)
        self._name = staging_name(context)
        self._publisher = publisher
        self._thread = WriterThread(f"headgate-kafka-stager-{context.subtask}", limit_bytes=_QUEUE_BYTES)
        # On the thread only:
        self._encoder = RowsEncoder(STAGED_SCHEMA)
        self._pieces: list[tuple[int, InlineRows | RowsFile]] = []  # since the last barrier, by number
        self._next_number = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, which are staged.

        Raises
        ------
        SinkError
            A row cannot be written to Kafka; or earlier rows were not published.
        """
        self._raise_failure()
        check_rows(self._sink, batch)  # what is staged must be publishable: a restore gets it again and again
        if batch.num_rows:
            self._thread.submit(lambda: self._stage(batch), batch.nbytes)

    def ready(self) -> Future[None] | None:
        """Return None if more rows may come now, else a future that is done when some are staged."""
        self._raise_failure()
        return self._thread.room()

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Return a future that is done when all rows up to now are staged."""
        self._raise_failure()
        return self._thread.submit(lambda: self._collect(checkpoint_id))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Publish what that checkpoint and those before it hold."""
        self._publisher.complete(checkpoint_id)

    def finish(self) -> Future[None]:
        """Return a future that is done when all complete checkpoints are published."""
        return self._publisher.finish()

    def unpublished_ms(self) -> int:
        """Return how long the oldest complete checkpoint has waited to be published; raises as `ready`."""
        self._raise_failure()
        return self._publisher.waiting_ms()

    def close(self) -> None:
        """Publish what is known complete, or leave it to a restore if it takes too long."""
        self._publisher.close(_CLOSE_S)
        if self._thread.stop(_CLOSE_S):
            for _, rows in self._pieces:  # they are in no checkpoint
                self._folder.delete(rows)
            self._folder.delete_folder(folder_of(self._name))

    def _raise_failure(self) -> None:
        self._thread.raise_failure()
        self._publisher.raise_failure()

    # From here on: on the staging thread.

    def _stage(self, batch: pa.RecordBatch) -> None:
        self._encoder.add(staged(self._sink, batch))
        if self._encoder.size_bytes >= _PIECE_BYTES:
            self._cut(may_be_inline=False)

    def _cut(self, may_be_inline: bool) -> None:
        data, number = self._encoder.take(), self._next_number
        rows: InlineRows | RowsFile
        if may_be_inline and len(data) <= _INLINE_BYTES:
            rows = InlineRows(data)
        else:
            rows = self._folder.write(f"{folder_of(self._name)}/{number}.arrow", data)
        self._pieces.append((number, rows))
        self._next_number += 1

    def _collect(self, checkpoint_id: int) -> OperatorState:
        if self._encoder.rows:
            self._cut(may_be_inline=True)
        self._publisher.add([StagedPiece(number, checkpoint_id, rows) for number, rows in self._pieces])
        self._pieces = []
        return _state(self._publisher.items())


def _state(items: Sequence[bytes]) -> OperatorState:
    return OperatorState(items=tuple(map(InlineState, items)))
