"""The Pulsar sink of continuous queries: rows at once, at least once; or with the checkpoint, exactly once.

Never: block the mailbox thread on brokers or disks; report a checkpoint's rows as safe that are neither acknowledged by
the brokers nor durable.

``at-least-once``: a thread hands rows to producers as they come; a barrier waits until the brokers have them.
``exactly-once``: a thread stages rows with the checkpoint; when it is complete, another publishes them (`publisher`).
Those of the last checkpoint follow it: a runner waits for `finish` before it ends the slot, and a slot that is killed
leaves them to the next run of the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import pyarrow as pa

from headgate.connectors.pulsar.client import NAME, require_client_library
from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.sink.producer import MessageWriter
from headgate.connectors.pulsar.sink.publisher import ITEM_SERIALIZER, PulsarPublisher
from headgate.connectors.pulsar.sink.rows import ROWS_SCHEMA, Router, parts
from headgate.errors import OptionError
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

_QUEUE_BYTES = 4 * 1024 * 1024
"""How much may wait for producers, or for staging, before the source is asked to pause."""
_PIECE_BYTES = 8 * 1024 * 1024
"""Staged rows go into a file when there are so many: memory does not depend on the time between checkpoints."""
_INLINE_BYTES = 64 * 1024
"""Up to here a checkpoint's last piece is in its state."""
_CLOSE_S = 5.0
"""The longest that `close` waits for each thing, in seconds."""


def make_pulsar_sink(options: Mapping[str, str], schema: pa.Schema) -> ContinuousPulsarSink:
    """Return the sink for the format ``headgate.pulsar``. On the driver.

    Parameters
    ----------
    options
        Those of ``writeStream``: as for `headgate.pulsar` in Structured Streaming.
    schema
        The columns that are written.

    Raises
    ------
    OptionError
        An option is unknown or has a bad value; a column is missing or has the wrong type.
    DeploymentError
        pulsar-client is not installed.
    """
    require_client_library()
    return ContinuousPulsarSink(PulsarSink.of(options, schema))


class ContinuousPulsarSink(Sink):
    """Writes rows to Pulsar. Made by `make_pulsar_sink`."""

    name = NAME

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink
        self.publishes_on_slots = sink.exactly_once
        self.publishes_at_once = not sink.exactly_once

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        """Return a subtask's writer. It begins to publish what the items hold, whatever the guarantee is now.

        Raises
        ------
        OptionError
            There is no ``checkpointLocation`` to stage rows at, or no ``admin.url``.
        StoredStateError
            The items cannot be read.
        """
        publisher = self._publisher(context, items) if items or self._sink.exactly_once else None
        if publisher is None or not self._sink.exactly_once:
            return AtLeastOnceWriter(self._sink, context, publisher)
        return ExactlyOnceWriter(self._sink, context, publisher)

    def _publisher(self, context: OperatorContext, items: Sequence[bytes]) -> PulsarPublisher:
        if self._sink.client.admin_url is None:
            raise OptionError(
                f"{NAME}: the checkpoint has rows that are published exactly once: set the option 'admin.url' for one "
                "more run.",
                option="admin.url", value=None,
            )  # fmt: skip
        inherited = [ITEM_SERIALIZER.deserialize(item) for item in items]
        return PulsarPublisher(
            self._sink,
            staging_folder(context.options, NAME),
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

    def __init__(self, sink: PulsarSink, context: OperatorContext, publisher: PulsarPublisher | None) -> None:
        self._sink = sink
        self._writer = MessageWriter(sink)
        self._router = Router(sink, self._writer.partitions)
        self._publisher = publisher
        self._thread = WriterThread(
            f"headgate-pulsar-writer-{context.subtask}", limit_bytes=_QUEUE_BYTES,
            when_idle=self._writer.raise_failure,
        )  # fmt: skip

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, which are handed on at once.

        Raises
        ------
        SinkError
            A row cannot be written to Pulsar; or earlier rows were not written.
        """
        self._raise_failure()
        rows = parts(self._sink, batch)
        if rows.num_rows:
            self._thread.submit(lambda: self._send(rows), batch.nbytes)

    def _send(self, rows: pa.RecordBatch) -> None:
        self._writer.write(self._router.route(rows))
        self._writer.flush()  # without one the last rows would wait for more

    def ready(self) -> Future[None] | None:
        """Return None if more rows may come now, else a future that is done when the brokers took some."""
        self._raise_failure()
        return self._thread.room()

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Return a future that is done when the brokers have all rows up to now."""
        self._raise_failure()

        def flush() -> OperatorState:
            self._router.forget()
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
        stopped = self._thread.stop(0.1)
        self._writer.abandon()  # calls that wait for the brokers get an error, and end
        if not stopped:
            self._thread.stop(_CLOSE_S)
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

    def __init__(self, sink: PulsarSink, context: OperatorContext, publisher: PulsarPublisher) -> None:
        self._sink = sink
        self._folder = staging_folder(context.options, NAME)
        self._name = staging_name(context)
        self._publisher = publisher
        self._thread = WriterThread(f"headgate-pulsar-stager-{context.subtask}", limit_bytes=_QUEUE_BYTES)
        # It asks for partitions, and sends nothing.
        self._lookups = MessageWriter(sink)
        # On the thread only:
        self._router = Router(sink, self._lookups.partitions)
        self._encoder = RowsEncoder(ROWS_SCHEMA)
        self._pieces: list[tuple[int, InlineRows | RowsFile]] = []  # since the last barrier, by number
        self._next_number = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, which are staged.

        Raises
        ------
        SinkError
            A row cannot be written to Pulsar; or earlier rows were not published.
        """
        self._raise_failure()
        rows = parts(self._sink, batch)  # what is staged must be publishable: a restore gets it again and again
        if rows.num_rows:
            self._thread.submit(lambda: self._stage(rows), batch.nbytes)

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
        self._lookups.abandon()
        if self._thread.stop(_CLOSE_S):
            for _, rows in self._pieces:  # they are in no checkpoint
                self._folder.delete(rows)
            self._folder.delete_folder(folder_of(self._name))

    def _raise_failure(self) -> None:
        self._thread.raise_failure()
        self._publisher.raise_failure()

    # From here on: on the staging thread.

    def _stage(self, rows: pa.RecordBatch) -> None:
        self._encoder.add(self._router.route(rows))
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
        self._router.forget()
        return _state(self._publisher.items())


def _state(items: Sequence[bytes]) -> OperatorState:
    return OperatorState(items=tuple(map(InlineState, items)))
