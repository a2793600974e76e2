"""The source: a factory of enumerators and readers, and what it can do besides.

Never: hold a client, a thread or a file: a source is pickled to every reader. Optional abilities are protocols found
by `isinstance`, so that a source without one does not have to say no.

Follows FLIP-27, "Core Public Interfaces"; FLIP-537 for `SupportsSplitReassignmentOnRecovery`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import msgspec
import pyarrow as pa

from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.options import Options, OptionSpec
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Split

SplitT = TypeVar("SplitT", bound=Split)
SplitInT = TypeVar("SplitInT", bound=Split, contravariant=True)
StateT = TypeVar("StateT")


class Source(ABC, Generic[SplitT, StateT]):
    """Makes the enumerator and the readers of one input.

    Parameters
    ----------
    options
        What the user set, by name, without regard to case. The constructor validates all of it, against
        ``option_specs``, and does nothing else: no file is opened and no connection made.

    Raises
    ------
    OptionError
        From the constructor: an unknown option (with the near names), a bad value (with what is allowed).
    """

    name: ClassVar[str]
    """The format's name, for ``spark.read.format(name)``."""
    option_specs: ClassVar[Sequence[OptionSpec]] = ()
    """The options of this source; those that every source has are added to them."""
    split_serializer: ClassVar[VersionedSerializer]  # type: ignore[type-arg]
    """Writes and reads the splits."""
    state_serializer: ClassVar[VersionedSerializer]  # type: ignore[type-arg]
    """Writes and reads the enumerator's state."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = Options.parse(self.name, self.option_specs, options)

    @abstractmethod
    def schema(self) -> str | pa.Schema:
        """Return the columns, as Spark's DDL text or an Arrow schema, when the user gave none. May block."""

    def supports(self, boundedness: Boundedness) -> bool:
        """Return whether the source can be read in this way. The default is both."""
        return True

    @abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext[SplitT]) -> SplitEnumerator[SplitT, StateT]:
        """Return an enumerator that starts afresh. Must not block: discovery begins in its ``start``."""

    @abstractmethod
    def restore_enumerator(
        self, context: SplitEnumeratorContext[SplitT], state: StateT
    ) -> SplitEnumerator[SplitT, StateT]:
        """Return an enumerator that continues from ``state``. Must not block."""

    @abstractmethod
    def create_reader(self, context: SourceReaderContext) -> SourceReader[SplitT]:
        """Return a reader without splits. Must not block."""


class PlanLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one plan may hold. None means no limit. At least one range is planned whatever its size.

    Parameters
    ----------
    max_rows, max_bytes, max_files
        Upper bounds; the smallest of them counts.
    max_planning_ms
        How long to look for a stop per split where that means reading ahead, in milliseconds. None: until all that
        is there now has been seen.
    min_rows, max_delay_ms
        A plan waits until it has so many rows, but not longer than this since the plan before, in milliseconds. The
        planner sees to it; a source need not.
    before_event_time_ms
        A range ends before the first row with this event time or a later one, in milliseconds, as far as
        `SupportsEventTimeSeek.next_event_times` knows: of a Parquet row group, its lowest. Only set for such sources. A
        split whose next row is not before it has no range.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    max_files: int | None = None
    max_planning_ms: int | None = None
    min_rows: int | None = None
    max_delay_ms: int | None = None
    before_event_time_ms: int | None = None


class PlannedRange(msgspec.Struct, Generic[SplitT], frozen=True, kw_only=True):
    """A range of one split that never changes: reading it twice gives the same rows.

    Parameters
    ----------
    split
        The split from its position up to a stop. A reader that is given it finishes it.
    rest
        The split as it is after the range, or None when the range reads it to its end.
    """

    split: SplitT
    rest: SplitT | None = None


@runtime_checkable
class SupportsBoundedPlans(Protocol[SplitT]):
    """A source whose splits can be read in ranges fixed beforehand. Micro-batches need it."""

    def plan_ranges(self, splits: Sequence[SplitT], limits: PlanLimits, now_ms: int) -> Sequence[PlannedRange[SplitT]]:
        """Decide what the next micro-batch reads of the splits in progress. May block.

        Parameters
        ----------
        splits
            The splits in progress, in the order in which they were assigned.
        limits
            Upper bounds over all ranges together.
        now_ms
            The time, in milliseconds since 1970-01-01 UTC.

        Returns
        -------
        Ranges, at most one per split; none for a split that has nothing new. An empty answer plans no batch. A split
        that already has a stop is never planned beyond it, and has no rest once that is reached.
        """
        ...


@runtime_checkable
class SupportsTaskGroups(Protocol[SplitT]):
    """A source that decides which of its splits share a Spark task. Others are packed by size."""

    def grouping(self) -> dict[str, Any]:
        """Return what decides how splits are grouped beside the splits themselves, as JSON: values of options.

        A streaming query keeps it with each micro-batch, so that a replay has the same tasks whatever the options are
        by then.
        """
        ...

    def group_splits(self, splits: Sequence[SplitT], grouping: Mapping[str, Any]) -> Sequence[Sequence[SplitT]]:
        """Return the splits of a read, all of which have an end, by task. Must not block.

        A split may be cut into several, whose ids are then their own; together they read what it would have read.
        Splits with nothing to read may be left out. Nothing but the two arguments may decide.
        """
        ...


@runtime_checkable
class SupportsLag(Protocol[SplitInT]):
    """A source that knows how far a query lags its input. Shown in Spark's ``lastProgress``."""

    def lag(self, splits: Sequence[SplitInT], now_ms: int) -> Mapping[str, int]:
        """Return figures like ``{"rowsBehind": 7}`` for the splits in progress. May block."""
        ...


@runtime_checkable
class SupportsEventTimeSeek(Protocol[SplitInT]):
    """A source that can find an event time without reading up to it (by an index or statistics).

    Its `SupportsBoundedPlans.plan_ranges` obeys `PlanLimits.before_event_time_ms`: that is how micro-batches are
    aligned without reading rows beyond the bound.
    """

    def next_event_times(self, splits: Sequence[SplitInT]) -> Mapping[str, int | None] | None:
        """Return the event time of the next row of each split, in milliseconds, by split id. May block.

        A lower bound is enough where the exact time is not known. A split that has nothing to read now is left out;
        one whose next row has no event time is None: it holds nobody back. Return None if, with these
        options, the source does not know event times: it is then aligned by what its readers report.
        """
        ...


class SupportsSplitReassignmentOnRecovery:
    """A marker: after recovery readers report their splits instead of keeping them (FLIP-537).

    The splits that a reader was restored with go to the enumerator, in
    `ReaderInfo.reported_splits_on_registration`, which alone decides who reads them. Splits reported and not yet
    assigned again are part of the enumerator's snapshot.
    """
