"""The split of `headgate.datagen` (a range of one partition's rows) and the enumerator's state.

Never: hold anything that the options already fix; those may not change on a restart.
"""

from __future__ import annotations

import msgspec

from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Remaining, Split


class DatagenSplit(Split, frozen=True, kw_only=True):
    """Rows of one partition, from a position on.

    Parameters
    ----------
    partition
        The partition's number, from 0.
    position
        The next of the partition's own rows, from 0.
    stop
        The first of its rows that no longer belongs to the split; None: it goes on for ever.
    event_start_us
        The event time of row 0 of the source, in microseconds since 1970-01-01 UTC.
    paced_since_ms
        The time at which the source started, in milliseconds since 1970-01-01 UTC: a row is read when it is due.
        None: rows are read as fast as possible, because there is an end, or because they were due when planned.
    """

    partition: int
    position: int = 0
    stop: int | None = None
    event_start_us: int = 0
    paced_since_ms: int | None = None

    def remaining(self) -> Remaining:
        """Rows up to the stop; unknown without one."""
        return Remaining(rows=None if self.stop is None else self.stop - self.position)


class DatagenState(msgspec.Struct, frozen=True, kw_only=True):
    """The enumerator's state: what is not assigned. Which splits there are follows from the options.

    Parameters
    ----------
    pending
        Splits that no reader has, those reported by readers and not yet assigned again included.
    """

    pending: tuple[DatagenSplit, ...] = ()


SPLIT_SERIALIZER = VersionedSerializer(DatagenSplit, version=1, what="a split of headgate.datagen")
STATE_SERIALIZER = VersionedSerializer(DatagenState, version=1, what="the enumerator state of headgate.datagen")
