"""Publishes staged rows once their checkpoint is complete, each piece in one transaction with the marker that says so.

Never: publish rows of a checkpoint that is not known complete, or look a marker up before the name's earlier writers
are fenced.

The life of a piece: staged -> in a checkpoint's state -> the checkpoint is complete -> published
with the marker ``number`` of its name -> gone from the state of the next checkpoint. Wherever a crash falls:

- before the checkpoint is complete: the restore reads the rows again and stages them under another name;
- before the transaction's commit: whoever is given the item publishes it, its marker being absent;
- after the commit: whoever is given the item finds the marker and drops it;
- in the middle of it, or while a zombie is at it: ``init_transactions`` under the item's own name brings that to an
  end, either way, before the marker is looked up.

An attempt that failed, brokers being down or librdkafka hanging in a call, is what a crash is: its producer is given
up, and the next attempt goes the same way under the same name. `publication` decides how often.

A name belongs to one writer (query, sink, run, subtask, execution) and is in one item of each checkpoint, so that
two living writers never share one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from headgate.connectors.kafka.sink.options import NAME, KafkaSink
from headgate.connectors.kafka.sink.publication_retries import (
    AttemptFailed,
    AttemptSucceeded,
    Event,
    GiveUp,
    Progressed,
    PublicationMachine,
    TimePassed,
    WorkOrdered,
)
from headgate.connectors.kafka.sink.staging import (
    ITEM_SERIALIZER,
    StagedItem,
    StagedPiece,
    StagingFolder,
    folder_of,
    staged_sink,
)
from headgate.connectors.kafka.sink.transactions import Marker, TransactionalWriter, is_passing
from headgate.errors import HeadgateError, InternalError, SinkError, SinkUnavailableError
from headgate.sink.writer_thread import WriterThread

_log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
"""How long each step of a commit may take at first, in seconds; twice as long in each attempt that follows."""


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
        self._thread = WriterThread(f"headgate-kafka-publisher-{name}")
        self._patience_s = _PATIENCE_S  # on the thread
        self._closing = threading.Event()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._machine = PublicationMachine(limit_ms=sink.client.timeout_ms + sink.client.delivery_timeout_ms)
        self._stuck: SinkError | None = None
        self._inherited = {item.name: item for item in inherited}
        self._pieces: list[StagedPiece] = []
        self._opened = self._order(self._open) if stages else None
        for item in inherited:
            self._order(partial(self._publish_inherited, item))

    def add(self, pieces: Sequence[StagedPiece]) -> None:
        """Take pieces over, in the order of their numbers; they will be in the next state. Blocks.

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
        """Publish what is in a checkpoint, which is complete, and in those before it. Returns at once."""
        with self._lock:
            due = any(piece.checkpoint_id <= checkpoint_id for piece in self._pieces)
        if due:
            self._order(partial(self._publish_own, checkpoint_id))

    def finish(self) -> Future[None]:
        """Return a future that is done when all that was ordered is published."""
        return self._thread.submit(lambda: None)

    def raise_failure(self) -> None:
        """Raise what stopped the publication, for good: a restore goes on with it."""
        self._thread.raise_failure()
        self._handle(TimePassed())
        if self._stuck is not None:
            raise self._stuck

    def waiting_ms(self) -> int:
        """Return how long the oldest work has waited, in milliseconds; 0: all that was ordered is done."""
        with self._lock:
            return self._machine.waiting_ms(_now_ms())

    def close(self, timeout_s: float) -> None:
        """Publish what was ordered if that takes no longer than this, in seconds; the rest is left to a restore."""
        with contextlib.suppress(HeadgateError, TimeoutError):
            self.finish().result(timeout_s)
        self._closing.set()
        if not self._thread.stop(0.1):
            _log.warning("%s: closed while publishing as %r; a restore completes it.", NAME, self._name)
        elif self._writer is not None:
            self._writer.close()

    def _order(self, work: Callable[[], None]) -> Future[None]:
        self._handle(WorkOrdered())
        return self._thread.submit(lambda: self._until_done(work))

    def _handle(self, event: Event) -> bool:
        """Give the machine an event; return whether it gives up."""
        with self._lock:
            gives_up = False
            for action in self._machine.handle(event, _now_ms()):
                match action:
                    case GiveUp(waited_ms=waited_ms, is_stuck=is_stuck):
                        gives_up = True
                        if is_stuck:
                            self._stuck = SinkUnavailableError(
                                f"{NAME}: rows of complete checkpoints have waited for {waited_ms} ms to be published, "
                                "and nothing moves: the client, or the storage of staged rows, hangs. Check the "
                                f"brokers at {self._sink.client.address} and the checkpoint location.",
                                sink=NAME, address=self._sink.client.address, name=self._name,
                            )  # fmt: skip
                    case _:  # the thread sees that it may go on
                        pass
            return gives_up

    # From here on: on the thread.

    def _until_done(self, work: Callable[[], None]) -> None:
        """Try until it is done, or the machine gives up."""
        is_first = True
        while True:
            try:
                work()
                break
            except Exception as error:
                self._discard_writer()
                # An attempt that was given up may have fenced the one after it, late.
                may_pass = is_passing(error) or (isinstance(error, SinkError) and "fenced" in error.facts)
                if self._handle(AttemptFailed(is_passing(error) if is_first else may_pass)):
                    raise
                _log.warning("%s: publishing as %r failed and is retried: %s", NAME, self._name, error)
            is_first = False
            self._patience_s *= 2
            self._wait_for_attempt()
        self._patience_s = _PATIENCE_S
        self._handle(AttemptSucceeded())

    def _wait_for_attempt(self) -> None:
        while True:
            with self._lock:
                again_ms = self._machine.next_time_ms() if self._machine.state == "waiting" else None
            if again_ms is None:
                return
            if self._closing.wait(max(0, again_ms - _now_ms()) / 1000):
                raise SinkError(
                    "The sink's writer was closed before all rows were published; a restore publishes them."
                )
            self._handle(TimePassed())

    def _discard_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _connect(self, name: str, topic: str | None) -> tuple[TransactionalWriter, Marker | None]:
        """Return a writer and its marker; no earlier writer of the name can write any more."""
        writer = TransactionalWriter(staged_sink(self._sink.client, topic), name, patience_s=self._patience_s)
        try:
            return writer, writer.marker()
        except BaseException:
            writer.close()
            raise

    def _open(self) -> None:
        self._writer, marker = self._connect(self._name, self._sink.topic)
        if marker is not None:
            raise InternalError(f"{NAME}: the name {self._name!r} was used before: rows under it would be lost.")

    def _publish_own(self, checkpoint_id: int) -> None:
        with self._lock:
            due = [piece for piece in self._pieces if piece.checkpoint_id <= checkpoint_id]
        if not due:
            return  # an order before this one was carried out later, and did this one's work
        done = None
        if self._writer is None:  # an attempt before this one failed; how far it came the brokers know
            self._writer, done = self._connect(self._name, self._sink.topic)
        self._publish(self._writer, due, done)
        with self._lock:
            del self._pieces[: len(due)]
        for piece in due:
            self._folder.delete(piece.rows)

    def _publish_inherited(self, item: StagedItem) -> None:
        writer, done = self._connect(item.name, item.topic)
        with writer:
            self._publish(writer, item.pieces, done)
        with self._lock:
            del self._inherited[item.name]
        for piece in item.pieces:
            self._folder.delete(piece.rows)
        self._folder.delete_folder(folder_of(item.name))

    def _publish(self, writer: TransactionalWriter, pieces: Sequence[StagedPiece], done: Marker | None) -> None:
        """Publish those of the pieces that are not."""
        lacking = [piece for piece in pieces if done is None or piece.number > done.epoch]
        if not lacking:
            return
        writer.begin()
        try:
            for piece in lacking:
                for batch in self._folder.read(piece.rows):
                    writer.write(batch)
                    self._handle(Progressed())
            writer.commit(lacking[-1].number)
        except BaseException as error:
            if not is_passing(error):  # else the next writer of the name does so
                writer.abort()
            raise


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
