"""Publishes staged rows once their checkpoint is complete, by producers of one name with sequence ids.

Never: send rows in other batches, or with other sequence ids, than in an attempt before.

`headgate.sink.publisher` has the life of a piece. It is sent, then a mark beside the staged files says so, then its
file goes. Wherever a crash falls:

- before the mark: whoever is given the item sends all of it again, and brokers drop what they have. They know a name's
  highest sequence id for as long as ``brokerDeduplicationProducerInactivityTimeoutMinutes`` says (6 hours);
- after it: whoever is given the item finds the mark and sends nothing.

Marks stay: an older checkpoint may be restored at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.connectors.pulsar.client import NAME
from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.sink.producer import DEFAULT_SEND_TIMEOUT_MS, MessageWriter
from headgate.errors import CorruptStateError, OptionError, SinkUnavailableError
from headgate.protocol.operator_context import OperatorContext
from headgate.sink.publisher import Publisher
from headgate.sink.staging import StagedItem, StagedPiece, folder_of
from headgate.source.serialization import VersionedSerializer

ITEM_SERIALIZER: VersionedSerializer[StagedItem] = VersionedSerializer(
    StagedItem, version=1, what="staged rows of headgate.pulsar's sink"
)
_ROWS_BITS = 32


class PublishedMark(msgspec.Struct, frozen=True):
    """Says that the pieces of a name are published up to a number; or a micro-batch of that number."""

    number: int


MARK_SERIALIZER: VersionedSerializer[PublishedMark] = VersionedSerializer(
    PublishedMark, version=1, what="the mark of published rows of headgate.pulsar's sink"
)


def first_sequence_id(number: int) -> int:
    """Return the sequence id of the first row of a piece, or of a batch, by its number. It is never 0.

    The client takes 0 for none.
    """
    return (number << _ROWS_BITS) + 1


class PulsarPublisher(Publisher):
    """Publishes by producers with sequence ids. All public methods may be called by any thread.

    Parameters
    ----------
    sink
        What is written and where to.
    context, items
        As of `Publisher`.
    """

    def __init__(self, sink: PulsarSink, context: OperatorContext, items: Sequence[bytes]) -> None:
        if sink.client.admin_url is None:
            raise OptionError(
                f"{NAME}: the checkpoint has rows that are published exactly once: set the option 'admin.url' for one "
                "more run.",
                option="admin.url", value=None,
            )  # fmt: skip
        self._sink = sink
        sends_ms = dict(sink.producer).get("send_timeout_millis", DEFAULT_SEND_TIMEOUT_MS)
        super().__init__(
            context, items, sink=NAME, address=sink.client.service_url, topic=sink.topic, serializer=ITEM_SERIALIZER,
            limit_ms=2 * (sink.client.timeout_ms + sends_ms), stages=sink.exactly_once,
        )  # fmt: skip

    def open(self) -> None:
        """Do nothing: the name is new, and producers are made when there are rows for their topics."""

    def publish(self, item: StagedItem, pieces: Sequence[StagedPiece], *, is_own: bool) -> None:
        """Send all rows of the pieces, some of them again perhaps, and wait until the brokers have them.

        The producers are closed then: brokers let no second one of a name in, and a slot that lives on unknown to
        anybody would shut out who was given the item.
        """
        lacking = self._lacking(item, pieces) if not is_own else pieces  # nobody else marked the own ones
        if not lacking:
            return
        try:
            with MessageWriter(self._sink, item.name) as writer:
                self._send(writer, lacking)
        except CorruptStateError:
            if self._lacking(item, lacking):
                raise
            return  # somebody who was taken for dead has published them meanwhile, and deleted the files
        self.folder.write(_mark(item.name), MARK_SERIALIZER.serialize(PublishedMark(lacking[-1].number)))

    def _lacking(self, item: StagedItem, pieces: Sequence[StagedPiece]) -> Sequence[StagedPiece]:
        stored = self.folder.read_bytes(_mark(item.name))
        done = -1 if stored is None else MARK_SERIALIZER.deserialize(stored).number
        return [piece for piece in pieces if piece.number > done]

    def discard(self) -> None:
        """Do nothing: an attempt leaves nothing that lives."""

    def is_passing(self, error: BaseException, *, is_first: bool) -> bool:
        """Return whether another attempt may succeed after one that failed so."""
        return isinstance(error, SinkUnavailableError)

    def _send(self, writer: MessageWriter, pieces: Sequence[StagedPiece]) -> None:
        for piece in pieces:
            sequence_id = first_sequence_id(piece.number)
            for batch in self.folder.read(piece.rows):
                writer.write(batch, sequence_id)
                sequence_id += batch.num_rows
                self.progressed()
            writer.flush()  # the next piece begins with a batch, whichever pieces are sent again
            self.progressed()


def _mark(name: str) -> str:
    return f"{folder_of(name)}/published.json"
