"""A partition of a topic, a split of one, and what an enumerator of such splits keeps.

Never: know a system: what a position is, each connector says.

Follows FLIP-537, "Kafka connector", for the state.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from headgate.source.split import Split


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    """A partition of a topic.

    Parameters
    ----------
    topic
        The topic's name.
    partition
        The partition's number, from 0.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionSplit(Split, frozen=True, kw_only=True):
    """A partition from ``position`` on.

    Parameters
    ----------
    topic, partition
        What is read.
    position
        Where reading continues.
    """

    topic: str
    partition: int
    position: Any

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that is read."""
        return TopicPartition(self.topic, self.partition)


SplitT = TypeVar("SplitT", bound=PartitionSplit)


class PartitionsState(msgspec.Struct, Generic[SplitT], frozen=True, kw_only=True):
    """What the enumerator must know to go on.

    Parameters
    ----------
    initial_discovery_finished
        Whether the partitions that were there at the start are known. Before it, ``startingOffsets`` applies to what
        is discovered; afterwards new partitions are read from the earliest record (FLIP-537).
    unassigned
        Splits discovered (at resolved positions), reported by readers or given back, and not assigned (again) yet.
    assigned
        The partitions that were assigned and are not known to be read to their end, by topic, so that they are not
        discovered again: the number of each, and the reader that it was assigned to (None: not known).
    parallelism
        How many readers the splits were shared out among; None: they were not yet. With as many again, readers keep the
        splits that they report, otherwise all splits are assigned afresh (FLIP-537, "Behaviour Changes").
    owners
        The reader of each unassigned split that has one already, by split id. These readers and those of ``assigned``
        are void at another parallelism.
    """

    initial_discovery_finished: bool
    unassigned: tuple[SplitT, ...] = ()
    assigned: dict[str, tuple[tuple[int, int | None], ...]] = msgspec.field(default_factory=dict)
    parallelism: int | None = None
    owners: dict[str, int] = msgspec.field(default_factory=dict)
