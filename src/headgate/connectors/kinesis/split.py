"""A shard, or a range of one, with the position in it; the enumerator's state; how both are written.

Never: hold a shard iterator (it expires after five minutes), or ask Kinesis. A start position is resolved before a
split is made, once, and then lives in it (FLINK-38453).

Follows FLIP-27, "Reader Interface and Threading Model"; the names of positions are those of GetShardIterator.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Remaining, Split

PositionKind = Literal["TRIM_HORIZON", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"]


class ShardPosition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where reading of a shard continues.

    Parameters
    ----------
    kind
        ``TRIM_HORIZON``: the oldest record there is. ``AT_TIMESTAMP``: the first that arrived at a time or later.
        ``AT_SEQUENCE_NUMBER``, ``AFTER_SEQUENCE_NUMBER``: a record that somebody has seen, or the one after it.
    sequence_number
        Of that record: a decimal number as text. They are compared as whole numbers, which need more than 64 bits.
    timestamp_ms
        That time, in milliseconds since 1970-01-01 UTC, by Kinesis' clock.
    """

    kind: PositionKind = "TRIM_HORIZON"
    sequence_number: str | None = None
    timestamp_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.sequence_number or self.timestamp_ms or ''}".strip()


TRIM_HORIZON = ShardPosition()


def after(sequence_number: str) -> ShardPosition:
    """Return the position after a record."""
    return ShardPosition(kind="AFTER_SEQUENCE_NUMBER", sequence_number=sequence_number)


def at(sequence_number: str) -> ShardPosition:
    """Return the position of a record."""
    return ShardPosition(kind="AT_SEQUENCE_NUMBER", sequence_number=sequence_number)


def at_timestamp(timestamp_ms: int) -> ShardPosition:
    """Return the position of the first record that arrived at this time or later."""
    return ShardPosition(kind="AT_TIMESTAMP", timestamp_ms=timestamp_ms)


class KinesisSplit(Split, frozen=True, kw_only=True, omit_defaults=True):
    """A shard from ``position`` on; its id is the shard's.

    Parameters
    ----------
    position
        Where reading continues.
    stop
        The sequence number of the last record that belongs to the split, which somebody has seen; None: read to the
        shard's end.
    rows
        How many records there are up to ``stop``, as counted by whoever saw it.
    ended
        The shard was closed and is read up to ``position``, which is its end: nothing is left to do.
    parents
        The shards that this one came from by a split or a merge; they are read before it.
    """

    position: ShardPosition = TRIM_HORIZON
    stop: str | None = None
    rows: int | None = None
    ended: bool = False
    parents: tuple[str, ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether nothing is left between position and stop."""
        if self.stop is None or self.position.kind != "AFTER_SEQUENCE_NUMBER":
            return self.ended
        return int(self.position.sequence_number or 0) >= int(self.stop)

    def read_up_to(self, sequence_number: str, rows: int) -> KinesisSplit:
        """Return the split after a record, when ``rows`` records up to it have been read."""
        left = None if self.rows is None else max(0, self.rows - rows)
        return msgspec.structs.replace(self, position=after(sequence_number), rows=left)

    def remaining(self) -> Remaining:
        """Return the records up to the stop; unknown without one."""
        return Remaining(rows=self.rows)


class KinesisState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the enumerator must know to go on.

    Parameters
    ----------
    initial_discovery_finished
        Whether the shards that were there at the start are known. Before it, ``startingPosition`` applies to what is
        discovered; afterwards new shards (those that others were split or merged into) are read from their beginning.
    unassigned
        Shards that no reader has: they wait for their parents, were reported by readers or given back.
    assigned
        The ids of the shards that readers have, and those readers (None: not known); void at another parallelism.
    ended
        The ids of the shards that are read to their end, and are read again should their readers fail before a
        completed checkpoint has that.
    finished
        The ids of the shards that nobody reads again, or that were closed before a start at ``latest``, as long as
        Kinesis still lists them.
    parallelism
        How many readers the shards were shared out among; None: they were not yet. With as many again, each goes on
        with what it had.
    """

    initial_discovery_finished: bool = False
    unassigned: tuple[KinesisSplit, ...] = ()
    assigned: dict[str, int | None] = {}
    ended: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    parallelism: int | None = 1


def _readers_not_known(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of version 1 as one of version 2: it had only the ids of assigned shards."""
    return state | {"assigned": dict.fromkeys(state.get("assigned", ()))}


SPLIT_SERIALIZER: VersionedSerializer[KinesisSplit] = VersionedSerializer(
    KinesisSplit, version=1, what="a split of headgate.kinesis"
)
"""Version 1 since 0.2.0."""
STATE_SERIALIZER: VersionedSerializer[KinesisState] = VersionedSerializer(
    KinesisState,
    version=3,
    what="the enumerator state of headgate.kinesis",
    upgrades={1: _readers_not_known, 2: dict},
)
"""Version 1 since 0.2.0; version 2, which knows who has the assigned shards, since 0.3.0; version 3, which
distinguishes ended shards from finished ones, since 0.6.0: what an older state has is finished."""
