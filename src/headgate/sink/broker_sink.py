"""A sink of brokers for continuous queries: rows at once, at least once; or with the checkpoint, exactly once.

Never: block the mailbox thread on brokers or disks; report a checkpoint's rows as safe that are neither acknowledged by
the brokers nor durable.

``at-least-once``: rows are sent as they come, by a thread or, where that has nothing to do and they are few, at once;
a barrier waits, on the thread, until the brokers have them.
``exactly-once``: a thread stages rows with the checkpoint; when it is complete, another publishes them (`publisher`).
Those of the last checkpoint follow it: a runner waits for `finish` before it ends the slot, and a slot that is killed
leaves them to the next run of the query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import pyarrow as pa

from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import InlineState, OperatorState
from headgate.sink.publisher import Publisher
from headgate.sink.sink import Sink, SinkWriter
from headgate.sink.staging import PieceWriter, folder_of
from headgate.sink.writer_thread import WriterThread

_QUEUE_BYTES = 4 * 1024 * 1024
"""How much may wait to be sent, or to be staged, before the source is asked to pause."""
_FEW_ROWS = 1024
"""More rows are sent by the thread, beside what the mailbox thread does meanwhile."""
_INLINE_BYTES = 64 * 1024
"""Up to here a checkpoint's last piece is in its state."""
_CLOSE_S = 5.0
"""The longest that `close` waits for each thing, in seconds."""


class RowSender(Protocol):
    """Sends rows at once. On the writer's thread, but for `write_now`, `drop_rows` and `close`; it may block else."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows, none of which waits for more of them. Raises if one of them, or an earlier one, is not written."""

    def write_now(self, batch: pa.RecordBatch) -> int:
        """Send the first rows, as many as take no wait, and return how many; raises as `write` does.

        On the mailbox thread, while no call of `write` or `flush` is under way or due.
        """

    def flush(self) -> None:
        """Return when the brokers have all rows; raises if they have not."""

    def serve(self) -> None:
        """Raise what became of rows that are not written; called now and then while none come."""

    def drop_rows(self) -> None:
        """Drop what the brokers do not have: a call that waits for them raises. From any thread."""

    def close(self) -> None:
        """Let go of the client. Called once, after the last call of `write` and `flush`."""


class RowStager(ABC):
    """Makes rows into what is staged. On the writer's thread, but for `close`; it may block."""

    schema: pa.Schema
    """Of what is staged, the same for all queries: a later program publishes what an earlier one staged."""

    @abstractmethod
    def staged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as they are staged, which must be publishable: a restore gets them again and again.

        Raises
        ------
        SinkError
            A row can never be written.
        """

    def barrier_passed(self) -> None:
        """Note that all rows that follow belong to another checkpoint."""

    def close(self) -> None:
        """Let go of what it holds."""


class BrokerSink(Sink):
    """A sink of brokers; a connector says how rows are sent, staged and published.

    Parameters
    ----------
    exactly_once
        Whether rows are staged, and published with their checkpoint.
    """

    def __init__(self, *, exactly_once: bool) -> None:
        self._exactly_once = self.publishes_on_slots = exactly_once
        self.publishes_at_once = not exactly_once

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        """Return a subtask's writer. It begins to publish what the items hold, whatever the guarantee is now.

        Raises
        ------
        OptionError
            The client refuses a setting; or there is no ``checkpointLocation`` to stage rows at.
        StoredStateError
            The items cannot be read.
        """
        publisher = self.publisher(context, items) if items or self._exactly_once else None
        if publisher is None or not self._exactly_once:
            return AtLeastOnceWriter(self.name, context, self.row_sender(), publisher)
        return ExactlyOnceWriter(self.name, context, self.row_stager(), publisher)

    @abstractmethod
    def row_sender(self) -> RowSender:
        """Return what sends the rows of a subtask at once."""

    @abstractmethod
    def row_stager(self) -> RowStager:
        """Return what makes the rows of a subtask into staged ones."""

    @abstractmethod
    def publisher(self, context: OperatorContext, items: Sequence[bytes]) -> Publisher:
        """Return what publishes the items, and what is staged in this run if rows are."""


class _Writer(SinkWriter):
    """What writers of both guarantees do: rows wait for a thread, and a barrier for the rows before it.

    Parameters
    ----------
    thread
        Where rows are taken.
    publisher
        Publishes staged rows; None: there are none.
    """

    def __init__(self, thread: WriterThread, publisher: Publisher | None) -> None:
        self._thread = thread
        self._publisher = publisher

    @abstractmethod
    def _take(self, batch: pa.RecordBatch) -> None:
        """Send or stage rows. On the thread."""

    @abstractmethod
    def _prepare(self, checkpoint_id: int) -> None:
        """Return when all rows up to now are safe. On the thread."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, which are sent or staged on the thread.

        Raises
        ------
        SinkError
            Earlier rows were not written.
        """
        self._raise_failure()
        if batch.num_rows:
            self._thread.submit(lambda: self._take(batch), batch.nbytes)

    def ready(self) -> Future[None] | None:
        """Return None if more rows may come now, else a future that is done when some were sent or staged."""
        if self._publisher is not None:
            self._publisher.raise_failure()
        return self._thread.room()

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Return a future that is done when the brokers have all rows up to now, or they are staged."""
        self._raise_failure()

        def prepare() -> OperatorState:
            self._prepare(checkpoint_id)
            items = [] if self._publisher is None else self._publisher.items()
            return OperatorState(items=tuple(map(InlineState, items)))

        return self._thread.submit(prepare)

    def finish(self) -> Future[None] | None:
        """Return a future that is done when all complete checkpoints are published; None: nothing was staged."""
        return None if self._publisher is None else self._publisher.finish()

    def unpublished_ms(self) -> int:
        """Return how long the oldest complete checkpoint has waited to be published; raises as `ready`."""
        self._raise_failure()
        return 0 if self._publisher is None else self._publisher.waiting_ms()

    def _raise_failure(self) -> None:
        self._thread.raise_failure()
        if self._publisher is not None:
            self._publisher.raise_failure()


class AtLeastOnceWriter(_Writer):
    """Sends rows as they come. A restore repeats those since the checkpoint.

    Parameters
    ----------
    sink
        The name of the sink.
    context
        Whose writer it is.
    sender
        Sends rows.
    publisher
        Publishes what an exactly-once writer had staged before the guarantee was changed; None: there is nothing.
    """

    def __init__(self, sink: str, context: OperatorContext, sender: RowSender, publisher: Publisher | None) -> None:
        name = f"{sink.replace('.', '-')}-writer-{context.subtask}"
        super().__init__(WriterThread(name, limit_bytes=_QUEUE_BYTES, when_idle=sender.serve), publisher)
        self._sender = sender

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows: a few are sent here, if the thread has nothing to do, which would take longer to be woken.

        Raises
        ------
        SinkError
            One of them, or an earlier one, was not written.
        """
        if 0 < batch.num_rows <= _FEW_ROWS and self._thread.is_idle:
            self._raise_failure()
            written = self._sender.write_now(batch)
            if written == batch.num_rows:
                self._thread.begin()
                return
            batch = batch.slice(written)
        super().write(batch)

    def _take(self, batch: pa.RecordBatch) -> None:
        self._sender.write(batch)

    def _prepare(self, checkpoint_id: int) -> None:
        self._sender.flush()

    def close(self) -> None:
        """Drop the rows that were not flushed; publish what was inherited, or leave it to a restore."""
        if not self._thread.stop(0.1):
            self._sender.drop_rows()  # calls that wait for the brokers learn of it, and end
            self._thread.stop(_CLOSE_S)
        self._sender.close()
        if self._publisher is not None:
            self._publisher.close(_CLOSE_S)


class ExactlyOnceWriter(_Writer):
    """Stages rows, and publishes them when their checkpoint is complete.

    Parameters
    ----------
    sink
        The name of the sink.
    context
        Whose writer it is.
    stager
        Makes rows into staged ones.
    publisher
        Publishes staged rows.
    """

    _publisher: Publisher

    def __init__(self, sink: str, context: OperatorContext, stager: RowStager, publisher: Publisher) -> None:
        name = f"{sink.replace('.', '-')}-stager-{context.subtask}"
        super().__init__(WriterThread(name, limit_bytes=_QUEUE_BYTES), publisher)
        # On the thread only:
        self._stager = stager
        self._pieces = PieceWriter(
            publisher.folder, f"{folder_of(publisher.name)}/", stager.schema, inline_bytes=_INLINE_BYTES
        )

    def _take(self, batch: pa.RecordBatch) -> None:
        self._pieces.add(self._stager.staged(batch))

    def _prepare(self, checkpoint_id: int) -> None:
        pieces = self._pieces.take(checkpoint_id)
        try:
            self._publisher.add(pieces)
        except BaseException:
            for piece in pieces:  # they are in no checkpoint
                self._publisher.folder.delete(piece.rows)
            raise
        self._stager.barrier_passed()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Publish what that checkpoint and those before it hold."""
        self._publisher.complete(checkpoint_id)

    def close(self) -> None:
        """Publish what is known complete, or leave it to a restore if it takes too long."""
        self._publisher.close(_CLOSE_S)
        self._stager.close()
        if self._thread.stop(_CLOSE_S):
            self._pieces.discard()
            self._publisher.folder.delete_folder(folder_of(self._publisher.name))
