"""Publishes staged rows once their checkpoint is complete, on a thread of its own.

Never: publish rows of a checkpoint that is not known complete.

The life of a piece: staged -> in a checkpoint's state -> the checkpoint is complete -> published under its name ->
gone from the state of the next checkpoint. A connector says how a piece is published so that a second publication of
the same one, by whoever is given the item after a crash, makes no second rows.

An attempt that failed, brokers being down or a client hanging in a call, is what a crash is: what it used is given
up, and the next attempt goes the same way under the same name. `publication_retries` decides how often.

A name belongs to one writer (query, sink, run, subtask, execution) and is in one item of each checkpoint, so that
two living writers never share one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from headgate.errors import HeadgateError, SinkError, SinkUnavailableError
from headgate.protocol.operator_context import OperatorContext
from headgate.sink.publication_retries import (
    AttemptFailed,
    AttemptSucceeded,
    Event,
    GiveUp,
    Progressed,
    PublicationMachine,
    TimePassed,
    WorkOrdered,
)
from headgate.sink.staging import StagedItem, StagedPiece, folder_of, staging_folder, staging_name
from headgate.sink.writer_thread import WriterThread
from headgate.source.serialization import VersionedSerializer

_log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
"""How long each step of an attempt may take at first, in seconds; twice as long in each attempt that follows."""


class Publisher(ABC):
    """Publishes on a thread of its own, in order: what was inherited first.

    The public methods may be called by any thread; `open`, `publish` and `discard` are called on the own one.

    Parameters
    ----------
    context
        Of the writer that stages the rows.
    items
        Those of the checkpoint that is restored.
    sink
        The name of the sink, for messages and the thread.
    address
        Where it publishes to, for messages.
    limit_ms
        How long attempts may fail, or one may not move, in milliseconds.
    topic
        The topic of all rows that are staged; None: they name theirs.
    serializer
        That of the connector's items.
    stages
        Whether there will be rows beside those of the items.
    if_gone
        As of `StagingFolder`.

    Attributes
    ----------
    folder
        Where staged files lie.
    name
        The name that the writer stages under.

    Raises
    ------
    OptionError
        There is no ``checkpointLocation`` to stage rows at.
    StoredStateError
        The items cannot be read.
    """

    def __init__(
        self, context: OperatorContext, items: Sequence[bytes], *, sink: str, address: str, limit_ms: int,
        topic: str | None, serializer: VersionedSerializer[StagedItem], stages: bool, if_gone: str = "",
    ) -> None:  # fmt: skip
        inherited = [serializer.deserialize(item) for item in items]
        self.folder = staging_folder(context.options, sink, if_gone)
        self.name = staging_name(context)
        self._sink_name = sink
        self._address = address
        self._topic = topic
        self._serializer = serializer
        self._thread = WriterThread(f"{sink.replace('.', '-')}-publisher-{self.name}")
        self._patience_s = _PATIENCE_S  # on the thread
        self._closing = threading.Event()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._machine = PublicationMachine(limit_ms=limit_ms)
        self._stuck: SinkError | None = None
        self._inherited = {item.name: item for item in inherited}
        self._pieces: list[StagedPiece] = []
        self._opened = self._order(self.open) if stages else None
        for item in inherited:
            self._order(partial(self._publish_inherited, item))

    @abstractmethod
    def open(self) -> None:
        """Get ready to publish under the own name, which nobody used before. May block; called until it succeeds.

        Raises
        ------
        HeadgateError
            It cannot; `is_passing` says whether to try again.
        """

    @abstractmethod
    def publish(self, item: StagedItem, pieces: Sequence[StagedPiece], *, is_own: bool) -> None:
        """Publish pieces of an item, all of them that are not published yet. May block; called until it succeeds.

        It calls `progressed` now and then. ``is_own``: more of the same name will follow.
        """

    @abstractmethod
    def discard(self) -> None:
        """Give up what the own name is published with: an attempt failed, or nothing follows. Does not block."""

    @abstractmethod
    def is_passing(self, error: BaseException, *, is_first: bool) -> bool:
        """Return whether another attempt may succeed after one, the first of its work or a later one, failed so."""

    def progressed(self) -> None:
        """Note that the attempt moves."""
        self._handle(Progressed())

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
                items.append(self._own(self._pieces))
        return [self._serializer.serialize(item) for item in items]

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
            _log.warning("%s: closed while publishing as %r; a restore completes it.", self._sink_name, self.name)
        else:
            self.discard()

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
                                f"{self._sink_name}: rows of complete checkpoints have waited for {waited_ms} ms to be "
                                "published, and nothing moves: the client, or the storage of staged rows, hangs. Check "
                                f"the brokers at {self._address} and the checkpoint location.",
                                sink=self._sink_name, address=self._address, name=self.name,
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
                self.discard()
                if self._handle(AttemptFailed(self.is_passing(error, is_first=is_first))):
                    raise
                _log.warning("%s: publishing as %r failed and is retried: %s", self._sink_name, self.name, error)
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

    def _own(self, pieces: Sequence[StagedPiece]) -> StagedItem:
        return StagedItem(self.name, self._topic, tuple(pieces))

    def _publish_own(self, checkpoint_id: int) -> None:
        with self._lock:
            due = [piece for piece in self._pieces if piece.checkpoint_id <= checkpoint_id]
        if not due:
            return  # an order before this one was carried out later, and did this one's work
        self.publish(self._own(due), due, is_own=True)
        with self._lock:
            del self._pieces[: len(due)]
        for piece in due:
            self.folder.delete(piece.rows)

    def _publish_inherited(self, item: StagedItem) -> None:
        self.publish(item, item.pieces, is_own=False)
        with self._lock:
            del self._inherited[item.name]
        for piece in item.pieces:
            self.folder.delete(piece.rows)
        self.folder.delete_folder(folder_of(item.name))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
