"""The split enumerator: finds work and hands it out. One per source, however many readers.

Never: read data. All methods of an enumerator, and the handlers it gives to `call_async`, are called on one
thread, one at a time, so an enumerator needs no lock.

A split's life: discovered by the enumerator (its state) -> assigned (on its way, remembered by the coordinator
until a checkpoint holds it) -> in a reader's state -> finished; or given back by `add_splits_back` when the reader
fails. It is in exactly one of these places at every instant, and in every completed checkpoint.

Follows FLIP-27, "Separating Work Discovery from Reading" and "Split Enumerator"; FLIP-537 for recovery.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Generic, TypeVar

import pyarrow as pa

from headgate.source.events import ReaderInfo, SourceEvent
from headgate.source.metrics import MetricGroup
from headgate.source.split import Split

SplitT = TypeVar("SplitT", bound=Split)
StateT = TypeVar("StateT")
ResultT = TypeVar("ResultT")


class Boundedness(Enum):
    """Whether a source is read to an end. Chosen by the entry point, known to the enumerator only."""

    BOUNDED = "bounded"
    """What is there when the enumerator starts is read, then the source ends."""
    CONTINUOUS_UNBOUNDED = "continuous_unbounded"
    """The source is read for ever, new work included."""


class SplitEnumeratorContext(ABC, Generic[SplitT]):
    """What an enumerator may ask of the runtime. Given to it at construction; used on its thread only."""

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """How the source is read."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns that are read, partition columns included."""

    @property
    @abstractmethod
    def current_parallelism(self) -> int:
        """How many readers there are when all are registered."""

    @property
    @abstractmethod
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        """The readers registered now, by subtask."""

    @property
    def readers_fail_alone(self) -> bool:
        """Whether one reader may go back to the last completed checkpoint while others read on.

        Then a split that has ended may be read once more, until a completed checkpoint has its end
        (`SplitEnumerator.notify_checkpoint_complete`).
        """
        return True

    @cached_property
    def metric_group(self) -> MetricGroup:
        """What takes the enumerator's counters and gauges. They are seen in continuous queries only."""
        return MetricGroup()

    @abstractmethod
    def assign_splits(self, assignment: Mapping[int, Sequence[SplitT]]) -> None:
        """Hand splits to registered readers. They leave the enumerator's state with this call.

        Raises
        ------
        ConnectorContractError
            A subtask is not registered, or a split id is assigned while a reader already has it.
        """

    def assign_split(self, split: SplitT, subtask: int) -> None:
        """Hand one split to one reader: `assign_splits` with a single entry."""
        self.assign_splits({subtask: [split]})

    @abstractmethod
    def signal_no_more_splits(self, subtask: int) -> None:
        """Promise that ``subtask`` gets no more splits: it ends once it has read those it holds."""

    @abstractmethod
    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> None:
        """Send an event to a registered reader."""

    @abstractmethod
    def call_async(
        self,
        work: Callable[[], ResultT],
        handler: Callable[[ResultT | None, Exception | None], None],
        *,
        initial_delay_ms: int = 0,
        period_ms: int | None = None,
    ) -> None:
        """Run slow work off the enumerator's thread; its outcome is handled on that thread.

        Parameters
        ----------
        work
            May block; must not touch the enumerator's state. Periodic work never overlaps itself.
        handler
            Called on the enumerator's thread with (result, None) or (None, error). May touch the state. If it raises,
            the enumerator fails; an error that it accepts is shown in the query's status and progress.
        initial_delay_ms
            Time before the first run, in milliseconds.
        period_ms
            Time from one run to the next, in milliseconds; None runs it once. In a continuous query a run that failed
            is retried after half a second, and then less and less often (up to ten seconds, or this time).
        """


class SplitEnumerator(ABC, Generic[SplitT, StateT]):
    """Discovers splits and assigns them to readers; implemented by a connector.

    No method may block (`SplitEnumeratorContext.call_async` is for that). An error raised by any of them, or by a
    handler, fails the enumerator.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin discovery. Called once, after construction or restoration and before any other method."""

    @abstractmethod
    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Answer a reader that has nothing left to read: assign, or signal that there is no more, or note it.

        Parameters
        ----------
        subtask
            Who asks. The request stays open until it is answered: an enumerator that has no work now remembers it.
        host
            Where the reader runs, for assignments by locality; None when unknown. No built-in source uses it: object
            stores, Kafka and Kinesis are as near to one host as to another.
        """

    @abstractmethod
    def add_reader(self, subtask: int) -> None:
        """Note a newly registered reader. `SplitEnumeratorContext.registered_readers` already holds it.

        Called again when the reader has failed and returned: it then holds only what it reported.
        """

    def take_assignments(self, assignment: Mapping[int, Sequence[SplitT]]) -> bool:
        """Take note of splits that readers were given after the state this enumerator was restored from was taken.

        Called right after `start`, before any reader is registered, when the enumerator alone was restarted and readers
        read on. Of these splits those whose end the state may know, as they were given back since, are given back once
        more before (`add_splits_back`). Only asked of sources that declare `SupportsSplitReassignmentOnRecovery`: their
        readers report splits after a recovery, so that a split must not be in the enumerator's state as well when a
        checkpoint is taken.

        Returns
        -------
        True: the splits have left the state, as with `SplitEnumeratorContext.assign_splits`. By default False: they are
        assigned again at some time, to the same readers, which is then not carried out; checkpoints wait for that.
        """
        return False

    @abstractmethod
    def add_splits_back(self, splits: Sequence[SplitT], subtask: int) -> None:
        """Take back splits whose assignment is lost because ``subtask`` failed.

        Called before the reader's next `add_reader`. The splits belong to the enumerator's state again at once, and
        readers that wait for work are served from them. Some may have been read to their end, if no completed
        checkpoint knows of that; a restored enumerator need not know them, as its state may have been taken after that.
        """

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """Receive an event from a reader; override it if the connector has any.

        Called again with an event whose effect is not in the state that the enumerator was restored from. An event that
        makes it fail comes again, too, until everything is restarted.

        Raises
        ------
        UnsupportedOperationError
            By default: the connector sends events but does not handle them.
        """
        from headgate.errors import UnsupportedOperationError

        raise UnsupportedOperationError(
            f"{type(self).__name__} got {type(event).__name__} from reader {subtask} but does not implement "
            "handle_source_event.",
            operation="handle_source_event",
        )

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> StateT:
        """Return everything needed to continue: what is discovered and not assigned, and what discovery must know.

        It contains neither assigned nor finished splits. A start position that was resolved ("latest") is
        part of it, so that it is never resolved twice. The returned value must not change afterwards: it is
        serialised on another thread.
        """

    def unassigned_event_time_ms(self) -> int | None:
        """Return the earliest event time of any row that is not assigned yet: no watermark passes it.

        Asked after every call and every handler. A source that knows lower bounds of its splits (from statistics, say)
        assigns them in that order, so that what it holds back is always what comes last. In an alignment group it is
        also the vote of readers without a split: early work must not be kept for a reader that is busy with later
        work.

        Returns
        -------
        Milliseconds; `headgate.source.watermark.MIN_WATERMARK_MS` while it may still find anything (before the first
        discovery is over); None: nothing is unassigned, or its event times are not known. By default None.
        """
        return None

    def unreported_splits(self) -> Collection[str]:
        """Return the ids of splits that readers had in the state this was restored from, and that none has since.

        Asked before the state is taken for a checkpoint, once all readers have registered with what they have. Nobody
        would read any of them again, and the checkpoint would not know from where on: the query fails instead, with
        their ids. By default none: a state need not say which splits readers have.
        """
        return ()

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        """Note that splits were read to their end, for enumerators that wait for that: a shard's children follow it.

        Every end is reported, after a restore perhaps once more. The next snapshot is taken with that knowledge, and no
        completed checkpoint is without both the split and the knowledge of its end (FLINK-37627).
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that everything up to ``checkpoint_id`` is durable. Not promised for every checkpoint.

        An enumerator that overrides this is asked for its state afterwards: what changed survives its restart.
        """

    @abstractmethod
    def close(self) -> None:
        """Release clients and files. Called at most once, after the last other call; not promised in a crash."""
