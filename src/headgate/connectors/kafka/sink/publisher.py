"""Publishes staged rows once their checkpoint is complete, each piece in one transaction with the marker that says so.

Never: look a marker up before the name's earlier writers are fenced.

`headgate.sink.publisher` has the life of a piece. It is published with the marker ``number`` of its name, so that
wherever a crash falls:

- before the checkpoint is complete: the restore reads the rows again and stages them under another name;
- before the transaction's commit: whoever is given the item publishes it, its marker being absent;
- after the commit: whoever is given the item finds the marker and drops it;
- in the middle of it, or while a zombie is at it: ``init_transactions`` under the item's own name brings that to an
  end, either way, before the marker is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.connectors.kafka.sink.options import NAME, KafkaSink
from headgate.connectors.kafka.sink.staging import IF_GONE, ITEM_SERIALIZER, staged_sink
from headgate.connectors.kafka.sink.transactions import Marker, TransactionalWriter, is_passing
from headgate.errors import InternalError, SinkError
from headgate.protocol.operator_context import OperatorContext
from headgate.sink.publisher import Publisher
from headgate.sink.staging import StagedItem, StagedPiece


class StagedPublisher(Publisher):
    """Publishes by transactions. All public methods may be called by any thread.

    Parameters
    ----------
    sink
        What is written and where to.
    context, items
        As of `Publisher`.
    """

    def __init__(self, sink: KafkaSink, context: OperatorContext, items: Sequence[bytes]) -> None:
        self._sink = sink
        self._writer: TransactionalWriter | None = None  # on the thread, and after its end
        super().__init__(
            context, items, sink=NAME, address=sink.client.address, topic=sink.topic, serializer=ITEM_SERIALIZER,
            limit_ms=sink.client.timeout_ms + sink.client.delivery_timeout_ms, stages=sink.exactly_once,
            if_gone=IF_GONE,
        )  # fmt: skip

    def open(self) -> None:
        """Fence whoever might have used the name; nobody may have."""
        self._writer, marker = self._connect(self.name, self._sink.topic)
        if marker is not None:
            raise InternalError(f"{NAME}: the name {self.name!r} was used before: rows under it would be lost.")

    def publish(self, item: StagedItem, pieces: Sequence[StagedPiece], *, is_own: bool) -> None:
        """Publish pieces in one transaction, but for those that the name's marker knows."""
        if not is_own:
            writer, done = self._connect(item.name, item.topic)
            with writer:
                self._publish(writer, pieces, done)
            return
        done = None
        if self._writer is None:  # an attempt before this one failed; how far it came the brokers know
            self._writer, done = self._connect(item.name, item.topic)
        self._publish(self._writer, pieces, done)

    def discard(self) -> None:
        """Close the own writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def is_passing(self, error: BaseException, *, is_first: bool) -> bool:
        """Return whether another attempt may succeed: one that was given up may have fenced the one after it, late."""
        return is_passing(error) or (not is_first and isinstance(error, SinkError) and "fenced" in error.facts)

    def _connect(self, name: str, topic: str | None) -> tuple[TransactionalWriter, Marker | None]:
        """Return a writer and its marker; no earlier writer of the name can write any more."""
        writer = TransactionalWriter(staged_sink(self._sink.client, topic), name, patience_s=self._patience_s)
        try:
            return writer, writer.marker()
        except BaseException:
            writer.close()
            raise

    def _publish(self, writer: TransactionalWriter, pieces: Sequence[StagedPiece], done: Marker | None) -> None:
        """Publish those of the pieces that are not."""
        lacking = [piece for piece in pieces if done is None or piece.number > done.epoch]
        if not lacking:
            return
        writer.begin()
        try:
            for piece in lacking:
                for batch in self.folder.read(piece.rows):
                    writer.write(batch)
                    self.progressed()
            writer.commit(lacking[-1].number)
        except BaseException as error:
            if not is_passing(error):  # else the next writer of the name does so
                writer.abort()
            raise
