"""A partition of a topic, or a range of one, with the position in it; the enumerator's state; how both are written.

Never: ask a broker. A start position is resolved before a split is made, once, and then lives in it (FLINK-38453).

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-537, "Kafka connector", for the state.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Remaining, Split


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


class KafkaSplit(Split, frozen=True, kw_only=True, omit_defaults=True):
    """A partition from ``position`` on, or up to a stop.

    The id of a whole partition is ``topic-partition``; pieces of one (a batch read cut by ``minPartitions``) have
    ``topic-partition@start`` instead.

    Parameters
    ----------
    topic, partition
        What is read.
    position
        The offset at which reading continues: that of the next record, or one below it where records are missing.
    stop
        The first offset that is not read; None: read for ever.
    topic_id
        Kafka's own id of the topic, which distinguishes a topic that was deleted and created again from its
        predecessor; None: the broker reports none.
    """

    topic: str
    partition: int
    position: int
    stop: int | None = None
    topic_id: str | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that is read."""
        return TopicPartition(self.topic, self.partition)

    def remaining(self) -> Remaining:
        """Return the offsets left: at least as many as there are records."""
        return Remaining(rows=None if self.stop is None else max(0, self.stop - self.position))


class KafkaState(msgspec.Struct, frozen=True, kw_only=True):
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
    unassigned: tuple[KafkaSplit, ...] = ()
    assigned: dict[str, tuple[tuple[int, int | None], ...]] = msgspec.field(default_factory=dict)
    parallelism: int | None = None
    owners: dict[str, int] = msgspec.field(default_factory=dict)


def _readers_not_known(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of version 1 as one of version 2: it had only the numbers of assigned partitions."""
    assigned = state.get("assigned", {})
    return state | {"assigned": {topic: [[number, None] for number in numbers] for topic, numbers in assigned.items()}}


SPLIT_SERIALIZER: VersionedSerializer[KafkaSplit] = VersionedSerializer(
    KafkaSplit, version=1, what="a split of headgate.kafka"
)
"""Version 1 since 0.2.0."""
STATE_SERIALIZER: VersionedSerializer[KafkaState] = VersionedSerializer(
    KafkaState, version=2, what="the enumerator state of headgate.kafka", upgrades={1: _readers_not_known}
)
"""Version 1 since 0.2.0; version 2, which knows who has the assigned partitions, since 0.3.0."""
