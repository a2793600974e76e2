"""Publishes staged rows once their checkpoint is complete, each piece in one transaction with the marker that says so.

Never: publish rows of a checkpoint that is not known complete, or look a marker up before the name's earlier writers
are fenced.

The life of a piece (traps, 27): staged -> stands in a checkpoint's state -> the checkpoint is complete -> published
with the marker ``number`` of its name -> gone from the state of the next checkpoint. Wherever a crash falls:

- before the checkpoint is complete: the restore reads the rows again and stages them under another name;
- before the transaction's commit: whoever is given the item publishes it, its marker being absent;
- after the commit: whoever is given the item finds the marker and drops it;
- in the middle of it, or while a zombie is at it: ``init_transactions`` under the item's own name brings that to an
  end, either way, before the marker is looked up.

A name belongs to one writer (query, sink, run, subtask, execution) and stands in one item of each checkpoint, so that
two living writers never share one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from headgate.connectors.kafka.sink_options import NAME, KafkaSink
from headgate.connectors.kafka.transactions import TransactionalWriter
from headgate.errors import HeadgateError, InternalError
from headgate.operators.sinks.kafka_staging import (
    ITEM_SERIALIZER,
    StagedItem,
    StagedPiece,
    StagingFolder,
    folder_of,
    staged_sink,
)
from headgate.operators.sinks.worker_thread import WorkerThread

_log = logging.getLogger(__name__)


class StagedPublisher:
    """Publishes on a thread of its own, in order: what was inherited first. All methods may be called by any thread.

    Parameters
    ----------
    sink
        What is written and where to.
    folder
        Where staged files lie.
    name
        The name that the writer stages under.
    inherited
        Items of the checkpoint that is restored.
    stages
        Whether there will be rows beside the inherited ones.
    """

    def __init__(
        self, sink: KafkaSink, folder: StagingFolder, name: str, inherited: Sequence[StagedItem], *, stages: bool
    ) -> None:
        self._sink = sink
        self._folder = folder
        self._name = name
        self._writer: TransactionalWriter | None = None  # on the thread, and after its end
        self._thread = WorkerThread(f"headgate-kafka-publisher-{name}")
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._inherited = {item.name: item for item in inherited}
        self._pieces: list[StagedPiece] = []
        self._opened = self._thread.submit(self._open) if stages else None
        for item in inherited:
            self._thread.submit(lambda item=item: self._publish_inherited(item))  # type: ignore[misc]

    def add(self, pieces: Sequence[StagedPiece]) -> None:
        """Take pieces over, in the order of their numbers; they will stand in the next state. Blocks.

        It waits until the own name is open: done later, that would shut out who was given the item meanwhile.

        Raises
        ------
        SinkError
            The brokers do not answer or refuse.
        """
        if not pieces:
            return
        assert self._opened is not None
        self._opened.result()
        with self._lock:
            self._pieces += pieces

    def items(self) -> list[bytes]:
        """Return what is not known to be published, as list state."""
        with self._lock:
            items = list(self._inherited.values())
            if self._pieces:
                items.append(StagedItem(self._name, self._sink.topic, tuple(self._pieces)))
        return [ITEM_SERIALIZER.serialize(item) for item in items]

    def complete(self, checkpoint_id: int) -> None:
        """Publish what stands in a checkpoint, which is complete, and in those before it. Returns at once."""
        with self._lock:
            due = any(piece.checkpoint_id <= checkpoint_id for piece in self._pieces)
        if due:
            self._thread.submit(lambda: self._publish_own(checkpoint_id))

    def finish(self) -> Future[None]:
        """Return a future that is done when all that was ordered is published."""
        return self._thread.submit(lambda: None)

    def raise_failure(self) -> None:
        """Raise what stopped the publication, for good: a restore goes on with it."""
        self._thread.raise_failure()

    def close(self, timeout_s: float) -> None:
        """Publish what was ordered if that takes no longer than this, in seconds; the rest is left to a restore."""
        with contextlib.suppress(HeadgateError, TimeoutError):
            self.finish().result(timeout_s)
        if not self._thread.stop(0.1):
            _log.warning("%s: closed while publishing as %r; a restore brings it to an end.", NAME, self._name)
        elif self._writer is not None:
            self._writer.close()

    # From here on: on the thread.

    def _open(self) -> None:
        writer = TransactionalWriter(staged_sink(self._sink.client, self._sink.topic), self._name)
        self._writer = writer  # `close` lets go of it, after an error too
        if writer.marker() is not None:
            raise InternalError(f"{NAME}: the name {self._name!r} was used before: rows under it would be lost.")

    def _publish_own(self, checkpoint_id: int) -> None:
        with self._lock:
            due = [piece for piece in self._pieces if piece.checkpoint_id <= checkpoint_id]
        if not due:
            return  # an order before this one was carried out later, and did this one's work
        assert self._writer is not None, "pieces are taken over once it is there"
        self._publish(self._writer, due)
        with self._lock:
            del self._pieces[: len(due)]
        for piece in due:
            self._folder.delete(piece.rows)

    def _publish_inherited(self, item: StagedItem) -> None:
        with TransactionalWriter(staged_sink(self._sink.client, item.topic), item.name) as writer:
            done = writer.marker()
            lacking = [piece for piece in item.pieces if done is None or piece.number > done.epoch]
            if lacking:
                self._publish(writer, lacking)
        with self._lock:
            del self._inherited[item.name]
        for piece in item.pieces:
            self._folder.delete(piece.rows)
        self._folder.delete_folder(folder_of(item.name))

    def _publish(self, writer: TransactionalWriter, pieces: Sequence[StagedPiece]) -> None:
        writer.begin()
        try:
            for piece in pieces:
                for batch in self._folder.read(piece.rows):
                    writer.write(batch)
            writer.commit(pieces[-1].number)
        except BaseException:
            writer.abort()
            raise
